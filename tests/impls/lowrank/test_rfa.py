import numpy as np
import pytest
import torch

from impls.lowrank.rfa import directions
from impls.spec import Unsupported


@pytest.mark.parametrize("variant", ["rfa", "rfa?features=40&chunk=7&sigma=0.8&seed=2"])
def test_it_passes_the_gate(variant, gate_everywhere):
    gate_everywhere(variant, ("none", "causal"))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("features=0", "features=0"),
        ("sigma=0", "sigma=0"),
        ("floor=0", "floor=0"),
        ("chunk=-1", "c"),
    ],
)
def test_an_option_out_of_range_is_refused_with_a_sentence(option, says, problem, built):
    with pytest.raises(Unsupported, match=says):
        built(f"rfa?{option}", problem())


def _recurrent(q, k, v, w, floor):
    """One head, token by token, as a decoder with the paper's two sums."""

    def phi(x):
        a = w @ (x / np.linalg.norm(x))
        return np.concatenate((np.sin(a), np.cos(a))) / len(w) ** 0.5

    s, z, out = 0.0, 0.0, []
    for q_n, k_n, v_n in zip(q, k, v, strict=True):
        s, z = s + np.outer(phi(k_n), v_n), z + phi(k_n)
        out.append(phi(q_n) @ s / max(phi(q_n) @ z, floor))
    return np.array(out)


@pytest.mark.parametrize(("features", "sigma"), [(20, 1.0), (3, 0.5)])
def test_both_causal_forms_are_the_papers_recurrence(features, sigma, problem, built, inputs):
    p = problem("causal", dtype="float64", kv_heads=2)
    q, k, v = inputs(p)
    attend, define = built(f"rfa?features={features}&sigma={sigma}&chunk=7", p)
    w = directions(features, 16, 0).numpy() / sigma
    want = _recurrent(*(x.numpy() for x in (q[1, 3], k[1, 1], v[1, 1])), w, 0.01)
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-9, atol=1e-9)
    rows = torch.tensor([12, 3])
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], want[[12, 3]], rtol=1e-9, atol=1e-9)


def test_many_features_make_softmax_of_the_angle(problem, built, inputs, softmax):
    p = problem(dtype="float64")
    q, k, v = inputs(p, 5.0)
    unit = [x / x.norm(dim=-1, keepdim=True) * 2 for x in (q, k)]  # 2 * 2 / d^1/2 = 1 / sigma^2
    want = softmax(p, *unit, v)
    far = []
    for features in (16, 256, 4096):
        attend, _ = built(f"rfa?features={features}", p)
        far.append(float((attend(q, k, v) - want).norm() / want.norm()))
    assert far[2] < 0.1
    assert far[2] < 0.5 * far[1] < 0.5 * 0.5 * far[0]


def test_lengths_say_nothing(problem, built, inputs):
    p = problem("causal")
    q, k, v = inputs(p)
    attend, _ = built("rfa", p)
    torch.testing.assert_close(attend(q * 7, k / 3, v), attend(q, k, v))


def test_the_kernel_is_unbiased_over_seeds():
    torch.manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 8, dtype=torch.float64), dim=1)
    w = torch.stack([directions(16, 8, s) for s in range(1500)])
    drawn = (w @ (x - y)).cos().mean(1)  # cos a cos b + sin a sin b
    want = float((-(x - y).square().sum() / 2).exp())
    assert abs(float(drawn.mean()) - want) < 4 * float(drawn.std()) / 1500**0.5


def test_a_sum_below_the_floor_shrinks_the_row_and_stays_finite(problem, built, inputs):
    p = problem("causal", dtype="float64", batch=8)
    q, k, v = inputs(p)
    ones = torch.ones_like(v)
    out = built("rfa?features=1&sigma=0.3&floor=0.5", p)[0](q, k, ones)
    assert bool(out.isfinite().all())
    assert bool((out <= 1 + 1e-9).all())
    assert float(out[:, :, 0].min()) < 0  # one cosine, with its sign
    many = built("rfa?features=512", p)[0](q, k, ones)
    torch.testing.assert_close(many, ones)


def test_vectors_of_zeros_have_finite_gradients(problem, built, inputs):
    p = problem("causal")
    q, k, v = inputs(p)
    k[:, :, 3] = 0.0
    leaves = [x.requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(built("rfa", p)[0](*leaves).sum(), leaves)
    assert all(bool(g.isfinite().all()) for g in gradients)
