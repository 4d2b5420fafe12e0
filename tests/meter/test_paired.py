"""Sides of pairs, with a stand-in for what is timed: what is checked, warmed, kept, looked at."""

import weakref
from types import SimpleNamespace

import pytest

from attnbench.core.stats import Pairs, StopRule
from attnbench.core.stats import paired as judged
from attnbench.gate.findings import Wrong
from attnbench.meter import pairs
from attnbench.meter.cell import Implausible
from attnbench.meter.clocks import HostClock
from attnbench.meter.pairs import ReadyCalls, compare_ready


class StandIn:
    """In place of what is timed: one of its calls gives something else, which is known only once
    it has been taken in."""

    def __init__(self, lies):
        self.lies, self.calls, self.last, self.off = lies, 0, False, False

    def before(self):
        self.settle()

    def run(self):
        self.calls += 1
        self.last = self.calls == self.lies

    def settle(self):
        self.off, self.last = self.off or self.last, False

    def wrong(self):
        return "while it was timed it lied" if self.off else None


class StandInReady:
    """A variant that has passed the gate; ``made`` is what was made of it to be timed."""

    def __init__(self, label="it", lies=None):
        self.job = SimpleNamespace(
            variant=SimpleNamespace(label=label), problem=SimpleNamespace(device="cpu")
        )
        self.lies, self.made, self.alive, self.shared = lies, [], [], {"settings": label}

    def clock(self):
        return HostClock()

    def timed(self):
        self.alive.append([one() is not None for one in self.made])
        new = StandIn(self.lies)
        self.made.append(weakref.ref(new))
        return new


def test_the_last_call_is_taken_in_before_a_side_is_believed():
    calls = ReadyCalls(StandInReady(lies=1))
    calls.sample()
    with pytest.raises(Wrong, match=r"^it: while it was timed it lied$"):
        calls.check()


def test_earlier_tensors_keep_their_place_while_the_next_are_made():
    ready = StandInReady()
    calls = ReadyCalls(ready)
    for _ in range(4):
        calls.fresh()
    assert [alive[-2:] for alive in ready.alive[2:]] == [[True, True]] * 3
    assert len(ready.alive) == 5


def test_fresh_tensors_are_shown_to_the_clock_and_warmed_up(monkeypatch):
    shown = []
    monkeypatch.setattr(pairs, "prepare", lambda clock, timed: shown.append((clock, timed.calls)))
    calls = ReadyCalls(StandInReady())
    calls.fresh()
    assert shown == [(calls.clock, 0)]  # a clock that replays records the call before it is timed
    assert calls._timed.calls == ReadyCalls.WARM


# ---- two sides -----------------------------------------------------------------------------------


@pytest.fixture
def one_pair(monkeypatch):
    """Pairs that take one call of each side, and say a hundred times what they took."""

    def compare(a, b, rule):
        a.sample(), b.sample()
        return Pairs(judged([0.0] * 100, rule.margin), [0.002, 0.003, 0.010], [0.004, 0.005, 0.9])

    monkeypatch.setattr(pairs, "compare", compare)
    return compare


@pytest.mark.parametrize("lies", [(1, None), (None, 1)])
def test_each_side_is_checked_after_the_last_pair(one_pair, lies):
    sides = [StandInReady(label, n) for label, n in zip("ab", lies, strict=True)]
    liar = "ab"[lies.index(1)]
    with pytest.raises(Wrong, match=f"^{liar}: while it was timed it lied$"):
        compare_ready(*sides, StopRule(0.01))


@pytest.fixture
def looks(monkeypatch, one_pair):
    """What is looked at after the pairs: of whom, at which time."""
    seen = []
    monkeypatch.setattr(
        ReadyCalls, "audit", lambda side, s: seen.append((side.ready.job.variant, s))
    )
    monkeypatch.setattr(pairs.watch, "said", lambda shared: seen.append(shared["settings"]))
    return seen


def test_both_sides_are_looked_at_with_the_medians_of_their_pairs(looks):
    a, b = StandInReady("a"), StandInReady("b")
    compare_ready(a, b, StopRule(0.01), audit=True)
    assert looks == ["a", (a.job.variant, 0.003), (b.job.variant, 0.005), "a"]


@pytest.mark.parametrize("when", [0, 1])
def test_what_both_share_and_one_changed_is_said_of_both(looks, monkeypatch, when):
    said = iter([None] * when + ["it replaced time.time"])
    monkeypatch.setattr(pairs.watch, "said", lambda shared: next(said))
    with pytest.raises(Wrong, match=r"^a or b: it replaced time\.time$"):
        compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01), audit=True)
    assert len(looks) == 2 * when  # the second look comes after both were looked at


def test_where_nobody_asks_for_it_nothing_is_looked_at(looks):
    compare_ready(StandInReady("a"), StandInReady("b"), StopRule(0.01))
    assert looks == []


@pytest.mark.parametrize(("spent", "refused"), [(12.0, False), (14.0, True)])
def test_more_processors_than_were_given_make_the_pairs_void(looks, monkeypatch, spent, refused):
    now, demanded = iter([0.0, 10.0]), iter([0.0, spent])
    monkeypatch.setattr(pairs, "perf_counter", lambda: next(now))
    monkeypatch.setattr(pairs, "demanded", lambda: next(demanded))
    monkeypatch.setattr(pairs.torch, "get_num_threads", lambda: 1)
    sides = StandInReady("a"), StandInReady("b")
    if refused:
        with pytest.raises(
            Wrong, match=r"^a or b: while pairs were taken 1\.4 processors were busy, not 1"
        ):
            compare_ready(*sides, StopRule(0.01), audit=True)
    else:
        compare_ready(*sides, StopRule(0.01), audit=True)
    assert len(looks) == (1 if refused else 4)


# ---- looked at otherwise than by the clock -------------------------------------------------------


def looked_at(monkeypatch, *found):
    """The side of pairs in which a call took a millisecond, and in each look what is given."""
    answers = iter(found)

    def audited(ready, timed, clock, seconds):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return None, answer

    monkeypatch.setattr(pairs, "audited", audited)
    ReadyCalls(StandInReady()).audit(1e-3)
    return list(answers)


def test_a_time_that_one_look_of_three_bears_out_is_believed(monkeypatch):
    assert looked_at(monkeypatch, 1e-3, 0.5) == [0.5]
    assert looked_at(monkeypatch, 0.5, 0.5, 2.4e-3) == []


def test_a_time_that_no_look_bears_out_is_not_believed(monkeypatch):
    said = "^it: it took 1 ms in pairs and 2.6 ms while something else was looked at$"
    with pytest.raises(Wrong, match=said):
        looked_at(monkeypatch, 0.5, 0.5, 2.6e-3)


@pytest.mark.parametrize("why", [Wrong("it remembers"), Implausible("it went on working")])
def test_what_a_look_finds_is_said_of_the_side(monkeypatch, why):
    with pytest.raises(Wrong, match=f"^it: {why}$"):
        looked_at(monkeypatch, why)
