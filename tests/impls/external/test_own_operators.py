"""Adapters that compute something else than softmax, against the papers: calls and definitions."""

import math

import pytest
import torch
import torch.nn.functional as F

import impls
from attnbench.gate.inputs import make
from impls import operators
from tests.impls.external import stand_ins
from tests.impls.external.stand_ins import attention, build
from tests.impls.small import inputs

SPARSE = {
    "batch": 1, "heads": 2, "kv_heads": 1, "q_len": 128, "kv_len": 192, "head_dim": 16,
    "v_head_dim": 16, "phase": "forward",
}  # fmt: skip
KERNELS = {name: name for name in ("retention", "gla", "simple_gla", "kda")}
KERNELS |= {"linear": "linear_attn", "delta": "delta_rule", "gated_delta": "gated_delta_rule"}
TABLE = impls.table()


def problem(mask="causal", **changes):
    return stand_ins.problem(mask, **{"heads": 3, "kv_heads": 3, "v_head_dim": 24, **changes})


def walked(q, k, v, keep=1.0, beta=None, state=None):
    """Token by token: q_t S_t, where S is kept in part and written to."""
    keep, out = torch.as_tensor(keep, dtype=q.dtype).expand(q.shape), []
    if state is None:
        state = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=q.dtype)
    for t in range(q.shape[2]):
        value, state = v[:, :, t], state * keep[:, :, t, :, None]
        if beta is not None:  # the delta rule writes what is not there yet
            value = (value - torch.einsum("bhd,bhde->bhe", k[:, :, t], state)) * beta[:, :, t]
        state = state + k[:, :, t, :, None] * value[:, :, None]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], state))
    return torch.stack(out, 2)


def kernel(library, operator, p):
    """The library's kernel as it documents itself: tokens before heads, gates by name."""
    decays = (1 - 2.0 ** (-5.0 - torch.arange(p.heads)))[:, None, None]  # of retention's heads

    def compute(call):
        assert call.q.shape == (p.batch, p.q_len, p.kv_heads, p.head_dim) == call.k.shape
        assert call.v.shape == (p.batch, p.q_len, p.heads, p.v_head_dim)
        q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
        q, k = (x.repeat_interleave(p.group, 1) for x in (q, k))
        keep, beta, state = decays if operator == "retention" else 1.0, None, None
        if operator not in ("retention", "linear"):
            state = call.initial_state
        if hasattr(call, "g"):
            assert call.g.dtype == torch.float32
            keep = call.g.exp().reshape(*call.g.shape[:3], -1).transpose(1, 2)
        if hasattr(call, "beta"):
            assert call.beta.dtype == call.v.dtype
            beta = call.beta.transpose(1, 2)[..., None]
        if operator == "linear":
            assert call.normalize
            torch.testing.assert_close(q, F.elu(leaves["q"]) + 1)
            v = torch.cat((v, torch.ones_like(v[..., :1])), -1)  # sums up the weights
        out = walked(q * call.scale, k, v, keep, beta, state)
        if operator == "linear":
            out = out[..., :-1] / (out[..., -1:] + 1e-10)
        return out.transpose(1, 2), None

    specs = operators.inputs(TABLE.rows[f"fla.{operator}"].operator, p)
    leaves = make(p, 3, specs).map(lambda x: x.requires_grad_())
    library.computes(f"fla.ops.{KERNELS[operator]}.chunk_{KERNELS[operator]}", compute)
    return leaves


