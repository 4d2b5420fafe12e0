import numpy as np
import pytest
import torch

from impls.lowrank.linformer import random_projection
from impls.spec import Unsupported


@pytest.mark.parametrize(
    "variant", ["linformer", "linformer?rank=7", "linformer?projection=random&rank=9&seed=3"]
)
def test_it_passes_the_gate(variant, gate_everywhere):
    gate_everywhere(variant)


@pytest.mark.parametrize(("option", "says"), [("rank=0", "rank=0"), ("projection=best", "best")])
def test_an_option_out_of_range_is_refused_with_a_sentence(option, says, problem, built):
    with pytest.raises(Unsupported, match=says):
        built(f"linformer?{option}", problem())


def test_as_many_segments_as_keys_are_softmax_attention_itself(problem, built, inputs, softmax):
    p = problem(dtype="float64", kv_heads=2)
    q, k, v = inputs(p)
    attend, define = built("linformer?rank=100", p)
    assert "rank 45" in attend.note()
    want = softmax(p, q, k, v)
    torch.testing.assert_close(attend(q, k, v), want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(define(q, k, v, torch.arange(45)), want, rtol=1e-12, atol=1e-12)


def test_segments_are_cut_as_numpy_cuts_and_averaged(problem, built, inputs):
    p = problem(dtype="float64", batch=1, heads=1, kv_heads=1)
    q, k, v = inputs(p)
    cut = np.array_split(np.arange(45), 7)
    keys, values = (np.stack([x[0, 0].numpy()[i].mean(0) for i in cut]) for x in (k, v))
    scores = np.exp(q[0, 0].numpy() @ keys.T / 4)
    want = scores @ values / scores.sum(1, keepdims=True)
    attend, define = built("linformer?rank=7", p)
    np.testing.assert_allclose(attend(q, k, v)[0, 0], want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(define(q, k, v, torch.tensor([4]))[0, 0], want[[4]], rtol=1e-12)


def test_it_agrees_with_the_public_library_given_its_projections(problem, built, inputs):
    from linformer import LinformerSelfAttention

    p = problem(batch=1, heads=1, kv_heads=1)
    q, k, v = inputs(p)
    module = LinformerSelfAttention(dim=16, seq_len=45, k=9, heads=1)
    projection = random_projection(9, 45, seed=0)
    with torch.no_grad():
        for layer in (module.to_q, module.to_k, module.to_v, module.to_out):
            layer.weight.copy_(torch.eye(16))
        module.to_out.bias.zero_()
        module.proj_k.copy_(projection.T)
        module.proj_v.copy_(projection.T)
        # one input serves its queries, and another its keys and its values
        want = module(q[0], context=k[0])
    attend, _ = built("linformer?projection=random&rank=9", p)
    torch.testing.assert_close(attend(q, k, k)[0], want, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(attend(q, k, v)[0], want, atol=0.1)


def test_weights_are_positive_and_sum_to_one_over_segments(problem, built, inputs):
    p = problem(dtype="float64")
    q, k, v = inputs(p, 3.0)
    attend, _ = built("linformer?rank=7", p)
    out = attend(q, k, v)
    low, high = v.amin(2, keepdim=True), v.amax(2, keepdim=True)
    assert bool(((out >= low - 1e-12) & (out <= high + 1e-12)).all())
    torch.testing.assert_close(attend(q, k, torch.ones_like(v)), torch.ones_like(out))


def test_a_random_projection_keeps_lengths_on_average():
    x = torch.randn(200, generator=torch.Generator().manual_seed(1))
    squares = [(random_projection(64, 200, s) @ x).square().sum() for s in range(200)]
    mean = float(torch.stack(squares).mean() / x.square().sum())
    assert abs(mean - 1) < 4 * (2 / 64 / 200) ** 0.5  # chi-squared with 64 degrees, 200 draws


def test_it_is_linear_in_the_values(problem, built, inputs):
    p = problem(dtype="float64")
    q, k, v = inputs(p)
    attend, _ = built("linformer?projection=random&rank=9", p)
    both = attend(q, k, 2 * v - v.flip(2))
    want = 2 * attend(q, k, v) - attend(q, k, v.flip(2))
    torch.testing.assert_close(both, want)
