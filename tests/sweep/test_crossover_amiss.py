"""The search for a crossover where lengths fail, nothing is decided, or time runs out."""

import pytest

from attnbench.core.record import Status
from attnbench.core.stats import paired
from attnbench.features.crossover.search import A, CrossoverSearch, LengthRatio, octaves, seek
from tests.sweep.crossing import LONG, answered, polynomial, run, silent


def failing(ask, status, at):
    """The same world, in which some lengths fail."""

    def asked(length, left_s):
        if at(length):
            return LengthRatio(length, None, status, "one: it failed")
        return ask(length, left_s)

    return asked


CROSSING = silent(polynomial(0, 0, 1.0), polynomial(0, 555, 0))


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.WRONG])
def test_beyond_a_length_that_fails_no_other_is_tried(status):
    search, asked = run(failing(CROSSING, status, lambda n: n >= 4096))
    assert max(asked) == 4096 and search.end.length == 4096
    (one,) = answered(search).crossovers()
    assert one.low <= 555 <= one.high and one.tight


def test_below_a_length_that_fails_it_is_looked_for_too():
    search, asked = run(failing(CROSSING, Status.OUT_OF_MEMORY, lambda n: n >= 900))
    (one,) = answered(search).crossovers()
    assert one.low <= 555 <= one.high and one.tight
    assert asked[4:7] == [1024, 768, 896] and search.end.length == 960
    _, asked = run(failing(CROSSING, Status.OUT_OF_MEMORY, lambda n: n > 512))
    assert asked == [64, 128, 256, 512, 1024, 768]


def test_where_the_shortest_is_wrong_longer_ones_are_tried_and_where_memory_ends_they_are_not():
    search, asked = run(failing(CROSSING, Status.WRONG, lambda n: n < 256))
    assert asked[:3] == [64, 128, 256] and search.end is None
    assert len(answered(search).crossovers()) == 1
    search, asked = run(failing(CROSSING, Status.OUT_OF_MEMORY, lambda n: True))
    assert asked == [64] and search.end.length == 64


def test_lengths_between_that_fail_leave_the_bracket_wide_after_two_tries():
    search, asked = run(failing(CROSSING, Status.FAILED, lambda n: 512 < n < 1024))
    (one,) = answered(search).crossovers()
    assert (one.low, one.high, one.tight) == (512, 1024, False)
    assert len([n for n in asked if 512 < n < 1024]) == 2


def undecided(*_):
    return paired([0.3, -0.3] * 20, 0.01)


def test_between_leaders_what_is_undecided_is_looked_into_and_at_the_edge_it_is_not():
    search = CrossoverSearch(LONG)
    slower, faster = paired([0.5] * 40, 0.01), paired([-0.5] * 40, 0.01)
    for length in octaves(LONG):
        said = undecided() if length in (64, 512) else slower if length < 512 else faster
        search.hear(LengthRatio(length, said))
    assert [(gap.rungs[0], gap.changes) for gap in search.gaps()] == [(272, True), (544, True)]


def test_changes_of_leader_come_before_the_ends_of_ties_and_of_them_the_widest_and_shortest():
    search = CrossoverSearch(LONG)
    logs = {64: 0.0, 128: 0.5, 192: -0.5, 256: -0.5, 512: 0.5, 1024: -0.5, 2048: -0.5, 4096: 0.0}
    for length, log_ratio in logs.items():
        search.hear(LengthRatio(length, paired([log_ratio] * 40, 0.01)))
    order = [(gap.rungs[0], gap.changes) for gap in search.gaps()]
    assert order == [(272, True), (544, True), (144, True), (2176, False), (80, False)]


def test_a_lead_that_may_be_chance_among_many_looks_is_none():
    """Of forty pairs 31 lie beyond the margin: by chance once in 1,400 times, on either side."""
    weak = paired([0.02] * 31 + [0.0] * 9, 0.01)
    alone = CrossoverSearch(LONG)
    alone.hear(LengthRatio(64, weak))
    assert [look.leader for look in alone.looks] == [A]
    among = CrossoverSearch(LONG)
    for length in LONG[:40]:
        among.hear(LengthRatio(length, weak if length == 64 else paired([0.0] * 40, 0.01)))
    assert {look.leader for look in among.looks} == {""}


class Clock:
    """Looks take as long as they are told to."""

    def __init__(self, ask, took):
        self.at, self._ask, self._took = 0.0, ask, took

    def __call__(self):
        return self.at

    def ask(self, length, left_s):
        self.at += min(self._took(length), left_s)
        return self._ask(length, left_s) if self._took(length) <= left_s else None


def timed(took, seconds, ask=CROSSING):
    clock, search = Clock(ask, took), CrossoverSearch(LONG)
    return search, [look.length for look, _ in seek(search, clock.ask, seconds, clock)], clock


def test_a_budget_that_is_spent_leaves_the_bracket_so_far():
    search, asked, clock = timed(lambda n: 1e-6 if n in octaves(LONG) else 4.0, 7)
    assert clock.at <= 7 and asked[:9] == octaves(LONG) and len(asked) == 10
    (one,) = answered(search).crossovers()
    assert one.low <= 555 <= one.high and not one.tight


def test_a_look_is_not_begun_that_is_expected_to_end_too_late():
    _, asked, clock = timed(lambda n: 0.01 * n * n / 64, 45, silent(lambda n: n, lambda n: 2 * n))
    assert asked == [64, 128, 256] and clock.at < 45
    _, asked, _ = timed(lambda n: 1e6, 45)
    assert asked == []
