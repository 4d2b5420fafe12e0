"""What shows a time to be false: a second clock, unseen values, what ran, and whose code it was."""

import contextlib
import itertools
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import attnbench
import impls
from attnbench.core.device import Device
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import make
from attnbench.meter import audit
from attnbench.meter.audit import HostCall, chosen, owner_of, unattested
from attnbench.meter.memory import observe
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import COMPILED, Variant

SMALL = Problem(heads=1, kv_heads=1, q_len=256, kv_len=256, head_dim=4, v_head_dim=4)
MS = 1e-3


def host(wall=0.010, spent=0.010, wanted=0.010, late=0.0, waited=0.005, times=2):
    return [HostCall(wall, spent, wanted, late, waited)] * times


@pytest.mark.parametrize(
    ("calls", "threads", "says"),
    [
        (host(), 1, ""),
        (host(wall=MS, spent=MS, late=4 * MS), 1, "it went on working after it had returned: 4 ms"),
        ([*host(late=4 * MS), *host()], 1, ""),  # somebody else's
        (host(late=0.4 * MS, waited=0.5 * MS), 1, ""),  # the wait's own
        (host(late=MS, waited=5 * MS), 1, ""),
        (host(wanted=12 * MS), 1, ""),
        (host(wanted=14 * MS), 1, "it kept 1.4 processors busy and was given 1 thread"),
        (host(wanted=25 * MS), 2, ""),
        (host(wanted=27 * MS), 2, "it kept 2.7 processors busy and was given 2 threads"),
        (host(wall=1e-5, wanted=3e-5), 1, ""),  # a few microseconds say nothing
    ],
)
def test_what_calls_on_the_host_show(calls, threads, says):
    result = audit.judge_host(calls, threads)
    assert (result.implausible or "").startswith(says)
    assert bool(result.implausible) is bool(says)
    assert (result.clock, len(result.flags)) == ("process", 0)
    spent = sorted(c.spent + c.late for c in calls)
    assert result.least == spent[0]
    assert spent[0] <= result.seconds <= spent[-1]


@pytest.mark.parametrize(
    ("launched", "total", "events", "flags", "says"),
    [
        (1 * MS, 10.2 * MS, 10 * MS, [], ""),
        (1 * MS, 8 * MS, 10 * MS, [], "the clocks disagree: 10 ms by events, 8 ms from end to end"),
        (0.1 * MS, 10 * MS, 1 * MS, [], "the device worked on where the events do not look"),
        (1e-5, 5e-5, 5e-6, ["launch-bound: 5 µs by events, 50 µs from end to end"], ""),
        (9.8 * MS, 10 * MS, MS, ["launch-bound: 1 ms by events, 10 ms from end to end"], ""),
    ],
)
def test_what_calls_on_a_device_show(launched, total, events, flags, says):
    result = audit.judge_device([(launched, total)] * 8, events)
    assert (result.implausible or "").startswith(says)
    assert bool(result.implausible) is bool(says)
    assert (list(result.flags), result.clock, result.seconds) == (flags, "e2e", total)


def test_clocks_disagree_only_where_calls_were_queued_ahead():
    calls = [(MS, 4.3 * MS)] * 8  # gaps between launches may make the time by events the longer
    assert audit.judge_device(calls, 5.1 * MS).implausible
    assert audit.judge_device(calls, 5.1 * MS, ahead=False).implausible is None


@pytest.fixture
def now(gpu, monkeypatch):
    """The time of a host beside a GPU that is always idle, in a list."""
    now = [0.0]
    monkeypatch.setattr(audit, "perf_counter", lambda: now[0])
    return now


def test_what_is_audited_is_the_graph_that_was_timed(now):
    """A replay returns at once; the call that it stands for takes the host ten times as long."""

    def host(seconds):
        now[0] += seconds

    on_gpu = timed(problem=SMALL.with_(device="cuda"), run=lambda: host(10 * MS))
    assert audit.audit_device(on_gpu, lambda: host(MS), MS, ahead=True).flags == []
    (flag,) = audit.audit_device(on_gpu, on_gpu.run, MS, ahead=True).flags
    assert flag.startswith("launch-bound")


