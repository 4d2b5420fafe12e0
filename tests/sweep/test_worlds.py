"""Over how many processes: who is told, and what is too many."""

from dataclasses import replace

import pytest

import impls
from attnbench.core.machine import Gpu
from attnbench.core.record import Status
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls.problem import InvalidProblem
from tests import machines

GPU = Gpu(name="g", uuid="u", capability=9.0, memory_bytes=1 << 37, driver="1")
BOX = replace(machines.BOX, torch_cuda="12.8", gpus=(GPU, GPU))
GRID = Preset("a grid", seq=("32",), heads=(4,), phase=("forward",))


def labels(*names, **grid):
    return [c.variant.label for c in make_plan(impls.table(), names, GRID.with_(**grid), BOX).cells]


def test_without_a_world_those_rows_are_left_out_with_a_sentence():
    ring, sdpa = make_plan(impls.table(), ["ring", "sdpa"], GRID, BOX).cells
    assert ring.left_out.status is Status.UNSUPPORTED
    assert ring.left_out.reason == "ring runs over several processes: ask for --world 2"
    assert (ring.guess_s, sdpa.left_out) == (0.0, None)


@pytest.mark.parametrize(
    ("names", "grid", "says"),
    [
        (["ring"], {"world": 5}, "has 4: use --world 4 at the most"),
        (["ring?world=9"], {}, "needs a core for each of its 9 processes"),
        (["ring"], {"world": 3, "device": "cuda"}, "has 2: use --world 2 at the most"),
        (["sdpa", "einsum"], {"world": 2}, "says nothing of sdpa, einsum: each runs in one"),
    ],
)
def test_what_cannot_be_or_says_nothing_is_refused(names, grid, says):
    with pytest.raises(InvalidProblem, match=says):
        labels(*names, **grid)
