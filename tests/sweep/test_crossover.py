"""The search for where one overtakes the other, on made-up worlds: times are closed forms."""

import math
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest

from attnbench import pairs
from attnbench.answer.crossover import Answer
from attnbench.comparison import paired
from attnbench.record import Status
from attnbench.sweep.crossover import (
    A,
    B,
    Look,
    Search,
    ladder,
    octaves,
    seek,
)

LONG = ladder(64, 16384)


def polynomial(a, b, c):
    return lambda n: a + b * n + c * n * n


def silent(time_a, time_b, margin=0.01):
    """A world without noise."""

    def ask(length, left_s):
        ratio = math.log(time_b(length) / time_a(length))
        return Look(length, paired([ratio] * 40, margin))

    return ask


def noisy(time_a, time_b, seed, noise=0.05, margin=0.01, cap=640):
    """Calls scatter and the machine drifts: real pairs, of made-up calls."""
    chance = random.Random(seed)
    machine = SimpleNamespace(slow=0.0)

    def side(seconds):
        def sample():
            machine.slow += chance.gauss(0, 0.01)
            return seconds * math.exp(machine.slow + noise * chance.gauss(0, 1))

        return SimpleNamespace(fresh=lambda: None, sample=sample)

    def ask(length, left_s):
        rule = pairs.Rule(margin, cap=cap)
        taken = pairs.compare(side(time_a(length)), side(time_b(length)), rule, chance)
        return Look(length, taken.comparison)

    return ask


def run(ask, rungs=LONG, seconds=1e9):
    search = Search(rungs)
    asked = [look.length for look, _ in seek(search, ask, seconds)]
    assert len(asked) == len(set(asked)) and set(asked) <= set(rungs)
    return search, asked


def answered(search):
    return Answer("one", "other", "tokens", (search.rungs[0], search.rungs[-1]), search)


# ---- lengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ends", [(64, 16384), (1, 4096), (100, 1000), (1000, 1001), (5000, 70_001)]
)
def test_rungs_go_from_end_to_end_and_are_a_sixteenth_apart_or_sixteen_tokens(ends):
    rungs = ladder(*ends)
    assert (rungs[0], rungs[-1]) == ends
    for low, high in pairwise(rungs):
        assert 0 < high - low <= max(16, low / 16)
    inner = rungs[1:-1]
    assert all(n % 16 == 0 for n in inner) and all(n % 64 == 0 for n in inner if n >= 1024)
    powers = {1 << k for k in range(4, 20)}
    assert {n for n in powers if ends[0] < n < ends[1]} <= set(rungs)


