import numpy as np
import pytest
import torch

from impls.lowrank.common import segment_means
from impls.spec import Unsupported


@pytest.mark.parametrize("variant", ["nystrom", "nystrom?landmarks=7", "nystrom?iterations=2"])
def test_it_passes_the_gate(variant, gate_everywhere):
    gate_everywhere(variant)


def test_the_exact_inverse_passes_the_gate(verdict, problem):
    for each in (problem(phase="train"), problem(dtype="bfloat16"), problem(inputs="outliers")):
        assert verdict("nystrom?landmarks=8&iterations=0", each).reason is None


@pytest.mark.parametrize(("option", "says"), [("landmarks=0", "must be 1"), ("iterations=-1", "0")])
def test_an_option_out_of_range_is_refused_with_a_sentence(option, says, problem, built):
    with pytest.raises(Unsupported, match=says):
        built(f"nystrom?{option}", problem())


@pytest.mark.parametrize("count", [1, 6, 7, 44, 45])
def test_segments_are_cut_as_numpy_cuts(count):
    x = torch.randn(1, 1, 45, 3, dtype=torch.float64)
    want = [part.mean(0) for part in np.array_split(x[0, 0].numpy(), count)]
    np.testing.assert_allclose(segment_means(x, count)[0, 0], want, rtol=1e-12, atol=1e-14)


def _paper(q, k, v, landmarks, iterations):
    """One head in numpy, from the paper's equations."""

    def soft(x):
        x = np.exp(x - x.max(1, keepdims=True))
        return x / x.sum(1, keepdims=True)

    ql, kl = ([p.mean(0) for p in np.array_split(x, min(landmarks, len(x)))] for x in (q, k))
    ql, kl, s = np.array(ql), np.array(kl), q.shape[1] ** -0.5
    a = soft(s * ql @ kl.T)
    if iterations == 0:
        z = np.linalg.pinv(a)
    else:
        z, one = a.T / (abs(a).sum(0).max() * abs(a).sum(1).max()), np.eye(len(a))
        for _ in range(iterations):
            z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return soft(s * q @ kl.T) @ z @ soft(s * ql @ k.T) @ v


@pytest.mark.parametrize(("landmarks", "iterations"), [(7, 6), (7, 0), (9, 3), (20, 6)])
@pytest.mark.parametrize("lengths", [(45, 45), (13, 45)])
def test_both_forms_are_the_papers(landmarks, iterations, lengths, problem, built, inputs):
    p = problem(dtype="float64", kv_heads=2, q_len=lengths[0], kv_len=lengths[1])
    q, k, v = inputs(p)
    attend, define = built(f"nystrom?landmarks={landmarks}&iterations={iterations}", p)
    heads = (q[1, 3], k[1, 1], v[1, 1])
    want = _paper(*(x.numpy() for x in heads), landmarks, iterations)
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-8, atol=1e-9)
    rows = torch.tensor([2, 11])
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], want[[2, 11]], rtol=1e-8, atol=1e-9)


def _library(q, k, v, landmarks):
    from nystrom_attention import NystromAttention

    heads, d = q.shape[1], q.shape[3]
    module = NystromAttention(3 * heads * d, d, heads, landmarks, residual=False)
    module.to_qkv = module.to_out = torch.nn.Identity()
    tokens = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
    out = module(torch.cat(tokens, 2))
    return out.unflatten(2, (heads, d)).transpose(1, 2)


def test_it_agrees_with_the_public_library_head_by_head(problem, built, inputs):
    p = problem(batch=1, heads=1, kv_heads=1, q_len=48, kv_len=48)
    attend, _ = built("nystrom?landmarks=8", p)
    q, k, v = inputs(p)
    want = _library(q, k, v, 8)
    torch.testing.assert_close(attend(q, k, v), want, rtol=1e-5, atol=1e-5)


def test_the_library_starts_all_heads_from_the_largest_sum_of_any(problem, built, inputs):
    p = problem(batch=1, q_len=48, kv_len=48)
    q, k, v = inputs(p, 1.5)
    attend, _ = built("nystrom?landmarks=8", p)
    apart = torch.cat([_library(*(x[:, [h]] for x in (q, k, v)), 8) for h in range(4)], 1)
    torch.testing.assert_close(attend(q, k, v), apart, rtol=1e-4, atol=1e-5)
    assert (_library(q, k, v, 8) - apart).norm() > 1e-3 * apart.norm()


def test_as_many_landmarks_as_tokens_are_exact_with_the_exact_inverse_alone(
    problem, built, inputs, softmax
):
    p = problem(dtype="float64", q_len=16, kv_len=16)
    q, k, v = inputs(p)
    want, far = softmax(p, q, k, v), {}
    for iterations in (0, 6, 12):
        attend, _ = built(f"nystrom?landmarks=99&iterations={iterations}", p)
        assert "16 of the queries, 16 of the keys" in attend.note()
        far[iterations] = float((attend(q, k, v) - want).norm() / want.norm())
    assert far[0] < 1e-9
    assert 1e-3 < far[6] < 0.7  # six steps leave the small singular values behind
    assert far[12] < far[6] / 2


def test_one_query_is_exact(problem, built, inputs, softmax):
    p = problem(dtype="float64", q_len=1, kv_heads=2)
    q, k, v = inputs(p)
    attend, _ = built("nystrom?landmarks=8", p)
    torch.testing.assert_close(attend(q, k, v), softmax(p, q, k, v), rtol=1e-8, atol=1e-8)


def test_it_is_linear_in_the_values_and_nearly_keeps_ones(problem, built, inputs):
    p = problem(dtype="float64")
    q, k, v = inputs(p, 0.3)
    attend, _ = built("nystrom?landmarks=5&iterations=20", p)
    sums = attend(q, k, v + 3 * v.flip(2)), attend(q, k, v) + 3 * attend(q, k, v.flip(2))
    torch.testing.assert_close(*sums)
    ones = attend(q, k, torch.ones_like(v))
    torch.testing.assert_close(ones, torch.ones_like(ones), rtol=1e-3, atol=1e-3)
