import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import impls
from impls.loading import load_function
from impls.lowrank.performer import directions
from impls.spec import Unsupported


@pytest.mark.parametrize("variant", ["performer", "performer?features=20&chunk=7&seed=2"])
def test_it_passes_the_gate(variant, gate_everywhere):
    gate_everywhere(variant, ("none", "causal"))


@pytest.mark.parametrize(("option", "says"), [("features=0", "features=0"), ("chunk=0", "chunk=0")])
def test_an_option_out_of_range_is_refused_with_a_sentence(option, says, problem, built):
    with pytest.raises(Unsupported, match=says):
        built(f"performer?{option}", problem())


def test_the_other_corner_is_refused_where_lengths_differ(problem, built):
    with pytest.raises(Unsupported, match="upper-left"):
        built("performer", problem("causal@upper-left", q_len=3))


def _paper(q, k, v, w, seen):
    """One head: every pair's kernel from its logarithm, in loops over queries."""
    s = q.shape[1] ** -0.25
    q, k, out = q * s, k * s, np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        keys = np.flatnonzero(seen[i])
        if not len(keys):
            continue
        logs = (q[i] + k[keys]) @ w.T - (q[i] @ q[i] + (k[keys] ** 2).sum(1))[:, None] / 2
        kernel = np.exp(logs - logs.max()).sum(1)
        out[i] = kernel @ v[keys] / kernel.sum()
    return out


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("lengths", [(45, 45), (13, 45), (45, 13)])
def test_both_forms_are_the_papers(mask, factor, lengths, problem, built, inputs):
    p = problem(mask, dtype="float64", kv_heads=2, q_len=lengths[0], kv_len=lengths[1])
    q, k, v = inputs(p, factor)
    attend, define = built("performer?features=20&chunk=7", p)
    seen = np.ones(lengths) if mask == "none" else np.tri(*lengths, lengths[1] - lengths[0])
    w = directions(20, 16, 0).numpy()
    want = _paper(*(x.numpy() for x in (q[1, 3], k[1, 1], v[1, 1])), w, seen)
    np.testing.assert_allclose(attend(q, k, v)[1, 3], want, rtol=1e-9, atol=1e-10)
    rows = torch.tensor([12, 3])
    np.testing.assert_allclose(define(q, k, v, rows)[1, 3], want[[12, 3]], rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore")
def test_it_agrees_with_the_public_library_where_that_adds_no_constant(problem, built, inputs):
    from performer_pytorch.performer_pytorch import linear_attention, softmax_kernel

    p = problem()
    q, k, v = inputs(p)
    w = directions(20, 16, 0).float()

    def library(eps):
        made = {"projection_matrix": w, "eps": eps}
        features = (
            softmax_kernel(q, is_query=True, **made),
            softmax_kernel(k, is_query=False, **made),
        )
        return linear_attention(*features, v)

    attend, _ = built("performer?features=20", p)
    torch.testing.assert_close(attend(q, k, v), library(0.0), rtol=1e-4, atol=1e-5)
    mean = v.mean(2, keepdim=True)  # which the constant pulls towards
    assert (library(1e-2) - mean).norm() < 0.9 * (attend(q, k, v) - mean).norm()


def test_the_chunk_does_not_matter(problem, built, inputs):
    p = problem("causal", dtype="float64")
    q, k, v = inputs(p, 3.0)
    outs = [built(f"performer?features=20&chunk={c}", p)[0](q, k, v) for c in (1, 7, 45, 999)]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["performer", "rfa"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_steps_from_a_memory_are_the_whole(kind, mask, problem, built, inputs):
    whole = problem(mask, dtype="float64", kv_heads=2)
    q, k, v = inputs(whole, 3.0)
    attend, _ = built(f"{kind}?features=20", problem(mask, dtype="float64", kv_heads=2, q_len=5))
    memory = attend.remember(k[:, :, :0], v[:, :, :0])
    for start in range(0, 45, 5):
        now = slice(start, start + 5)
        out, memory = attend.step(q[:, :, now], k[:, :, now], v[:, :, now], memory)
    want = built(f"{kind}?features=20", whole)[0](q, k, v)[:, :, 40:]
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("variant", ["performer?features=40", "rfa?features=40", "performer"])
def test_decoding_costs_a_step_however_long_the_cache(variant, new, problem, built, inputs):
    row = impls.table().find(variant)
    asked = problem(phase="decode", kv_heads=2, q_len=new, v_head_dim=24)
    cost, longer = (
        load_function(row.cost)(p, **row.chosen) for p in (asked, asked.with_(kv_len=10_000))
    )
    assert cost == longer
    q, k, v = inputs(asked)
    attend, _ = built(variant, asked)
    memory = attend.remember(k[:, :, new:], v[:, :, new:])
    with FlopCounterMode(display=False) as counted:
        out, after = attend.step(q, k[:, :, :new], v[:, :, :new], memory)
    # the sum that is divided by is a column more
    assert cost.flops == pytest.approx(counted.get_total_flops(), rel=1 / 24)
    ends = (q, k[:, :, :new], v[:, :, :new], out, memory.sums_bcfz, after.sums_bcfz)
    assert cost.bytes == sum(x.numel() for x in ends) * 4


def test_no_later_key_moves_an_earlier_row_however_large_it_is(problem, built, inputs):
    p = problem("causal")
    q, k, v = inputs(p)
    attend, _ = built("performer?chunk=16", p)
    base = attend(q, k, v)
    for at in (20, 31, 32, 44):
        loud = k.clone()
        loud[:, :, at] *= 100.0
        out = attend(q, loud, v)
        assert torch.equal(out[:, :, :at], base[:, :, :at])
        assert not torch.equal(out[:, :, at:], base[:, :, at:])


@pytest.mark.parametrize("factor", [40.0, 1000.0])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_logits_of_thousands_give_numbers(factor, mask, problem, built, inputs):
    p = problem(mask)
    leaves = [x.requires_grad_() for x in inputs(p, factor)]
    attend, _ = built("performer?features=3&chunk=8", p)
    out = attend(*leaves)
    assert bool(out.isfinite().all())
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), leaves))


