"""One cell: what its record says where it is measured, and every other way it can end."""

import re

import pytest
import torch

from attnbench.core import format
from attnbench.core.device import Device
from attnbench.core.record import Energy, Status
from attnbench.core.wire import Job
from attnbench.gate.inputs import Call
from attnbench.meter import cell
from attnbench.meter.cell import Bench
from attnbench.meter.endings import failure
from attnbench.sweep import worker
from impls.masks import Mask

HONEST = "build = right\n"
COST = "from impls.cost import Cost\ndef cost(problem): return Cost(1000, 2000, {peak})\n"
CEILINGS = {"flops": {"float32": 1e12}, "copy": {"1000000": 1e11}}
ATTEND = """
def build(problem):
    inner, calls, held, packed = right(problem), [], [], {{}}
    buffer = torch.empty(problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    def through(held, out): return held + (out - out.detach())
    def attend(q, k, v):
        calls.append(1)
        n, late, looked_at = len(calls), len(calls) > {after}, torch.autograd._profiler_enabled()
        {deed}
    return attend
"""


def attending(deed, after=15):
    """A variant whose every call is the deed; ``late``: after so many calls."""
    return ATTEND.format(deed=deed, after=after)


def raising(text, where="build"):
    return attending(text) if where == "attend" else f"def build(problem):\n    {text}\n"


def unmeasured(record, status, reason=""):
    assert (record.status, record.time, record.memory) == (status, None, None), record.reason
    assert record.reason and re.match(reason, record.reason), record.reason


@pytest.mark.parametrize("phase", ["train", "backward", "decode"])
def test_what_passes_is_measured_and_says_everything(cells, phase):
    problem = cells.problem(phase=phase, mask=Mask.parse("causal"), kv_heads=1)
    variant = cells.variant(HONEST + COST.format(peak=12345), cost=True)
    record = cells.measure(variant, problem, ceilings=CEILINGS, seed=3)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert record.time.median_s > 0 and record.time.clock == "host"
    assert record.time.n == len(record.time.samples_s) >= 7
    assert record.memory.peak_bytes > 0 and record.memory.expected_bytes == 12345
    assert (record.memory.saved_bytes is None) == (phase == "decode")
    assert set(record.error) == {"forward", *(("dq", "dk", "dv") if phase != "decode" else ())}
    assert (record.cost.flops, record.cost.bytes) == (1000, 2000)
    assert record.share_of_ceiling == pytest.approx(2e-8 / record.time.median_s)
    assert record.setup_s > 0 and 0 < record.entropy < 1
    assert (record.seed, record.problem) == (3, problem) and record.kernels


@pytest.mark.slow
def test_building_is_paid_in_the_setup_and_not_in_the_time(cells):
    deed = "n == 1 and time.sleep(0.1); return inner(q, k, v)"
    slow = attending(deed).replace("    inner,", "    time.sleep(0.1)\n    inner,", 1)
    record = cells.run("import time; time.sleep(0.1)\n" + slow)
    assert record.setup_s > 0.19 and record.time.median_s < 0.05
    assert 0.09 < record.spent_s["setup"] < record.setup_s  # building alone
    parts = dict(record.spent_s)
    assert parts.pop("total") == pytest.approx(sum(parts.values()), abs=1e-5)
    assert {"inputs", "setup", "own"} <= set(parts) and min(parts.values()) >= 0


def test_the_truth_of_a_problem_is_made_once_for_all_its_variants(cells, monkeypatch):
    made, make = [], cell.make
    monkeypatch.setattr(cell, "make", lambda p, seed: made.append((p, seed)) or make(p, seed))
    one, two = cells.problem(), cells.problem(q_len=16)
    for problem, seed in ((one, 0), (one, 0), (one, 1), (two, 1), (one, 0)):
        cells.bench.judged(problem, seed)
    assert made == [(one, 0), (one, 1), (two, 1), (one, 0)]


ENDINGS = [
    ("from impls.spec import Unsupported; raise Unsupported('odd')", Status.UNSUPPORTED, "odd$"),
    ("from impls.spec import Unavailable; raise Unavailable('none', 'get one')",
     Status.UNAVAILABLE, "none$"),
    ("raise ValueError('boom')", Status.FAILED, r"it raised ValueError at planted0\.py:\d+: boom$"),
    ("raise KeyError", Status.FAILED, "it raised KeyError"),
    ("raise MemoryError", Status.OUT_OF_MEMORY, "MemoryError"),
    ("return torch.empty(1 << 58)", Status.OUT_OF_MEMORY, ""),
    ("import numpy; return numpy.empty(1 << 58)", Status.OUT_OF_MEMORY, ""),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ENDINGS)))
def test_what_is_raised_ends_in_a_status_with_its_words(cells, monkeypatch, number):
    (text, status, reason), released = ENDINGS[number], []
    monkeypatch.setattr(Device, "release", lambda self: released.append(self.name))
    record = cells.run(raising(text, where=("build", "attend")[number % 2]))
    unmeasured(record, status, reason)
    assert released == ["cpu"] * (status is Status.OUT_OF_MEMORY)  # the next cell needs the room
    if status is Status.OUT_OF_MEMORY:
        assert "shorten the sequence" in record.remedy
    if status is Status.UNAVAILABLE:
        assert record.remedy == "get one"
    if status is Status.FAILED:
        assert "planted0.py" in record.detail and len(record.detail) <= 4000
        assert record.detail.splitlines()[-1].startswith(record.reason.split()[2])


