"""Predictions between measured lengths, against closed forms, and how sure they are."""

import math
import random

import numpy as np
import pytest

from attnbench.answer.predict import predict
from proofs import regret, ruler

LENGTHS = (128, 256, 512, 1024, 2048)


def overhead(n):
    return 5e-5 + 1e-9 * n**2


@pytest.mark.parametrize("law", [lambda n: 3e-9 * n**2, lambda n: 2e-7 * n, overhead])
@pytest.mark.parametrize("length", [129, 700, 1024, 2000])
def test_a_law_is_found_again_between_the_lengths(law, length):
    estimate = predict({n: law(n) for n in LENGTHS}, length)
    assert estimate.value == pytest.approx(law(length), rel=0.08)
    assert estimate.low < law(length) < estimate.high
    if law is not overhead:  # a power is a straight line
        assert estimate.value == pytest.approx(law(length)) and estimate.off < 0.05


def test_nine_of_ten_lie_in_their_interval_where_times_are_noisy():
    inside, wide, chance = [], [], random.Random(1)
    for _ in range(400):
        times = {n: 1e-9 * n**2 * math.exp(chance.gauss(0, 0.1)) for n in LENGTHS}
        length = chance.randint(150, 2000)
        estimate = predict(times, length)
        true = 1e-9 * length**2 * math.exp(chance.gauss(0, 0.1))
        inside.append(estimate.low <= true <= estimate.high)
        wide.append(estimate.off)
    assert 0.84 <= np.mean(inside) <= 0.985
    assert np.median(wide) < 0.35  # an interval that held everything would be of no use


@pytest.mark.slow
def test_where_the_machine_stands_still_the_choice_keeps_what_it_promises(capsys):
    answers = regret.answers(0.03)
    assert len(answers) == 64
    assert not ruler.show(regret.figures(answers)), capsys.readouterr().out
    silent = regret.answers(0.5)  # and where times say nothing it is silent
    assert sum(a.choice.ranking is not None for a in silent) < len(silent) / 2