@pytest.mark.parametrize("state", [None, True])
@pytest.mark.parametrize("operator", KERNELS)
def test_a_kernel_and_a_definition_are_the_recurrence_of_the_paper(operator, state, library):
    p = problem(state=state)
    if TABLE.rows[f"fla.{operator}"].gqa:
        p = p.with_(heads=6)
    leaves = kernel(library, operator, p)
    twins = leaves.map(lambda x: x.detach().double().requires_grad_())
    (by_place, by_name), (wide, names) = leaves.arguments, twins.arguments
    out = build(f"fla.{operator}", p)(*by_place, **by_name)
    define = build(f"fla.{operator}", p, "definition")
    want = define(*wide, torch.arange(p.q_len), **names)
    torch.testing.assert_close(out.double(), want, atol=2e-5, rtol=2e-5)
    rows = torch.tensor([10, 0, 4])
    torch.testing.assert_close(define(*wide, rows, **names), want[:, :, rows], atol=1e-9, rtol=1e-9)
    dout = torch.randn(want.shape, dtype=torch.float64)
    got = torch.autograd.grad(out, list(leaves.values()), dout.float())
    expected = torch.autograd.grad(want, list(twins.values()), dout)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_flash_sparse_attn_leaves_out_the_tiles_whose_weights_are_small_in_every_row(mask):
    """Tile by tile and row by row, as its docs say it; the values of the middle keys are far."""
    p = problem(mask, **SPARSE)
    q, k, v = (x.double().detach() for x in inputs(p))
    k[:, :, 64:128] *= 0.05
    q[:, :, :, 0], k[:, :, :, 0], k[:, :, 64:128, 0] = 4.0, 4.0, -4.0
    define = build("fsa.sparse", p, "definition", threshold=1.0)
    left_out, got = 0, define(q, k, v, torch.arange(p.q_len))
    for head in range(p.heads):
        scores = (q[0, head] @ k[0, head // p.group].T * p.scale).numpy()
        for first in range(0, p.q_len, 64):
            ends = range(first + 65, first + 129) if mask == "causal" else [p.kv_len] * 64
            places = [[] for _ in range(64)]
            for start in range(p.kv_len - 64, -1, -64):
                visible = [[j for j in range(start, start + 64) if j < ends[i]] for i in range(64)]
                if not any(visible):
                    continue
                large = False
                for i in range(64):
                    row = scores[first + i]
                    top = max((row[j] for j in places[i]), default=-math.inf)
                    total = sum(math.exp(row[j] - top) for j in places[i])
                    most = max((row[j] for j in visible[i]), default=-math.inf)
                    weight = math.exp(most - top) / total if total else math.inf
                    large |= weight >= 1.0 / ends[i]
                left_out += not large
                for i in range(64) if large else ():
                    places[i] += visible[i]
            for i in range(64):
                weights = torch.tensor(scores[first + i][places[i]]).softmax(-1)
                want = weights @ v[0, head // p.group][places[i]]
                torch.testing.assert_close(got[0, head, first + i], want, atol=1e-10, rtol=1e-10)
    assert left_out
    whole = build("fsa.sparse", p, "definition", threshold=0.0)(q, k, v, torch.arange(p.q_len))
    assert (whole - got).abs().max() > 1e-9


def test_sageattention_is_given_smoothed_keys_and_leaves_the_callers_alone(library):
    def compute(call):
        assert call.tensor_layout == "HND" and not call.is_causal and not call.smooth_k
        q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        return attention(q, k, v, call.sm_scale, visible).transpose(1, 2)

    library.computes("sageattention.sageattn", compute)
    p = problem("none", head_dim=64, v_head_dim=64, kv_heads=1, q_len=5, kv_len=64, phase="forward")
    q, k, v = inputs(p)
    k += 7.0
    before = k.clone()
    out = build("sageattention", p)(q, k, v)
    assert torch.equal(k, before)
    assert library.calls[-1].k.mean(2).abs().max() < 1e-5
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)  # a shift of the keys is nothing
    got = build("sageattention", p, "definition")(q, k, v, torch.tensor([4, 2]))
    off = float((got - want[:, :, [4, 2]]).norm() / want[:, :, [4, 2]].norm())
    assert 1e-4 < off < 2e-2, "the definition is near softmax and not equal"


@pytest.mark.parametrize(("window", "causal"), [(2, True), (5, False), (11, True), (128, False)])
def test_natten_sees_a_window_pushed_inwards(window, causal, library):
    p = problem("causal" if causal else "none", kv_heads=1)
    n, w = p.q_len, min(window, p.q_len)
    row, key = torch.arange(n)[:, None], torch.arange(n)
    first = row - w + 1 if causal else (row - w // 2).clamp(0, n - w)
    visible = (first <= key) & (key < first + w)  # of each query, the w nearest keys that exist

    def compute(call):
        assert call.kernel_size == w and call.backend == "cutlass-fna"
        assert call.attention_kwargs == {"backend": "cutlass-fmha"}
        assert call.is_causal == causal
        return attention(call.query, call.key, call.value, call.scale, visible)

    library.computes("natten.na1d", compute)
    attend = build("natten", p, window=window, backend="cutlass-fna")
    leaves = inputs(p)
    wide = [x.double() for x in leaves]
    define = build("natten", p, "definition", window=window)
    want = define(*wide, key)
    torch.testing.assert_close(attend(*leaves).double(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(define(*wide, key[3:5]), want[:, :, 3:5], atol=1e-12, rtol=0)
    assert ("fmha" in attend.note()) == (w == n)
    assert ("is all 11 keys" in attend.note()) == (window > n)
    cost = build("natten", p.with_(phase="forward"), "cost", window=window)
    assert cost.flops == 2 * int(visible.sum()) * p.batch * p.heads * (16 + 24)