def test_clocks_disagree_where_their_intervals_do_after_more_calls(now):
    """A host whose calls scatter by 30 %; by events a call took 7 ms, at the least 4.4."""
    walls = itertools.cycle((4.0, 4.33, 5.6, 4.1, 4.33, 4.2, 5.4))

    def run():
        now[0] += next(walls) * MS

    on_gpu = timed(problem=SMALL.with_(device="cuda"), run=run)
    assert audit.audit_device(on_gpu, run, 7 * MS, True, 4.4 * MS).implausible is None
    assert "disagree" in audit.audit_device(on_gpu, run, 9 * MS, True, 8 * MS).implausible


def test_work_after_the_return_where_the_events_do_not_look_is_implausible(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "synchronize", lambda: time.sleep(2 * MS))
    on_gpu = timed(problem=SMALL.with_(device="cuda"))
    reason = audit.audit_device(on_gpu, on_gpu.run, 1e-4, ahead=True).implausible
    assert reason.startswith("the device worked on where the events do not look")


def timed(**parts):
    """In place of what is timed; what is not given runs no code of Python's."""
    parts = {"before": int, "run": int, "settle": int, "problem": SMALL, **parts}
    return SimpleNamespace(**parts, call=SimpleNamespace(steps=False))


def test_whose_code_runs_before_a_call_or_after_it_is_found():
    def prepare():
        """What a variant would do there."""

    for part in ("before", "settle"):
        with pytest.raises(Wrong, match=r"where no clock looks: test_audit\.py:prepare$"):
            audit._host_calls(timed(**{part: prepare}))
    assert audit._host_calls(timed(run=prepare))


def test_what_is_faster_on_values_seen_before_in_every_look_remembers(monkeypatch):
    looks_false, false = ([MS] * 3, [2 * MS] * 3), ([MS] * 12, [2 * MS] * 12)
    calm = [MS] * 24, [MS] * 24
    given, asked = [], []  # the seconds of calls on values seen and unseen
    monkeypatch.setattr(audit, "_in_turn", lambda *a: asked.append(a[3]) or given.pop(0))
    monkeypatch.setattr(audit.UnseenJudge, "kept", lambda judge: asked.append("judged"))
    one = timed(unseen=None)
    for looks, rounds, least in (
        ([([MS] * 3, [1.4 * MS] * 3)], [3], 1.4 * MS),  # not that much faster
        ([([10e-6] * 3, [29e-6] * 3)], [3], 29e-6),  # not worth remembering for
        ([looks_false, ([MS] * 12, [1.1 * MS] * 12)], [3, 12], 1.1 * MS),
        ([looks_false, ([MS] * 12, [0.9 * MS] * 5 + [2 * MS] * 7)], [3, 12], 0.9 * MS),
        ([looks_false, false, calm], [3, 12, 24], MS),  # a machine that was slow for two looks
        ([([0.02], [0.02])], [1], 0.02),  # of a dear call
        ([looks_false, false, ([MS] * 24, [1.6 * MS] * 24)], None, "it is 1.6 times as fast on"),
    ):
        asked.clear()
        given[:] = looks
        seconds = looks[0][0][0]
        with pytest.raises(Wrong, match=least) if rounds is None else nullcontext():
            assert audit.check_remembers_nothing(one, None, None, None, {}, seconds) == least
            assert asked == [*rounds, "judged"]


@pytest.mark.parametrize(
    ("busy", "looks", "refused"),
    [
        ([1.05], 1, False),
        ([1.2, 0.9], 2, False),
        ([1.2] * 5, 5, False),
        ([2.0, 1.9, 1.0, 1.2, 1.2], 5, True),
    ],
)
def test_what_looks_odd_is_looked_at_again_and_all_looks_together_decide(
    monkeypatch, busy, looks, refused
):
    given = [host(wanted=0.010 * share, times=1) for share in busy]
    monkeypatch.setattr(audit, "_host_calls", lambda _, given=given: given.pop(0))
    assert (audit.audit_host(None, 1).implausible is not None) is refused
    assert len(busy) - len(given) == looks


