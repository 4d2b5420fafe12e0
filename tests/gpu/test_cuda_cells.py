"""What a cell needs of a GPU: its values, and a decoder's step that can be replayed."""

from contextlib import nullcontext

import pytest
import torch

import impls
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_nothing_goes_on
from attnbench.gate.inputs import make
from attnbench.gate.plants import PLANTS
from attnbench.meter.probe import probe
from attnbench.meter.timed import Job
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
CUDA = "cuda"


@pytest.mark.parametrize("kind", ["normal", "equal_keys"])
def test_values_are_drawn_on_the_device_and_the_seed_decides_them(kind):
    problem = Problem(2, 4, 2, 300, 300, 64, 64, "bfloat16", device=CUDA, inputs=kind)
    for a, b, c in zip(*(make(problem, seed) for seed in (3, 3, 4)), strict=True):
        assert a.device.type == "cuda"
        assert torch.equal(a, b) and not torch.equal(a, c)
        assert abs(float(a.float().std()) - 1) < 0.1


def test_the_step_of_a_decoder_with_a_memory_of_its_own_is_replayed():
    shape = 4, 8, 8, 1, 4096, 64, 64
    problem = Problem(*shape, "bfloat16", Mask.parse("causal"), "decode", device=CUDA)
    found = probe(Job(impls.table().find("linear.elu"), problem), 1.0)
    assert (found.reason, found.clock) == ("", "graph")


@pytest.mark.parametrize("deed", [True, False])
def test_an_output_is_there_for_what_is_queued_after_it(deed):
    (plant,) = [plant for plant in PLANTS if plant.problem.device == CUDA]
    row = plant.row if deed else plant.honest
    attend = load_function(row.build)(plant.problem, **row.chosen)
    inputs = make(plant.problem, 0)
    for _ in range(3):  # memory that torch keeps holds what the calls before have left
        with pytest.raises(Wrong, match="work was put off") if deed else nullcontext():
            check_nothing_goes_on(plant.problem, attend, inputs)