def test_rows_are_orthogonal_and_each_is_gaussian():
    w = directions(16, 8, 0)
    for block in (w[:8], w[8:]):
        gram = block @ block.T
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-12)
    many = torch.stack([directions(8, 8, s) for s in range(2000)])
    assert abs(float(many.square().mean()) - 1) < 0.05
    assert float(many.mean(0).abs().max()) < 5 / 2000**0.5


def test_the_kernel_is_unbiased_and_gets_nearer_with_features():
    torch.manual_seed(0)
    x, y = 0.5 * torch.randn(2, 8, dtype=torch.float64)

    def estimates(features):
        w = torch.stack([directions(features, 8, s) for s in range(1500)])
        return (w @ (x + y) - (x @ x + y @ y) / 2).exp().mean(1)

    few, many = estimates(8), estimates(64)
    for drawn in (few, many):
        error = float(drawn.std()) / 1500**0.5
        assert abs(float(drawn.mean() - (x @ y).exp())) < 4 * error
    assert float(many.std()) < 0.5 * float(few.std())


def test_more_features_come_nearer_to_softmax(problem, built, inputs, softmax):
    p = problem(dtype="float64")
    q, k, v = inputs(p, 0.5)
    want = softmax(p, q, k, v)

    def far(features):
        outs = [built(f"performer?features={features}&seed={s}", p)[0](q, k, v) for s in range(4)]
        return sum(float((out - want).norm() / want.norm()) for out in outs) / 4

    assert far(8192) < 0.4 * far(256) < 0.4 * 0.4 * far(4)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_weights_are_positive_and_sum_to_one(mask, problem, built, inputs):
    p = problem(mask, dtype="float64")
    q, k, v = inputs(p, 3.0)
    attend, _ = built("performer?features=20", p)
    out = attend(q, k, v)
    assert bool((out <= v.cummax(2).values.amax(2, keepdim=True) + 1e-12).all())
    assert bool((out >= v.amin(2, keepdim=True) - 1e-12).all())
    torch.testing.assert_close(attend(q, k, torch.ones_like(v)), torch.ones_like(out))
    torch.testing.assert_close(attend(q, k, v + 2 * v.flip(3)), out + 2 * out.flip(3))