def test_a_time_below_what_the_device_can_do_is_implausible(cells, monkeypatch):
    monkeypatch.setattr(Device, "copy_bytes", (1 << 18,))
    monkeypatch.setattr(Device, "product_sizes", (64,))
    code = "from impls.cost import Cost\nbuild = right\ndef cost(p): return Cost({}, 1000, None)\n"
    for flops, ceiling, status in (
        (10**15, 1e15, "implausible"),
        (10**4, 1.0, "measured"),  # the ceiling was too low: it is measured again
    ):
        ceilings = {"flops": {"float32": ceiling}, "copy": {"1000000": 1e9}}
        record = cells.measure(cells.variant(code.format(flops), cost=True), ceilings=ceilings)
        assert record.status == status


FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
ENTRY = "aten::scaled_dot_product_attention"
TABLE = impls.table()


def ran_by(row):
    """The operators of one call of a row, as the memory meter sees it."""
    sizes = {"heads": 2, "kv_heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 8, "v_head_dim": 8}
    problem = Problem(level=row.level, **sizes)
    attend = load_function(row.build)(problem, **row.chosen)
    return observe(problem, attend, make(problem, 0), torch.ones(problem.output_shape), None).ran


def forced(operator):
    row = Variant(name="a", title="", family="dense", operator="softmax", build="a:b")
    return row.with_(runs={"cpu": operator, "cuda": "aten::on_a_gpu"} if operator else {})


@pytest.mark.parametrize(
    ("operator", "device", "ran", "message"),
    [
        (FLASH, "cpu", {ENTRY, MATH, "aten::bmm"}, f"it should run {FLASH} and ran {MATH}"),
        (FLASH, "cpu", {ENTRY, FLASH, "aten::empty"}, None),
        (FLASH[:-8], "cpu", {FLASH}, f"it should run {FLASH[:-8]} and ran {FLASH}"),
        (COMPILED, "cpu", {f"{COMPILED}: 3/1"}, None),
        (COMPILED, "cpu", {"aten::bmm"}, "and ran aten::bmm"),
        (FLASH, "cuda:1", {"aten::on_a_gpu"}, None),
        (None, "cpu", (), None),
        (FLASH, "cpu", (), "and ran no operator of torch's"),
    ],
)
def test_another_operator_than_the_one_forced_is_named_beside_it(operator, device, ran, message):
    result = unattested(forced(operator), device, ran)
    assert result is None if message is None else message in result


def test_a_record_says_what_torch_chose_on_a_gpu_where_nothing_was_forced():
    ran = {ENTRY, cudnn := "aten::_scaled_dot_product_cudnn_attention", "aten::mul"}
    assert chosen(TABLE.find("sdpa"), "cuda", ran) == f"torch chose cuDNN ({cudnn})"
    assert chosen(TABLE.find("sdpa.cudnn"), "cuda", ran) == ""
    assert chosen(TABLE.find("sdpa"), "cpu", ran) == ""


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("sdpa.flash", FLASH),
        ("mha?core=sdpa.math", MATH),
        ("mha.native?fastpath=true", "aten::_native_multi_head_attention"),
        ("block.native?fastpath=true", "aten::_transformer_encoder_layer_fwd"),
        pytest.param("flex", COMPILED, marks=pytest.mark.slow),
    ],
)
def test_the_operator_that_a_row_names_is_seen_on_the_cpu(text, operator):
    row = TABLE.find(text)
    assert row.attested_by("cpu") == operator
    assert unattested(row, "cpu", ran_by(row)) is None
    if text == "sdpa.flash":  # a row whose code lets another backend run is found out
        lying = row.with_(build="impls.dense.sdpa:build_math")
        said = unattested(lying, "cpu", ran_by(lying))
        assert said == f"it should run {FLASH} and ran {MATH}"


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (attnbench.__file__, "attnbench"),
        (torch.nn.__file__, "torch"),
        (contextlib.__file__, "Python"),
        (pytest.__file__, "library"),
        (impls.__file__, "other"),
        (f"{Path(os.__file__).parent}/site-packages/impls/dense/sdpa.py", "library"),
        (f"{Path(attnbench.__file__).parents[1]}/attnbench_rows/mine.py", "other"),
        ("<string>", "other"),
    ],
)
def test_a_file_is_known_by_its_folder(file, whose):
    assert owner_of(file) == whose
