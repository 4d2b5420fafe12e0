"""Pairs in a worker: two variants, the floor under what can be told, one held, two folders."""

import importlib
import itertools
import math
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from attnbench.core.stats import LEAST_MARGIN, Pairs, StopRule, Verdict, paired
from attnbench.gate.findings import Wrong
from attnbench.meter import pairs
from attnbench.meter.cell import Implausible
from attnbench.meter.clocks import HostClock
from attnbench.meter.pairs import (
    HeldVariant,
    ReadyCalls,
    compare_ready,
    floor_of,
    modules_of,
    two,
)

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
SEEDS = CALLS.format(deed="torch.manual_seed(1) if len(calls) > 40 else 0; return inner(q, k, v)")
INVERTED = "def build(problem):\n    return lambda q, k, v: v * 0\n"


def question(cells, a, b, **more):
    problem = cells.problem(q_len=64, kv_len=64)
    jobs = [{"variant": cells.variant(x).to_dict(), "problem": problem.to_dict()} for x in (a, b)]
    for sent, name in zip(jobs, "ab", strict=True):
        sent["variant"]["name"] = name
    return {"compare": jobs, "margin": 0.05, "floors": [], "budget_s": 3.0, **more}


def test_twice_the_work_is_slower(cells):
    answer = two(cells.bench, question(cells, RIGHT, TWICE))
    assert list(answer["pairs"]["samples_s"]) == ["a", "b"]
    result = Pairs.from_dict(answer["pairs"])
    assert result.comparison.verdict is Verdict.SLOWER
    assert 1.4 < result.comparison.ratio < 2.5
    assert len(result.a_s) == result.comparison.n


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
    stopped = two(cells.bench, given)["stopped"]
    assert stopped["status"] == "unsupported"
    assert "no other variant can be timed beside it" in stopped["why"]


def scripted(logs, **more):
    return Pairs(paired(logs, 0.01, **more), [0.002] * len(logs), [0.002] * len(logs))


@pytest.mark.parametrize(
    ("floors", "margin"),
    [
        ([{"call_s": 1e-4, "floor": 0.02}, {"call_s": 1.0, "floor": 0.5}], 0.02),
        ([{"call_s": 1e-4, "floor": 0.5}, {"call_s": 10.0, "floor": 0.002}], 0.5),
        ([{"call_s": 1e-4, "floor": 0.002}], 0.01),
        ([], 0.07),  # it is measured first
    ],
)
def test_the_margin_is_the_floor_of_calls_as_long(cells, monkeypatch, floors, margin):
    monkeypatch.setattr(pairs, "floor_of", lambda ready, budget_s: {"floor": 0.07})
    answer = two(cells.bench, question(cells, RIGHT, TWICE, margin=None, floors=floors))
    assert answer["pairs"]["comparison"]["margin"] == pytest.approx(margin)


# ---- the floor -----------------------------------------------------------------------------------


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


# ---- the calls of one side -----------------------------------------------------------------------


class StandIn:
    """In place of what is timed."""

    calls = 0

    def run(self):
        self.calls += 1

    def settle(self):
        """Nothing, and None."""

    before = wrong = settle


class StandInReady:
    """A variant that has passed the gate; ``alive`` notes which of its timed calls were kept."""

    clock = staticmethod(HostClock)

    def __init__(self, label="it"):
        problem = SimpleNamespace(device="cpu")
        self.job = SimpleNamespace(variant=SimpleNamespace(label=label), problem=problem)
        self.made, self.alive, self.shared = [], [], {"settings": label}

    def timed(self):
        self.alive.append([one() is not None for one in self.made])
        new = StandIn()
        self.made.append(weakref.ref(new))
        return new


def test_earlier_tensors_are_kept_and_fresh_ones_are_warmed_up(monkeypatch):
    shown, one = [], StandInReady()
    monkeypatch.setattr(pairs, "prepare", lambda clock, timed: shown.append((clock, timed.calls)))
    calls = ReadyCalls(one)
    for _ in range(4):
        calls.fresh()
    assert [alive[-2:] for alive in one.alive[2:]] == [[True, True]] * 3
    assert shown == [(calls.clock, 0)] * 4  # a clock that replays records the call first
    assert calls._timed.calls == ReadyCalls.WARM


@pytest.fixture
def looks(monkeypatch):
    """Pairs of one call a side; returns what is checked afterwards: which side, at which time."""
    seen = []

    def compare(a, b, rule):
        a.sample(), b.sample()
        return Pairs(paired([0.0] * 100, rule.margin), [0.002, 0.003, 0.010], [0.004, 0.005, 0.9])

    audit = lambda side, s: seen.append((side.ready.job.variant.label, s))  # noqa: E731
    monkeypatch.setattr(pairs, "compare", compare)
    monkeypatch.setattr(ReadyCalls, "audit", audit)
    monkeypatch.setattr(pairs.watch, "said", lambda shared: seen.append(shared["settings"]))
    return seen


def test_both_sides_are_audited_on_demand_with_the_medians_of_their_pairs(looks):
    compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01), audit=True)
    assert looks == ["a", ("a", 0.003), ("b", 0.005), "a"]
    compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01))
    assert len(looks) == 4