def test_octaves_are_the_powers_of_two_and_both_ends():
    assert octaves(LONG) == [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert octaves(ladder(100, 1000)) == [100, 128, 256, 512, 1000]
    assert octaves([192, 320, 448]) == [192, 320, 448]


# ---- what is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [70, 100, 555, 1024, 1500, 9999, 16_000])
def test_a_crossover_is_found_to_a_sixteenth_in_few_looks(truth):
    """n² against truth · n: they are equal at the truth."""
    search, asked = run(silent(polynomial(0, 0, 1.0), polynomial(0, truth, 0)))
    (one,) = answered(search).crossovers()
    assert one.low <= truth <= one.high and one.tight
    assert (one.before, one.after) == ("one", "other")
    assert one.high - one.low <= 2 * max(16, truth / 16)
    assert len(asked) <= len(octaves(LONG)) + (8 if one.ties else 4)


def test_who_is_a_and_who_is_b_does_not_matter():
    one, other = polynomial(3000, 0, 0.01), polynomial(9000, 1, 0)
    for first, second, names in ((one, other, ("one", "other")), (other, one, ("other", "one"))):
        (found,) = answered(run(silent(first, second))[0]).crossovers()
        root = 50 + math.sqrt(50**2 + 600_000)  # 0.01 n² - n - 6000 = 0
        assert found.low <= root <= found.high
        assert (found.before, found.after) == names


def test_lengths_where_they_can_not_be_told_apart_are_ties_and_their_ends_are_tight():
    """(n/1000)^0.1 is within a hundredth of one from 905 to 1,105."""
    search, _ = run(silent(lambda n: n**0.1, lambda n: 1000**0.1))
    (one,) = answered(search).crossovers()
    edge = 1.01**10
    first, last = one.ties
    assert one.low < 1000 / edge <= first <= last <= 1000 * edge < one.high
    assert first - one.low <= 32 and one.high - last <= 64 and one.tight


def test_where_ties_end_and_one_begins_to_lead_is_found_to_a_sixteenth_too():
    search, _ = run(silent(lambda n: 1.0, lambda n: 1.0 if n < 700 else 1.5))
    ties, leads = answered(search).stretches()
    assert (ties.leader, ties.last, leads.first) == ("", 672, 704)
    assert answered(search).crossovers() == []


def test_several_crossovers_are_each_found():
    """A wave: equal at 128·√2·4ᵏ."""
    wave = lambda n: math.exp(0.3 * math.sin(math.pi * (math.log2(n) - 7.5) / 2))  # noqa: E731
    search, _ = run(silent(lambda n: 1.0, wave))
    found = answered(search).crossovers()
    truths = [2**7.5, 2**9.5, 2**11.5, 2**13.5]
    assert [one.low <= truth <= one.high for one, truth in zip(found, truths, strict=True)] == [
        True
    ] * 4
    assert [one.after for one in found] == ["one", "other", "one", "other"]
    assert all(one.tight for one in found)


def test_without_a_crossover_nothing_but_the_octaves_is_looked_at():
    for factor in (0.5, 1.0, 2.0):
        search, asked = run(silent(lambda n: n, lambda n, factor=factor: factor * n))
        assert asked == octaves(LONG)
        assert answered(search).crossovers() == []


def test_a_range_of_two_neighbours_is_a_bracket_already():
    search, asked = run(silent(polynomial(0, 0, 1.0), polynomial(0, 70, 0)), [64, 80])
    (one,) = answered(search).crossovers()
    assert asked == [64, 80] and one.tight and (one.low, one.high) == (64, 80)


def test_rungs_that_are_missing_make_the_bracket_wider_and_it_is_tight_nevertheless():
    search, _ = run(silent(polynomial(0, 0, 1.0), polynomial(0, 555, 0)), [64, 512, 768, 1024])
    (one,) = answered(search).crossovers()
    assert (one.low, one.high, one.tight) == (512, 768, True)


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 110), marks=pytest.mark.slow)])
def test_the_bracket_holds_the_truth_however_the_machine_scatters_and_drifts(seeds):
    """a + bn + cn² against another: where they are equal is known."""
    missed = 0
    for seed in seeds:
        chance = random.Random(seed)
        truth, start = chance.uniform(100, 12_000), chance.uniform(100, 10_000)
        steep = chance.uniform(0.01, 1.0)
        one = polynomial(start, 0, steep)
        other = polynomial(start + steep * truth * truth / 2, steep * truth / 2, 0)
        search, _ = run(noisy(one, other, seed))
        found = answered(search).crossovers()
        missed += not (len(found) == 1 and found[0].low <= truth <= found[0].high)
    assert missed <= len(seeds) // 100


def test_noise_alone_makes_no_crossover():
    for seed in range(5):
        search, asked = run(noisy(lambda n: n, lambda n: n, seed, cap=160))
        assert answered(search).crossovers() == []
        assert asked == octaves(LONG)


# ---- what is amiss ----------------------------------------------------------------------------


def failing(ask, status, at):
    """The same world, in which some lengths fail."""

    def asked(length, left_s):
        if at(length):
            return Look(length, None, status, "one: it failed")
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


def test_one_length_between_that_fails_is_gone_around():
    search, _ = run(failing(CROSSING, Status.FAILED, lambda n: n == 768))
    (one,) = answered(search).crossovers()
    assert (one.low, one.high, one.tight) == (544, 576, True)


