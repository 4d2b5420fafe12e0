"""Curves against closed forms: between and beyond the lengths, and how sure they are."""

import math
import random

import numpy as np
import pytest

from attnbench.answer.predict import VariantRecords, curve, powers
from proofs import regret
from tests.answer.build import dense, linear, problem, seen

LENGTHS = (128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("time", [dense, linear])
@pytest.mark.parametrize("length", [100, 700, 3000])
def test_a_law_is_found_again_between_and_beyond_what_was_measured(time, length):
    found = curve(LENGTHS, [time(problem(n)) for n in LENGTHS], length)
    assert found.middle == pytest.approx(time(problem(length)), rel=0.03)
    assert found.low < time(problem(length)) < found.high


def test_what_a_cache_bends_is_followed_where_it_was_measured():
    def bent(n):
        return dense(problem(n)) * (1.6 if n > 600 else 1.0)

    for length in LENGTHS:
        assert curve(LENGTHS, [*map(bent, LENGTHS)], length).middle == pytest.approx(bent(length))
    with_step = curve(LENGTHS, [*map(bent, LENGTHS)], 700)
    assert with_step.low < bent(512) * (700 / 512) ** 2 < bent(700) < with_step.high


def test_nine_of_ten_lie_in_their_interval_where_times_are_noisy():
    inside, wide, chance = [], [], random.Random(1)
    for _ in range(300):
        noisy = [dense(problem(n)) * math.exp(chance.gauss(0, 0.1)) for n in LENGTHS]
        length = chance.randint(150, 2000)
        found, true = curve(LENGTHS, noisy, length), dense(problem(length))
        inside.append(found.low <= true * math.exp(chance.gauss(0, 0.1)) <= found.high)
        wide.append(found.off)
    assert 0.84 <= np.mean(inside) <= 0.985
    assert np.median(wide) < 0.4  # an interval that held everything would be of no use


def test_no_weight_is_negative_and_no_better_choice_is_left():
    chance, n = np.random.default_rng(1), np.array([128.0, 256, 512, 1024, 2048])
    figures = np.maximum(2.0 - 1e-3 * n + 1e-6 * n**2, 0.05) * chance.uniform(0.8, 1.2, 5)
    found = powers(n, figures)
    assert (found >= 0).all()

    def off(weights):
        return (((np.power.outer(n, [0, 1, 2]) @ weights) / figures - 1) ** 2).sum()

    scale = found.max() * np.array([1.0, 1e-3, 1e-6])
    tried = [
        np.abs(found + chance.normal(0, s, 3) * scale) for s in (0.01, 0.1, 0.5) for _ in range(200)
    ]
    assert off(found) <= min(map(off, tried)) + 1e-9


def test_a_curve_is_of_as_many_queries_as_keys_or_of_one_number_of_them():
    square = [problem(n) for n in LENGTHS]
    wide = [problem(n, q_len=512) for n in (256, 1024, 2048)]  # with 512 x 512 a line of its own
    records = [seen("matmul", p, dense(p)) for p in square] + [seen("matmul", p, 9.0) for p in wide]
    known = VariantRecords(None, records, problem(700))
    assert [s.problem for s in known.line] == square
    assert known.time().middle == pytest.approx(dense(problem(700)), rel=0.03)
    line = VariantRecords(None, records, problem(700, q_len=512)).line
    assert [s.problem.kv_len for s in line] == [256, 512, 1024, 2048]


NEAR = [problem(n, heads=h) for n in (256, 512, 1024) for h in (2, 8)]


@pytest.mark.parametrize(
    ("asked", "measured", "said"),
    [
        *((problem(length, heads=8), NEAR, None) for length in (128, 300, 2048)),
        (problem(2049, heads=8), NEAR, "queries 2,049, and 256 to 1,024 was measured"),
        (problem(127, heads=8), NEAR, "queries 127, and 256 to 1,024 was measured"),
        (problem(512, heads=4), NEAR, "heads 4, and 2, 8 was measured"),
        (problem(512, heads=8, width=80), NEAR, "head_dim 80, and 64 was measured"),
        (problem(512, heads=8, kv_heads=2), NEAR[1:2], "kv_heads 2, and 8 was measured"),
        (
            problem(512, mask="window:9,0", heads=8),
            NEAR,
            "mask window:9,0, and causal was measured",
        ),
        (problem(512, heads=8, q_len=7), NEAR[:2], "q_len 7, and 256 was measured"),
        (problem(600, heads=8), NEAR[:4], "only 2 of its lengths were measured"),
        (problem(512), [], "nothing like it was measured"),
    ],
)
def test_where_there_is_no_curve_it_says_what_was_measured(asked, measured, said):
    records = [seen("matmul", p, dense(p)) for p in measured]
    assert VariantRecords(None, records, asked).outside() == said


@pytest.mark.slow
def test_where_the_machine_stands_still_the_choice_keeps_what_it_promises(capsys):
    asked = regret.of_made_up(0.03)
    assert len(asked) == 74
    assert regret.shown(asked), capsys.readouterr().out


@pytest.mark.slow
def test_where_times_say_nothing_it_is_silent():
    asked = regret.of_made_up(0.5)
    assert sum(a.choice.ranking is not None for a in asked) < len(asked) / 4
