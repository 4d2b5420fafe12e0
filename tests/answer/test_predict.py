"""Predictions against closed forms: between and beyond what was measured, and how sure they are."""

import itertools
import math
import random

import numpy as np
import pytest

from attnbench.answer.predict import BLOCK, PredictionModel, Terms, not_negative
from tests.answer.seen import dense, linear, problem

LENGTHS, HEADS, WIDTHS = (128, 256, 512, 1024, 2048), (2, 8), (32, 64, 128)


def grid(mask="causal"):
    return [
        problem(n, heads=h, width=d, mask=mask)
        for n, h, d in itertools.product(LENGTHS, HEADS, WIDTHS)
    ]


@pytest.mark.parametrize("time", [dense, linear])
@pytest.mark.parametrize("length", [100, 700, 3000])
def test_a_sum_of_terms_is_found_again_between_and_beyond_what_was_measured(time, length):
    model = PredictionModel(Terms({}), grid(), [time(p) for p in grid()])
    asked = problem(length, heads=5, width=80)
    found = model.predict(asked)
    assert found.middle == pytest.approx(time(asked), rel=0.03)
    assert found.low < time(asked) < found.high


def test_what_a_cache_bends_is_followed_where_it_was_measured():
    def bent(p):
        return dense(p) * (1.6 if p.kv_len > 600 else 1.0)

    model = PredictionModel(Terms({}), grid(), [bent(p) for p in grid()])
    for length in (128, 256, 1024, 2048):
        asked = problem(length, heads=4, width=64)
        assert model.predict(asked).middle == pytest.approx(bent(asked), rel=0.1)


def test_nine_of_ten_lie_in_their_interval_where_times_are_noisy():
    inside, wide = [], []
    for seed in range(5):
        chance = random.Random(seed)
        noisy = [dense(p) * math.exp(chance.gauss(0, 0.1)) for p in grid()]
        model = PredictionModel(Terms({}), grid(), noisy)
        for _ in range(20):
            asked = problem(
                chance.randint(150, 2000),
                heads=chance.choice((2, 3, 4, 6, 8)),
                width=chance.choice((32, 48, 64, 96)),
            )
            found, true = model.predict(asked), dense(asked) * math.exp(chance.gauss(0, 0.1))
            inside.append(found.low <= true <= found.high)
            wide.append(found.off)
    assert 0.84 <= np.mean(inside) <= 0.985
    assert np.median(wide) < 0.3  # an interval that held everything would be of no use


def test_keys_that_fill_no_block_are_told_from_those_that_do():
    lengths = (128, 251, 512, 1003, 2048)

    def ragged(p):
        return dense(p) * (1.0 if p.kv_len % BLOCK == 0 else 1.2)

    some = [problem(n, heads=h, width=d) for n, h, d in itertools.product(lengths, HEADS, WIDTHS)]
    model = PredictionModel(Terms({}), some, [ragged(p) for p in some])
    for length in (400, 801, 1400):
        asked = problem(length, heads=4, width=64)
        assert model.predict(asked).middle == pytest.approx(ragged(asked), rel=0.08)


def test_moving_costs_what_copies_of_that_size_took():
    terms = Terms({"copy": {"1000": 1e6, "100000": 1e4}})
    assert terms.moving(1000) == pytest.approx(1e-3)
    assert terms.moving(100_000) == pytest.approx(10.0)
    assert terms.moving(10_000) == pytest.approx(0.1)  # between the two, on logarithms
    assert terms.moving(10**7) == pytest.approx(1e3)  # beyond, as the largest


def test_no_weight_is_negative_and_no_better_choice_is_left():
    chance = np.random.default_rng(1)
    terms = chance.uniform(0, 1, (30, 3))
    figures = np.maximum(terms @ np.array([2.0, -1.0, 0.5]), 0.05)
    found = not_negative(terms, figures)
    assert (found >= 0).all()

    def off(weights):
        return (((terms @ weights) / figures - 1) ** 2).sum()

    tried = [np.abs(found + chance.normal(0, s, 3)) for s in (0.01, 0.1, 0.5) for _ in range(200)]
    assert off(found) <= min(map(off, tried)) + 1e-3