def test_what_is_refused_or_not_found_or_can_not_fit_is_not_run(cells, tmp_path, monkeypatch):
    row = cells.variant(raising("raise SystemError"), masks=("none",))
    record = cells.measure(row, cells.problem(mask=Mask.parse("causal")))
    unmeasured(record, Status.UNSUPPORTED, "planted takes the masks none on cpu, not causal$")
    row = cells.variant(HONEST).with_(build=f"{tmp_path / 'nowhere.py'}:build")
    unmeasured(cells.measure(row), Status.FAILED, ".*nowhere.py")
    problem = cells.problem(inputs=f"captured:{tmp_path / 'none.npz'}")
    unmeasured(Bench().measure(Job(cells.variant(HONEST), problem)), Status.FAILED, ".*none.npz")
    code = raising("raise ValueError('it was run')") + COST.format(peak=1 << 60)
    says = "predicted, not run: it needs 1.05e6 TiB above its inputs"
    unmeasured(cells.run(code, cost=True), Status.OUT_OF_MEMORY, says)
    monkeypatch.setattr(Device, "free_bytes", lambda self: 1000)
    for peak, status in ((900, Status.MEASURED), (901, Status.OUT_OF_MEMORY)):
        row = cells.variant(HONEST + COST.format(peak=peak), cost=True)
        assert cells.measure(row, timed=False).status is status


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("return q * 0.0 if looked_at else inner(q, k, v)", "output"),
        ("return inner(q, k, v.detach() + 0.0 * v) if looked_at else inner(q, k, v)", "dv"),
        ("return inner(q, k, v).double() if looked_at else inner(q, k, v)", "the output is float6"),
    ],
)
def test_what_differs_while_its_memory_is_observed_is_wrong(cells, deed, says):
    record = cells.run(attending(deed), cells.problem(phase="train"))
    unmeasured(record, Status.WRONG, f"while its memory was observed .*{says}")


@pytest.mark.parametrize("other", ["None", "lse.double()"])
def test_a_log_sum_exp_of_another_form_while_memory_is_observed_is_wrong(cells, other):
    code = attending(f"out, lse = inner(q, k, v); return out, {other} if looked_at else lse")
    record = cells.measure(cells.variant(code, parameters=("lse",)), cells.problem(lse=True))
    unmeasured(record, Status.WRONG, "while its memory was observed its lse is ")


BY_ADDRESS = (
    "out, key = inner(q, k, v), tuple(x.data_ptr() for x in (q, k, v))\n"
    "        return through(packed.setdefault(key, out.detach().clone()), out) if late else out"
)
SCALED = "return inner(q, k, v) * (1.001 if late else 1.0)"
LOST = "out = inner(q, k, v); return inner(q, k.detach() + 0.0 * k, v) if late else out"
PACKED = (  # by what k was at an address
    "if not late: return inner(q, k, v)\n"
    "        kept = packed.setdefault(k.data_ptr(), k.detach().clone())\n"
    "        return inner(q, kept + (k - k.detach()), v)"
)


@pytest.mark.slow
def test_the_first_call_after_the_gate_is_not_too_early(cells, monkeypatch):
    """The gate makes so many calls, and nothing but the timed calls finds a cheat."""

    def once(problem, attend, inputs, **_):
        call = Call(problem, attend, inputs)
        return call, call.forward()

    monkeypatch.setattr("attnbench.gate.hygiene.check_nothing_goes_on", once)
    monkeypatch.setattr(cell, "unlike", lambda *_: None)
    for deed, phase, calls, more in (
        (BY_ADDRESS, "forward", 5, {}),
        (SCALED, "decode", 5 + 1, {}),
        (PACKED, "train", 7, {"kv_heads": 1}),
        (LOST, "train", 5, {}),
    ):
        record = cells.run(attending(deed, calls), cells.problem(phase=phase, **more))
        unmeasured(record, Status.WRONG, "while it was timed")


def test_a_row_that_forces_what_did_not_run_is_wrong_with_both_names(cells):
    assert cells.run(HONEST, runs={"cpu": "aten::bmm"}).status is Status.MEASURED
    says = "it should run aten::_other and ran aten::"
    unmeasured(cells.run(HONEST, runs={"cpu": "aten::_other"}), Status.WRONG, says)


