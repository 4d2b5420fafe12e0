"""Pairs in a worker: two variants, the floor under what can be told, one held, two folders."""

import importlib
import itertools
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from msgspec import structs

from attnbench.core.stats import LEAST_MARGIN, Comparison, StopRule, Verdict, paired
from attnbench.core.wire import plain
from attnbench.gate.findings import Wrong
from attnbench.meter import pairs
from attnbench.meter.cell import Implausible
from attnbench.meter.clocks import HostClock
from attnbench.meter.pairs import HeldVariant, ReadyCalls, compare_ready, floor_of, modules_of, two

RIGHT = "build = right"
CALLS = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        calls.append(1)
        {deed}
    return attend
"""
TWICE = CALLS.format(deed="inner(q, k, v); return inner(q, k, v)")
LIES_LATER = CALLS.format(deed="return inner(q, k, v) * (1 if len(calls) < 40 else 1.5)")
SEEDS = CALLS.format(
    deed="torch.manual_seed(len(calls)) if len(calls) > 40 else 0; return inner(q, k, v)"
)
INVERTED = "def build(problem):\n    return lambda q, k, v: v * 0\n"


def question(cells, a, b, **more):
    problem = cells.problem(q_len=64, kv_len=64)
    jobs = [{"variant": plain(cells.variant(x)), "problem": plain(problem)} for x in (a, b)]
    for sent, name in zip(jobs, "ab", strict=True):
        sent["variant"]["name"] = name
    return {"compare": jobs, "margin": 0.05, "floors": [], "budget_s": 3.0, **more}


def test_twice_the_work_is_slower(cells):
    answer = two(cells.bench, question(cells, RIGHT, TWICE))
    result = msgspec.convert(answer["comparison"], Comparison)
    assert result.verdict is Verdict.SLOWER
    assert 1.4 < result.ratio < 2.5
    assert len(result.a_s) == len(result.b_s) == result.n


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        ((RIGHT, INVERTED), "b: "),
        ((INVERTED, RIGHT), "did not move"),
        ((RIGHT, LIES_LATER), "b: while it was timed"),
        ((LIES_LATER, RIGHT), "a: while it was timed"),
        ((RIGHT, SEEDS), "random state"),
    ],
)
def test_a_side_that_is_wrong_makes_the_pairs_void_and_is_named(cells, sides, says):
    answer = two(cells.bench, question(cells, *sides))
    assert answer["stopped"]["status"] == "wrong" and "pairs" not in answer
    assert says in answer["stopped"]["why"]
    assert answer["spoiled"] is (INVERTED not in sides)


def test_a_side_that_replaces_torchs_kernels_is_not_paired(cells):
    given = question(cells, RIGHT, RIGHT)
    given["compare"][1]["variant"]["swaps"] = ["aten::_flash_attention_forward"]
    assert two(cells.bench, given)["stopped"]["status"] == "unsupported"


def scripted(logs, margin=0.01, **more):
    times = {"a_s": [0.002] * len(logs), "b_s": [0.002] * len(logs)}
    return structs.replace(paired(logs, margin, **more), **times)


@pytest.mark.slow
def test_the_margin_is_the_floor_of_calls_as_long(cells, monkeypatch):
    made = lambda a, b, rule, audit: scripted([0.0] * 40, rule.margin)  # noqa: E731
    monkeypatch.setattr(pairs, "compare_ready", made)
    monkeypatch.setattr(pairs, "floor_of", lambda ready, budget_s: {"floor": 0.07})
    for floors, margin in (
        ([{"call_s": 1e-4, "floor": 0.02}, {"call_s": 1.0, "floor": 0.5}], 0.02),
        ([{"call_s": 1e-4, "floor": 0.5}, {"call_s": 10.0, "floor": 0.002}], 0.5),
        ([{"call_s": 1e-4, "floor": 0.002}], 0.01),
        ([], 0.07),  # it is measured first
    ):
        answer = two(cells.bench, question(cells, RIGHT, TWICE, margin=None, floors=floors))
        assert answer["comparison"]["margin"] == pytest.approx(margin)


@pytest.mark.parametrize(
    ("logs", "floor", "apart"),
    [
        ([[0.0] * 40] * 18 + [[0.03] * 40, [-0.05] * 40], math.expm1(0.031), math.expm1(0.031)),
        ([[0.05 * (i % 9 - 4) + 0.01 for i in range(45)]] * 20, 0.0, math.expm1(0.01)),
    ],
)
def test_the_floor_is_how_far_intervals_lie_off_one(monkeypatch, logs, floor, apart):
    given = iter(logs)
    monkeypatch.setattr(pairs, "compare_ready", lambda *_: scripted(next(given), confidence=0.99))
    monkeypatch.setattr(pairs, "perf_counter", lambda: 0.0)
    result = floor_of(None)
    assert (result["trials"], result["call_s"]) == (20, 0.002)
    told = result["floor"], result["apart"]
    assert told == pytest.approx((floor, apart), rel=0.01, abs=1e-6)
    rules, now = [], itertools.count(0.0, 100.0)  # each takes longer than all of them may
    made = lambda a, b, rule: rules.append(rule) or scripted([0.0] * 40)  # noqa: E731
    monkeypatch.setattr(pairs, "compare_ready", made)
    monkeypatch.setattr(pairs, "perf_counter", lambda: next(now))
    assert floor_of(None, 4.0)["trials"] == 8
    assert rules == [StopRule(LEAST_MARGIN, cap=640, budget_s=0.5)] * 8


class StandIn:
    calls = 0

    def run(self):
        self.calls += 1

    def settle(self):
        """Nothing, and None."""

    before = wrong = settle


class StandInReady:
    """A variant that has passed the gate."""

    clock, timed = staticmethod(HostClock), staticmethod(StandIn)

    def __init__(self, label="it"):
        variant, problem = SimpleNamespace(label=label), SimpleNamespace(device="cpu")
        self.job, self.shared = SimpleNamespace(variant=variant, problem=problem), label


@pytest.fixture
def looked(monkeypatch):
    """Pairs of one call a side; returns what is checked afterwards: which side, at which time."""
    seen = []

    def compare(a, b, rule):
        a.sample(), b.sample()
        times = {"a_s": [0.002, 0.003, 0.010], "b_s": [0.004, 0.005, 0.9]}
        return structs.replace(paired([0.0] * 100, rule.margin), **times)

    def looked(audit=True):
        seen.clear()
        compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01), audit=audit)
        return seen

    monkeypatch.setattr(pairs, "compare", compare)
    monkeypatch.setattr(ReadyCalls, "audit", lambda side, s: seen.append((side.label, s)))
    monkeypatch.setattr(pairs.watch, "left_changed", seen.append)
    return looked


def test_both_sides_are_audited_on_demand_with_the_medians_of_their_pairs(looked, monkeypatch):
    assert looked() == ["a", ("a", 0.003), ("b", 0.005), "a"]
    assert looked(audit=False) == []
    for before in ([], [""]):  # what both share is changed before they are audited, and after
        reports = iter([*before, "it replaced time.time"])
        monkeypatch.setattr(
            pairs.watch, "left_changed", lambda shared, reports=reports: next(reports)
        )
        with pytest.raises(Wrong, match=r"^a or b: it replaced time\.time$"):
            looked()


@pytest.mark.parametrize(("spent", "refused"), [(12.0, False), (14.0, True)])
def test_more_processors_than_were_given_make_the_pairs_void(looked, monkeypatch, spent, refused):
    monkeypatch.setattr(pairs, "perf_counter", iter([0.0, 10.0]).__next__)
    monkeypatch.setattr(pairs, "demanded", iter([0.0, spent]).__next__)
    busy = "^a or b: while pairs were taken 1.4 processors were busy, not 1$"
    with pytest.raises(Wrong, match=busy) if refused else nullcontext():
        looked()


def test_a_time_is_believed_that_an_audit_bears_out(monkeypatch):
    answers = []

    def audited(ready, timed, clock, seconds):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return None, answer

    monkeypatch.setattr(pairs, "audited", audited)
    for found, left, says in (
        ((1e-3, 0.5), 1, None),  # one look of three is enough
        ((0.5, 0.5, 2.4e-3), 0, None),
        ((0.5, 0.5, 2.6e-3), 0, "it took 1 ms in pairs and 2.6 ms while something else was looked"),
        ((Implausible("it went on working"),), 0, "it went on working"),
    ):
        answers[:] = found
        with pytest.raises(Wrong, match=f"^it: {says}") if says else nullcontext():
            ReadyCalls(StandInReady()).audit(1e-3)
        assert len(answers) == left


def hold(variant="matmul", **more):
    sizes = {"heads": 1, "kv_heads": 1, "q_len": 16, "kv_len": 16, "head_dim": 8, "v_head_dim": 8}
    problem = plain(pairs.Problem(**sizes))
    return {"hold": {"variant": variant, "problem": problem, "seed": 0, "budget_s": 0.1, **more}}


def test_a_variant_that_is_held_gives_as_many_samples_as_are_asked_for(cells):
    held = HeldVariant()
    assert held.reply(cells.bench, hold()) == {"held": True}
    assert held.reply(None, {"fresh": True}) == {"fresh": True}
    seconds = held.reply(None, {"sample": 3})["seconds"]
    assert len(seconds) == 3 and all(0 < s < 1 for s in seconds)


@pytest.mark.slow
def test_a_variant_that_can_not_be_held_is_refused_in_a_sentence(cells, tmp_path):
    for variant in ("nothere", "sdpa.cudnn", "chunked?nothere=1"):
        assert HeldVariant().reply(cells.bench, hold(variant)).keys() & {"refused"}
    file = tmp_path / "rows.py"
    row = "Variant(name='x', title='x', family='x', operator='softmax', build=':build')"
    wrong = f"{INVERTED}\nfrom impls.spec import Variant\nROWS = [{row}]\n"
    for code, status in (("import nowhere\n", "failed"), (wrong, "wrong")):
        file.write_text(code)
        answer = HeldVariant().reply(cells.bench, hold("x", tables=[str(file)]))
        assert answer["status"] == status and answer["refused"]


def test_inside_the_block_the_second_folder_is_there_and_then_the_first(tmp_path, monkeypatch):
    name, (a, b) = "beside_planted", (tmp_path / "a", tmp_path / "b")
    for folder in (a, b):
        (folder / name).mkdir(parents=True)
        who = f"WHO = {folder.name!r}\n"
        late = f"def later():\n    from {name} import late\n    return late.WHO\n"
        (folder / name / "__init__.py").write_text(who + late)
        (folder / name / "late.py").write_text(who)
    monkeypatch.syspath_prepend(str(a))
    package = lambda: importlib.import_module(name)  # noqa: E731
    first, loaded = package(), {}
    swapped = lambda: modules_of(str(b), str(a), loaded)  # noqa: E731
    assert first.later() == "a"  # loaded now, and gone inside
    stays = {name: sys.modules[name] for name in ("torch", "attnbench", "attnbench.meter.pairs")}
    with swapped():
        second = package()
        assert (second.WHO, second.later(), sys.modules[name]) == ("b", "b", second)
        assert {name: sys.modules[name] for name in stays} == stays
    assert package() is first and first.later() == "a"
    with swapped():
        assert package() is second  # not loaded again
    with pytest.raises(ZeroDivisionError), swapped():
        1 / 0  # noqa: B018
    assert package() is first
    assert (str(a) in sys.path, str(b) in sys.path) == (True, False)
    for one in (name, f"{name}.late"):
        del sys.modules[one]
