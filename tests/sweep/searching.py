"""What is searched for in the tests of limits."""

import impls
from attnbench.core.machine import this_machine
from attnbench.features.limits import search
from attnbench.features.limits.search import CallBudget
from attnbench.sweep.presets import PRESETS

BUDGET = CallBudget(2 << 30, 0.2)
GRID = PRESETS["cpu"].with_(seq=(search.GATE_SEQ,))


def planned(*names, budget=BUDGET, by="seq", machine=None, **changes):
    grid = GRID.with_(**changes)
    return search.plan(impls.table(), names, grid, by, budget, machine or this_machine())


FORMS = {
    "einsum": lambda n: 2 * 4 * n * n * 4,
    "sdpa.flash": lambda n: 4 * n * (64 + 1) * 4 + 256 * (512 + 2 + 64) * 4,
}
