"""The search for where one overtakes the other, on made-up worlds: times are closed forms."""

import math
import random
from itertools import pairwise

import pytest

from attnbench.features.crossover.search import ladder, octaves
from tests.sweep.crossing import LONG, answered, noisy, polynomial, run, silent


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


# ---- what is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [70, 555, 1024, 16_000])
def test_a_crossover_is_found_to_a_sixteenth_in_few_looks(truth):
    """n² against truth · n: they are equal at the truth."""
    search, asked = run(silent(polynomial(0, 0, 1.0), polynomial(0, truth, 0)))
    (one,) = answered(search).crossovers()
    assert one.low <= truth <= one.high and one.tight
    assert (one.before, one.after) == ("one", "other")
    assert one.high - one.low <= 2 * max(16, truth / 16)
    assert len(asked) <= len(octaves(LONG)) + (8 if one.ties else 4)


def test_lengths_where_they_can_not_be_told_apart_are_ties_and_their_ends_are_tight():
    """(n/1000)^0.1 is within a hundredth of one from 905 to 1,105."""
    search, _ = run(silent(lambda n: n**0.1, lambda n: 1000**0.1))
    (one,) = answered(search).crossovers()
    edge = 1.01**10
    first, last = one.ties
    assert one.low < 1000 / edge <= first <= last <= 1000 * edge < one.high
    assert first - one.low <= 32 and one.high - last <= 64 and one.tight


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


def test_rungs_that_are_missing_make_the_bracket_wider_and_it_is_tight_nevertheless():
    search, _ = run(silent(polynomial(0, 0, 1.0), polynomial(0, 555, 0)), [64, 512, 768, 1024])
    (one,) = answered(search).crossovers()
    assert (one.low, one.high, one.tight) == (512, 768, True)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 60), marks=pytest.mark.slow)])
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