@pytest.mark.parametrize("when", [0, 1])
def test_what_both_share_and_one_changed_is_reported_of_both(looks, monkeypatch, when):
    reports = iter([None] * when + ["it replaced time.time"])
    monkeypatch.setattr(pairs.watch, "said", lambda shared: next(reports))
    with pytest.raises(Wrong, match=r"^a or b: it replaced time\.time$"):
        compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01), audit=True)
    assert len(looks) == 2 * when  # the second check comes after both were audited


@pytest.mark.parametrize(("spent", "refused"), [(12.0, False), (14.0, True)])
def test_more_processors_than_were_given_make_the_pairs_void(looks, monkeypatch, spent, refused):
    monkeypatch.setattr(pairs, "perf_counter", iter([0.0, 10.0]).__next__)
    monkeypatch.setattr(pairs, "demanded", iter([0.0, spent]).__next__)
    monkeypatch.setattr(pairs.torch, "get_num_threads", lambda: 1)
    busy = "^a or b: while pairs were taken 1.4 processors were busy, not 1$"
    with pytest.raises(Wrong, match=busy) if refused else nullcontext():
        compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01), audit=True)


@pytest.mark.parametrize(
    ("found", "left", "says"),
    [
        ((1e-3, 0.5), 1, None),  # one look of three is enough
        ((0.5, 0.5, 2.4e-3), 0, None),
        ((0.5, 0.5, 2.6e-3), 0, "it took 1 ms in pairs and 2.6 ms while something else was looked"),
        ((Implausible("it went on working"),), 0, "it went on working"),
    ],
)
def test_a_time_is_believed_that_an_audit_bears_out(monkeypatch, found, left, says):
    answers = iter(found)

    def audited(ready, timed, clock, seconds):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return None, answer

    monkeypatch.setattr(pairs, "audited", audited)
    with pytest.raises(Wrong, match=f"^it: {says}") if says else nullcontext():
        ReadyCalls(StandInReady()).audit(1e-3)
    assert len(list(answers)) == left


# ---- one side held for another process -----------------------------------------------------------


def hold(variant="matmul", **changes):
    small = {"heads": 1, "kv_heads": 1, "q_len": 16, "kv_len": 16, "head_dim": 8, "v_head_dim": 8}
    problem = pairs.Problem(**{**small, **changes}).to_dict()
    return {"hold": {"variant": variant, "problem": problem, "seed": 0, "budget_s": 0.1}}


def test_a_variant_that_is_held_gives_as_many_samples_as_are_asked_for(cells):
    held = HeldVariant()
    assert held.answer(cells.bench, hold()) == {"held": True}
    assert held.answer(None, {"fresh": True}) == {"fresh": True}
    seconds = held.answer(None, {"sample": 3})["seconds"]
    assert len(seconds) == 3 and all(0 < s < 1 for s in seconds)


def test_a_variant_that_can_not_be_held_is_refused_in_a_sentence(cells, tmp_path):
    for variant, says in (
        ("nothere", "there is no variant 'nothere'"),
        ("sdpa.cudnn", "sdpa.cudnn runs on cuda"),
        ("chunked?nothere=1", "nothere"),
    ):
        assert says in HeldVariant().answer(cells.bench, hold(variant))["refused"]
    file, asked = tmp_path / "rows.py", hold("x")
    asked["hold"]["tables"] = [str(file)]
    row = "Variant(name='x', title='x', family='x', computes='softmax', build=':build')"
    for code, status, says in (
        ("import nowhere\n", "failed", "nowhere"),
        (f"{INVERTED}\nfrom impls.spec import Variant\nROWS = [{row}]\n", "wrong", "wrong: "),
    ):
        file.write_text(code)
        answer = HeldVariant().answer(cells.bench, asked)
        assert answer["status"] == status and says in answer["refused"]


# ---- two folders with modules of the same names --------------------------------------------------

NAME = "beside_planted"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders that say who they are; the first is where this process looks."""
    for who in "ab":
        package = tmp_path / who / NAME
        package.mkdir(parents=True)
        late = f"def later():\n    from {NAME} import late\n    return late.WHO\n"
        (package / "__init__.py").write_text(f"WHO = {who!r}\n{late}")
        (package / "late.py").write_text(f"WHO = {who!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    importlib.invalidate_caches()
    yield str(tmp_path / "a"), str(tmp_path / "b")
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


def package():
    return importlib.import_module(NAME)


def test_inside_the_block_the_second_folder_is_there_and_afterwards_the_first(folders):
    first, loaded = package(), {}
    swapped = lambda: modules_of(folders[1], folders[0], loaded)  # noqa: E731
    assert first.later() == "a"  # loaded now, and gone inside
    stays = {name: sys.modules[name] for name in ("torch", "attnbench", "attnbench.meter.pairs")}
    with swapped():
        second = package()
        assert (second.WHO, second.later(), sys.modules[NAME]) == ("b", "b", second)
        assert {name: sys.modules[name] for name in stays} == stays
    assert package() is first and first.later() == "a"
    with swapped():
        assert package() is second  # not loaded again
    with pytest.raises(ZeroDivisionError), swapped():
        1 / 0  # noqa: B018
    assert package() is first
    assert (folders[0] in sys.path, folders[1] in sys.path) == (True, False)
