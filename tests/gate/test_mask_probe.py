"""Which keys are probed: the first, the last, and one between that the seed decides."""

import numpy as np
import pytest
import torch

from attnbench.gate import mask_probe
from attnbench.gate.findings import Wrong


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


@pytest.mark.parametrize("mask", ["alibi", "causal+alibi"])
def test_a_near_key_that_nobody_sees_is_named_though_a_bias_is_added(truth, mask):
    problem = truth.problem(mask)
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())
    seen[..., problem.kv_len - 1] = False
    with pytest.raises(Wrong, match="did not move when key 23 changed"):
        mask_probe.probe(problem, truth.attention(problem, seen), 0, exact=True)


@pytest.mark.parametrize("exact", [True, False])
def test_a_hidden_key_that_only_takes_its_share_of_the_weights_is_named(truth, exact):
    problem = truth.problem("causal")
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def attend(q, k, v):
        weights = (q @ k.mT * problem.scale).softmax(-1)
        return (weights * seen) @ v

    with pytest.raises(Wrong, match=r"moved when key \d+ changed, which the mask causal hides"):
        mask_probe.probe(problem, attend, 0, exact=exact)


def test_what_is_not_finite_even_on_mild_inputs_is_named(truth):
    problem = truth.problem("causal")
    inner = truth.attention(problem)
    with pytest.raises(Wrong, match="not finite in the output on mild inputs"):
        mask_probe.probe(problem, lambda q, k, v: inner(q, k, v) * torch.nan, 0, exact=True)


class Decoder:
    """A decoder that keeps all keys and values, and sees the last few of them."""

    def __init__(self, problem, last):
        self.scale, self.last = problem.scale, last

    def remember(self, k, v):
        return k, v

    def step(self, q, k, v, memory):
        k, v = (torch.cat(both, 2) for both in zip(memory, (k, v), strict=True))
        near_k, near_v = k[:, :, -self.last :], v[:, :, -self.last :]
        return (q @ near_k.mT * self.scale).softmax(-1) @ near_v, (k, v)


@pytest.mark.parametrize(
    ("mask", "last", "said"),
    [
        ("none", 24, None),
        ("window:3,0", 4, None),
        ("window:3,0", 24, "moved when key"),
        ("none", 4, "did not move when key"),
    ],
)
def test_a_decoder_is_probed_through_the_memory_it_makes_of_what_was_changed(
    truth, mask, last, said
):
    problem = truth.problem(mask, phase="decode", q_len=1)
    if said is None:
        mask_probe.probe(problem, Decoder(problem, last), 0, exact=True)
        return
    with pytest.raises(Wrong, match=said):
        mask_probe.probe(problem, Decoder(problem, last), 0, exact=True)
