"""Predictions against closed forms: between and beyond what was measured, and how sure they are."""

import itertools
import math
import random

import numpy as np
import pytest

from attnbench.answer.predict import FEWEST, fit_weights, outside, place, predict, terms
from proofs import regret
from tests.answer.build import dense, linear, problem

LENGTHS, HEADS, WIDTHS = (128, 256, 512, 1024, 2048), (2, 8), (32, 64, 128)
GRID = [problem(n, heads=h, width=d) for n, h, d in itertools.product(LENGTHS, HEADS, WIDTHS)]


def test_a_problem_in_numbers_is_counted_by_hand():
    """12 rows of 4 queries see 5 + 6 + 7 + 8 of 8 keys each; two heads of keys for each batch."""
    sizes = {"batch": 2, "kv_heads": 2, "q_len": 4, "head_dim": 16, "v_head_dim": 32}
    p, seen = problem(8, heads=6, **sizes), 12 * 26
    tokens = 12 * 4 + 2 * 2 * 8
    work = [1, 12, tokens * 48, tokens * 16 * 32, seen, seen * 48, 12 * 4 * 8, 12 * 4 * 8 * 48]
    assert terms(p) == work
    assert [2**x for x in place(p)] == pytest.approx([4, 8, 12, 3, 16, 32, 26 / 32])


@pytest.mark.parametrize("time", [dense, linear])
@pytest.mark.parametrize("length", [100, 700, 3000])
def test_a_sum_of_terms_is_found_again_between_and_beyond_what_was_measured(time, length):
    asked = problem(length, heads=5, width=80)
    found = predict(GRID, [time(p) for p in GRID], asked)
    assert found.value == pytest.approx(time(asked), rel=0.03)
    assert found.low < time(asked) < found.high
    assert length != 700 or found.off < 0.05  # noise of 0.02, and Student's quantile of 0.95


def test_what_a_cache_or_a_block_that_is_not_full_bends_is_followed_where_it_was_measured():
    lengths = (128, 251, 512, 1003, 2048)
    some = [problem(n, heads=h, width=d) for n, h, d in itertools.product(lengths, HEADS, WIDTHS)]
    for known, time, asked, near in (
        (GRID, lambda p: dense(p) * (1.6 if p.kv_len > 600 else 1.0), (128, 256, 1024, 2048), 0.1),
        (some, lambda p: dense(p) * (1.2 if p.kv_len % 16 else 1.0), (400, 801, 1400), 0.08),
    ):
        for p in (problem(n, heads=4, width=64) for n in asked):
            found = predict(known, [time(x) for x in known], p)
            assert found.value == pytest.approx(time(p), rel=near)


def test_nine_of_ten_lie_in_their_interval_where_times_are_noisy():
    inside, wide, chance = [], [], random.Random(1)
    for _ in range(100):
        noisy = [dense(p) * math.exp(chance.gauss(0, 0.1)) for p in GRID]
        heads, width = chance.choice((2, 3, 4, 6, 8)), chance.choice((32, 48, 64, 96))
        asked = problem(chance.randint(150, 2000), heads=heads, width=width)
        found, true = predict(GRID, noisy, asked), dense(asked) * math.exp(chance.gauss(0, 0.1))
        inside.append(found.low <= true <= found.high)
        wide.append(found.off)
    assert 0.84 <= np.mean(inside) <= 0.985
    assert np.median(wide) < 0.3  # an interval that held everything would be of no use


def test_no_weight_is_negative_and_no_better_choice_is_left():
    chance = np.random.default_rng(1)
    terms = chance.uniform(0, 1, (30, 3))
    figures = np.maximum(terms @ np.array([2.0, -1.0, 0.5]), 0.05)
    found = fit_weights(terms, figures)
    assert (found >= 0).all()

    def off(weights):
        return (((terms @ weights) / figures - 1) ** 2).sum()

    tried = [np.abs(found + chance.normal(0, s, 3)) for s in (0.01, 0.1, 0.5) for _ in range(200)]
    assert off(found) <= min(map(off, tried)) + 1e-3


NEAR = [problem(n, heads=h) for n in (256, 1024) for h in (2, 8)]
FAR = 2 * [problem(n, heads=4) for n in (128, 2048)]
CORNERS = 2 * [problem(128, heads=64, width=256), problem(8192, heads=1, width=16)]


@pytest.mark.parametrize(
    ("asked", "measured", "said"),
    [
        *((problem(length, heads=4), NEAR, None) for length in (128, 300, 2048)),
        *((problem(512, heads=heads), NEAR, None) for heads in (1, 12, 16)),
        (problem(4096, heads=4), NEAR, "queries 4,096, and 256 to 1,024 was measured"),
        (problem(127, heads=4), NEAR, "queries 127, and 256 to 1,024 was measured"),
        (problem(512, heads=4, width=80), NEAR, None),
        (problem(512, heads=4, width=128), NEAR, "head_dim 128, and 64 was measured"),
        (problem(512, heads=8, kv_heads=2), NEAR, "grouping 4, and 1 was measured"),
        (problem(8192, heads=64, width=256), CORNERS, "the nearest that was measured is"),
        (problem(512, heads=4), FAR, "the nearest that was measured is 2.8 doublings away"),
        (problem(256, heads=4), FAR, None),  # one of each
        (problem(300, heads=4), NEAR[: FEWEST - 1], "only 3 problems near it were measured"),
        (problem(), [], "nothing like it was measured"),
    ],
)
def test_where_a_problem_is_too_far_it_says_what_was_measured(asked, measured, said):
    found = outside(asked, measured)
    assert found is None if said is None else found.startswith(said)


@pytest.mark.slow
def test_where_the_machine_stands_still_the_choice_keeps_what_it_promises(capsys):
    answers = regret.answers(0.03)
    assert len(answers) == 74
    assert regret.show(answers), capsys.readouterr().out


@pytest.mark.slow
def test_where_times_say_nothing_it_is_silent():
    answers = regret.answers(0.5)
    assert sum(a.choice.ranking is not None for a in answers) < len(answers) / 4
