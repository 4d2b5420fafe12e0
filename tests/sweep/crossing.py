"""Made-up worlds where one may overtake another: times are closed forms."""

import math
import random
from types import SimpleNamespace

from attnbench.core import stats
from attnbench.core.stats import paired
from attnbench.features.crossover.answer import CrossoverAnswer
from attnbench.features.crossover.search import CrossoverSearch, LengthRatio, ladder, seek

LONG = ladder(64, 16384)


def polynomial(a, b, c):
    return lambda n: a + b * n + c * n * n


def silent(time_a, time_b, margin=0.01):
    """A world without noise."""

    def ask(length, left_s):
        ratio = math.log(time_b(length) / time_a(length))
        return LengthRatio(length, paired([ratio] * 40, margin))

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
        rule = stats.StopRule(margin, cap=cap)
        taken = stats.compare(side(time_a(length)), side(time_b(length)), rule, chance)
        return LengthRatio(length, taken.comparison)

    return ask


def run(ask, rungs=LONG, seconds=1e9):
    search = CrossoverSearch(rungs)
    asked = [look.length for look, _ in seek(search, ask, seconds)]
    assert len(asked) == len(set(asked)) and set(asked) <= set(rungs)
    return search, asked


def answered(search):
    return CrossoverAnswer("one", "other", "tokens", (search.rungs[0], search.rungs[-1]), search)
