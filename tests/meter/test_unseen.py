"""Values that nobody has seen: how they differ, who can't know what of theirs is judged."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import make
from attnbench.meter import audit as unseen
from attnbench.meter.audit import UnseenJudge, _in_turn
from attnbench.meter.timed import Values
from impls.problem import Problem

LENGTH = 256
SMALL = Problem(heads=1, kv_heads=1, q_len=LENGTH, kv_len=LENGTH, head_dim=4, v_head_dim=4)


def test_they_are_the_same_rows_moved_along_the_tokens_with_every_channel_scaled():
    inputs, moved = make(SMALL, 0), set()
    for _ in range(4):
        for old, new in zip(inputs, unseen.unseen(inputs), strict=True):
            by = new.abs().amax(2, keepdim=True) / old.abs().amax(2, keepdim=True)
            assert bool(((by > 0.89) & (by < 1.11)).all())
            assert len(by.unique()) == by.numel()
            turns = [
                n for n in range(LENGTH) if torch.allclose(old.roll(n, 2).abs() * by, new.abs())
            ]
            moved |= set(turns)
            assert len(turns) == 1
    assert len(moved) > 1


# ---- seen and unseen in turn ---------------------------------------------------------------------


class Loaded:
    """In place of what is timed: keeps what was loaded, and who the clock asked for."""

    def __init__(self):
        self.given, self.run = [], lambda: None

    def load(self, values):
        self.given.append(values.inputs)

    def settle(self):
        """Nothing."""


class Asked:
    """A clock by which each call takes a second more."""

    def __init__(self):
        self.now = count(1.0)

    def samples(self, before, call, count):
        before()
        return [next(self.now) for _ in range(count)]


def in_turn(rounds):
    """Which calls were on values seen before, all else about them asserted."""
    timed, values, judged = Loaded(), Values(make(SMALL, 0), None), []
    judge = SimpleNamespace(output=lambda: judged.append(len(timed.given)))
    seen, new = _in_turn(timed, Asked(), values, rounds, judge)
    known = [torch.equal(given.q, values.inputs.q) for given in timed.given]
    for at, was in enumerate(known, 1):
        assert (at in seen, at in new, at in judged) == (was, not was, not was)
    places = {x.data_ptr() for given in timed.given for x in given}
    assert not places & {x.data_ptr() for x in values.inputs}
    return known


def test_each_kind_gets_as_many_calls_and_its_own_seconds():
    known = in_turn(12)
    assert (known.count(True), known.count(False)) == (12, 12)


def test_values_are_drawn_before_every_call_so_that_nothing_tells_the_kinds_apart(monkeypatch):
    drawn, real = [], unseen.unseen
    monkeypatch.setattr(unseen, "unseen", lambda inputs: drawn.append(1) or real(inputs))
    in_turn(3)
    assert len(drawn) == 6


def test_nobody_knows_which_call_is_on_values_seen_before():
    assert len({tuple(in_turn(12)) for _ in range(4)}) > 1


MS = 1e-3


LOOKS_FALSE = [MS] * 3, [2 * MS] * 3


def remembering(monkeypatch, *looks, seconds=MS):
    """The rounds of each look, the seconds of calls on values seen and unseen being given; and
    the least that is told."""
    given, rounds = iter(looks), []
    monkeypatch.setattr(unseen, "_in_turn", lambda *a: rounds.append(a[3]) or next(given))
    monkeypatch.setattr(unseen.UnseenJudge, "kept", lambda judge: rounds.append("judged"))
    timed = SimpleNamespace(unseen=None)
    least = unseen.check_remembers_nothing(timed, None, None, None, {}, seconds)
    return rounds, least


@pytest.mark.parametrize(
    ("seen", "new"),
    [
        ([MS] * 3, [1.4 * MS] * 3),  # not that much faster
        ([10e-6] * 3, [29e-6] * 3),  # not worth remembering for
    ],
)
def test_what_is_little_faster_on_values_seen_before_is_no_memory(monkeypatch, seen, new):
    assert remembering(monkeypatch, (seen, new)) == ([3, "judged"], min(new))


@pytest.mark.parametrize("new", [[1.1 * MS] * 12, [0.9 * MS] * 5 + [2 * MS] * 7])
def test_what_looks_like_a_memory_is_looked_at_again_at_length(monkeypatch, new):
    told = remembering(monkeypatch, LOOKS_FALSE, ([MS] * 12, new))  # five of twelve are too many
    assert told == ([3, 12, "judged"], min(new))


def test_of_a_dear_call_one_of_each_kind_is_enough_at_first(monkeypatch):
    assert remembering(monkeypatch, ([0.02], [0.02]), seconds=0.02) == ([1, "judged"], 0.02)


def test_what_is_faster_on_values_seen_before_in_every_look_remembers(monkeypatch):
    looks = LOOKS_FALSE, ([MS] * 12, [2 * MS] * 12), ([MS] * 24, [1.6 * MS] * 24)
    with pytest.raises(Wrong, match=r"it is 1\.6 times as fast on values that it has seen"):
        remembering(monkeypatch, *looks)


def test_a_machine_that_is_slow_for_two_looks_makes_no_memory(monkeypatch):
    calm = [MS] * 24, [MS] * 24
    told = remembering(monkeypatch, LOOKS_FALSE, ([MS] * 12, [2 * MS] * 12), calm)
    assert told == ([3, 12, 24, "judged"], MS)


# ---- what came of them ---------------------------------------------------------------------------


class Judging(UnseenJudge):
    """A judge who writes down what it would hold against the truth: names and rows."""

    def __init__(self, problem=SMALL, define=None, results=None):
        out = torch.arange(float(problem.q_len))[None, None, :, None].expand(1, 1, -1, 4)
        gradients = [out] * 3 if problem.gradients else []
        self.timed = SimpleNamespace(
            problem=problem,
            names=("forward", "dq", "dk", "dv")[: 1 + len(gradients)],
            call=SimpleNamespace(names=("dq", "dk", "dv")),
            unseen=(None, results or [out, *gradients]),
        )
        super().__init__(self.timed, define, {})
        self.held = []

    def _truth(self, values, rows, *, all=False):
        return dict.fromkeys(("forward", "dq", "dk", "dv"))

    def _check(self, name, got, want):
        self.held.append((name, tuple(got[0, 0, :, 0].tolist())))


def test_nobody_knows_the_rows_that_are_judged_nor_are_they_the_same_twice():
    judge = Judging()
    for _ in range(4):
        judge.output()
    assert [name for name, _ in judge.held] == ["forward"] * 4
    assert [len(rows) for _, rows in judge.held] == [unseen.ROWS] * 4
    assert len(set(judge.held)) == 4


def test_what_is_not_finite_in_a_row_that_is_not_judged_is_named(monkeypatch):
    results = [torch.zeros(1, 1, LENGTH, 4)]
    results[0][0, 0, 7, 1] = torch.nan
    judge = Judging(results=results)
    monkeypatch.setattr(judge, "_check_rows", lambda *_: None)
    with pytest.raises(Wrong, match="not finite in the output on values it had not seen: row 7 "):
        judge.output()


def test_nobody_knows_the_call_whose_gradients_are_judged():
    kept = set()
    for _ in range(20):
        judge = Judging()
        for call in range(12):
            judge.timed.unseen = (call, judge.timed.unseen[1])
            judge.output()
        kept.add(judge._kept[0])
    assert len(kept) > 1


def test_of_a_form_that_is_known_to_be_wrong_nothing_is_judged():
    judge = Judging()
    judge.timed.unseen = None
    judge.output()
    judge.kept()
    assert judge.held == []


def problem_of(scores, **changes):
    return SMALL.with_(q_len=scores // 1024, kv_len=1024, **changes)


@pytest.mark.parametrize(
    ("scores", "each", "once"),
    [
        (unseen.EACH_SCORES, 2, 0),
        (unseen.EACH_SCORES * 2, 0, 1),
        (unseen.ONE_SCORES, 0, 1),
        (unseen.ONE_SCORES * 2, 0, 0),
    ],
)
def test_a_definition_of_its_own_is_asked_of_every_call_or_of_one_or_where_it_is_dear_of_none(
    scores, each, once
):
    judge = Judging(problem_of(scores), define=lambda: None)
    judge.output(), judge.output()
    assert len(judge.held) == each
    judge.kept()
    assert len(judge.held) == each + once


@pytest.mark.parametrize(
    ("scores", "names"),
    [
        (unseen.GRADIENT_SCORES, ["forward", "dq", "dk", "dv"]),
        (unseen.GRADIENT_SCORES * 2, []),
    ],
)
def test_the_gradients_of_one_call_are_judged_in_every_row_where_they_are_affordable(scores, names):
    judge = Judging(problem_of(scores, phase="train"))
    judge.output()
    judge.held.clear()
    judge.kept()
    assert [name for name, _ in judge.held] == names
    assert all(len(rows) == judge.timed.problem.q_len for _, rows in judge.held)