def undecided(*_):
    return paired([0.3, -0.3] * 20, 0.01)


def test_between_leaders_what_is_undecided_is_looked_into_and_at_the_edge_it_is_not():
    search = Search(LONG)
    slower, faster = paired([0.5] * 40, 0.01), paired([-0.5] * 40, 0.01)
    for length in octaves(LONG):
        said = undecided() if length in (64, 512) else slower if length < 512 else faster
        search.hear(Look(length, said))
    assert [(gap.rungs[0], gap.changes) for gap in search.gaps()] == [(272, True), (544, True)]


def test_what_is_undecided_between_lengths_that_one_leads_at_is_not_looked_into():
    search, slower = Search(LONG), paired([0.5] * 40, 0.01)
    for length in octaves(LONG):
        search.hear(Look(length, undecided() if length == 512 else slower))
    assert search.gaps() == [] and search.next() is None


def test_changes_of_leader_come_before_the_ends_of_ties_and_of_them_the_widest_and_shortest():
    search = Search(LONG)
    logs = {64: 0.0, 128: 0.5, 192: -0.5, 256: -0.5, 512: 0.5, 1024: -0.5, 2048: -0.5, 4096: 0.0}
    for length, log_ratio in logs.items():
        search.hear(Look(length, paired([log_ratio] * 40, 0.01)))
    order = [(gap.rungs[0], gap.changes) for gap in search.gaps()]
    assert order == [(272, True), (544, True), (144, True), (2176, False), (80, False)]


def test_a_lead_that_may_be_chance_among_many_looks_is_none():
    """Of forty pairs 31 lie beyond the margin: by chance once in 1,400 times, on either side."""
    weak = paired([0.02] * 31 + [0.0] * 9, 0.01)
    alone = Search(LONG)
    alone.hear(Look(64, weak))
    assert [look.leader for look in alone.looks] == [A]
    among = Search(LONG)
    for length in LONG[:40]:
        among.hear(Look(length, weak if length == 64 else paired([0.0] * 40, 0.01)))
    assert {look.leader for look in among.looks} == {""}


# ---- time -------------------------------------------------------------------------------------


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
    clock, search = Clock(ask, took), Search(LONG)
    return search, [look.length for look, _ in seek(search, clock.ask, seconds, clock)], clock


def test_a_budget_that_is_spent_leaves_the_bracket_so_far():
    search, asked, clock = timed(lambda n: 1e-6 if n in octaves(LONG) else 4.0, 7)
    assert clock.at <= 7 and asked[:9] == octaves(LONG) and len(asked) == 10
    (one,) = answered(search).crossovers()
    assert one.low <= 555 <= one.high and not one.tight


def test_octaves_that_are_dear_wait_until_what_was_seen_is_tight():
    _, asked, _ = timed(lambda n: 0.001 * n, 20)
    refined, later = [n for n in asked if 512 < n < 1024], asked.index(8192)
    assert asked[:5] == [64, 128, 256, 512, 1024]
    assert len(refined) == 4 and max(map(asked.index, refined)) < later


def test_a_look_is_not_begun_that_is_expected_to_end_too_late():
    _, asked, clock = timed(lambda n: 0.01 * n * n / 64, 45, silent(lambda n: n, lambda n: 2 * n))
    assert asked == [64, 128, 256] and clock.at < 45
    _, asked, _ = timed(lambda n: 1e6, 45)
    assert asked == []


def test_the_length_is_remembered_at_which_the_wall_clock_was_spent():
    search, asked, _ = timed(
        lambda n: 1.0 if n < 1024 else 1e6, 30, silent(lambda n: n, lambda n: 2 * n)
    )
    assert asked == [64, 128, 256, 512] and search.cut == 1024


def test_who_leads_is_who_takes_less_time():
    faster = Look(64, paired([-0.5] * 40, 0.01))
    assert faster.leader == B and faster.decided
    assert not Look(64, undecided()).decided
