"""Which keys are probed: the first, the last, and one between that the seed decides."""

import numpy as np
import pytest
import torch

from attnbench.truth import mask_probe
from attnbench.truth.findings import Wrong


@pytest.mark.parametrize("at", ["between", "first", "last"])
def test_a_single_key_that_nobody_sees_is_named(truth, at):
    problem, seed = truth.problem(), 0
    between = int(np.random.default_rng(seed).integers(problem.kv_len))
    key = {"between": between, "first": 0, "last": problem.kv_len - 1}[at]
    assert 0 < between < problem.kv_len - 1
    seen = torch.ones(2, 2, 24, 24, dtype=torch.bool)
    seen[..., key] = False
    said = f"did not move when key {key} changed"
    with pytest.raises(Wrong, match=said):
        mask_probe.probe(problem, truth.attention(problem, seen), seed, exact=True)