def test_energy_is_measured_on_demand_and_what_is_wrong_meanwhile_is_wrong(cells, monkeypatch):
    wanted = Energy(joules=0.5, gross_joules=0.7, idle_w=3.0, calls=9, method="a counter")

    def measured(tokens, run, before, counter):
        assert (tokens, counter) == (32, "counter of cpu")
        before()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "energy_is_measured", True, raising=False)
            run()
        return wanted

    monkeypatch.setattr(cell, "counter_for", lambda device: f"counter of {device}")
    monkeypatch.setattr(cell, "measure_energy", measured)
    assert cells.measure(cells.variant(HONEST), energy=True).energy == wanted
    deed = "return inner(q, k, v) * (0.5 if hasattr(torch, 'energy_is_measured') else 1)"
    record = cells.measure(cells.variant(attending(deed)), energy=True)
    assert (record.status, record.energy) == (Status.WRONG, None)
    assert "while it was timed its output was not what it was" in record.reason
    alone = cell._energy(cells.problem(phase="backward"), None, None)
    assert "can't be repeated without the forward pass" in alone.why
    monkeypatch.setattr(cell, "counter_for", lambda device: Energy(why="no counter here"))
    assert cell._energy(cells.problem(), None, None).why == "no counter here"


def test_a_random_state_changed_while_it_is_timed_is_found_though_put_back(cells, monkeypatch):
    state = torch.get_rng_state()
    restore = lambda: torch.set_rng_state(state)  # noqa: E731
    for name, deed in (("measure_time", lambda: torch.rand(1)), ("audited", restore)):
        real = getattr(cell, name)
        wrapped = lambda *a, real=real, deed=deed, **k: (real(*a, **k), deed())[0]  # noqa: E731
        monkeypatch.setattr(cell, name, wrapped)
    try:
        unmeasured(cells.run(HONEST), Status.WRONG, ".*torch's random state")
    finally:
        torch.set_rng_state(state)


def test_the_same_bits_are_tried_on_demand(cells):
    row = cells.variant(attending("return inner(q, k, v) * (1 + 1e-7 * (n % 2))"))
    assert cells.measure(row, timed=False).determinism is None
    assert cells.measure(row, timed=False, bits_s=1.0).determinism.repeats is False


FLASH, PRODUCT = "aten::_scaled_dot_product_flash_attention", "aten::bmm"
SWAPS = """
import builtins, weakref
class Attend:
    def __init__(self, problem):
        self.inner = right(problem)
        for restore in map(builtins.swapped, BUILT):
            weakref.finalize(self, restore if RESTORES else int)

    def __call__(self, *ends):
        while CALLED:
            builtins.swapped(CALLED.pop())
        return self.inner(*ends)
build = Attend
"""
WRONG = ("wrong", "it left changed what other variants share: torch's kernels")


def test_a_kernel_may_be_replaced_only_where_declared_when_built_till_the_end(cells, monkeypatch):
    kept = []

    def swapped(operator):
        library = torch.library.Library("aten", "IMPL", "CUDA")
        library.impl(operator.removeprefix("aten::"), lambda *_, **__: None, "CUDA")
        kept.append(library)
        return library._destroy

    monkeypatch.setattr("builtins.swapped", swapped, raising=False)
    for built, called, restores, swaps, end in (
        ([FLASH], [], True, [FLASH], ("measured", "")),
        ([FLASH], [], True, [], WRONG),
        ([FLASH, PRODUCT], [], False, [FLASH], WRONG),
        ([FLASH, PRODUCT], [], True, [FLASH], WRONG),
        ([], [FLASH], True, [FLASH], WRONG),
    ):
        told = f"BUILT, CALLED, RESTORES = {built}, {called}, {restores}\n"
        job = Job(cells.variant(SWAPS + told, swaps=swaps), cells.problem(), timed=False)
        record = worker._measured(cells.bench, job)["record"]
        while kept:
            kept.pop()._destroy()
        assert (record["status"], record["reason"]) == end


GATED = """
from impls.linear import gla
CHOSEN = {{"chunk": 16, "seed": 0, "gates": "input"}}
def build(problem):
    inner = gla.build(problem, **CHOSEN)
    def attend(q, k, v, g):
        {deed}
    return attend
def definition(problem):
    return gla.definition(problem, **CHOSEN)
"""


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("return inner(q, k, v, g=g)", None),
        ("return inner(q, k, v, g=g * 0.6931)", "the relative error of forward"),
        ("return inner(q, k, v, g=g.detach())", "the relative error of dg"),
        ("return inner(q, k, v, g=g.flip(2))", ".* moved when key"),
        ("g.data.mul_(2); return inner(q, k, v, g=g)", "it changed its input g"),
    ],
)
def test_an_input_that_comes_by_keyword_is_checked_as_q_k_and_v_are(cells, deed, reason):
    row = cells.variant(GATED.format(deed=deed), computes="gla", definition=True)
    record = cells.measure(row, cells.problem(phase="train", mask=Mask.parse("causal")))
    if reason is not None:
        return unmeasured(record, Status.WRONG, reason)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert set(record.error) == {"forward", "dq", "dk", "dv", "dg"}


def test_what_attnbench_itself_raises_names_its_own_line():
    with pytest.raises(TypeError) as raised:
        format.ms("a text")
    error = raised.value.with_traceback(raised.tb.tb_next)  # without the line of this test
    assert re.search(
        r"^it raised TypeError in attnbench's format\.py:\d+: ", failure(error)["reason"]
    )
