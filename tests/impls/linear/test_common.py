"""What holds for every variant that factorises a sum over keys: chunks, steps, memory, cost."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import impls
from impls.linear.common import FeatureMap, Linear
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem
from impls.spec import Unsupported

POSITIVE = ["linear.elu", "cosformer", "linear.taylor", "hedgehog"]
NAMES = ["linear.identity", *POSITIVE, "cosine"]
OPTIONS = [
    *NAMES,
    "linear.identity?normalise=true",
    "linear.taylor?features=0",
    "linear.taylor?features=5",
    "hedgehog?init=random",
]


def chunked(label, chunk):
    return f"{label}{'&' if '?' in label else '?'}chunk={chunk}"


def made(label, problem):
    row = impls.table().find(label)
    return tuple(load_function(path)(problem, **row.chosen) for path in (row.build, row.definition))


def problem(mask="causal", **changes):
    ordinary = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "q_len": 77,
        "kv_len": 77,
        "head_dim": 8,
        "v_head_dim": 6,
        "dtype": "float64",
    }
    return Problem(mask=Mask.parse(mask), **{**ordinary, **changes})


def tensors(p, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (p.batch, p.heads, p.q_len, p.head_dim),
        (p.batch, p.kv_heads, p.kv_len, p.head_dim),
        (p.batch, p.kv_heads, p.kv_len, p.v_head_dim),
    )
    dtype = getattr(torch, p.dtype)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def differentiated(function, inputs, seed=1):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, leaves, up.to(out.dtype))]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 77, 1000])
@pytest.mark.parametrize("name", OPTIONS)
def test_chunks_of_any_size_give_the_quadratic_form(name, chunk):
    p = problem()
    attend, define = made(chunked(name, chunk), p)
    inputs, rows = tensors(p), torch.arange(p.q_len)
    want = differentiated(lambda q, k, v: define(q, k, v, rows), inputs)
    for got, wanted in zip(differentiated(attend, inputs), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_steps_give_what_the_whole_gives(name, new, mask):
    p = problem(mask, q_len=new, kv_len=22 if new == 1 else 24, phase="decode")
    attend, define = made(name, p)
    _, k, v = tensors(p)
    q_all = tensors(p.with_(q_len=p.kv_len), 3)[0]
    before = 9
    memory = attend.remember(k[:, :, :before], v[:, :, :before])
    for start in range(before, p.kv_len, new):
        kept = [x.clone() for x in memory[:2]]
        at = slice(start, start + new)
        out, later = attend.step(q_all[:, :, at], k[:, :, at], v[:, :, at], memory)
        assert all(torch.equal(a, b) for a, b in zip(memory[:2], kept, strict=True))
        memory = later
    want = define(q_all[:, :, -new:], k, v, torch.arange(new))
    torch.testing.assert_close(out, want, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(attend(q_all[:, :, -new:], k, v), want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_no_bit_of_a_later_key_comes_in(name, dtype):
    p = problem(dtype=dtype, q_len=41, kv_len=47, head_dim=16)
    attend, _ = made(chunked(name, 8), p)
    q, k, v = tensors(p)
    base = attend(q, k, v)
    for key in range(6, p.kv_len):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, key] *= -3
        other_v[:, :, key] += 50
        out = attend(q, other_k, other_v)
        assert torch.equal(out[:, :, : key - 6], base[:, :, : key - 6])
        assert not torch.equal(out[:, :, key - 6], base[:, :, key - 6])


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_linear_in_the_values(name, mask):
    p = problem(mask)
    attend, _ = made(chunked(name, 16), p)
    q, k, v = tensors(p)
    other = tensors(p, 5)[2]
    both = attend(q, k, 2.0 * v - 3.0 * other)
    torch.testing.assert_close(both, 2.0 * attend(q, k, v) - 3.0 * attend(q, k, other))


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", POSITIVE)
def test_positive_weights_give_means_of_the_values(name, mask):
    p = problem(mask, head_dim=16)
    attend, _ = made(chunked(name, 16), p)
    q, k, v = tensors(p)
    torch.testing.assert_close(attend(q, k, torch.ones_like(v)), torch.ones_like(q[..., :6]))
    v = v.repeat_interleave(p.group, 1)
    low, high = v.amin(2, keepdim=True), v.amax(2, keepdim=True)
    if mask == "causal":
        low, high = v.cummin(2).values, v.cummax(2).values
    out = attend(q, k, v[:, :: p.group])
    assert bool(((out >= low - 1e-12) & (out <= high + 1e-12)).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_keys_matters_to_cosformer_alone(name):
    p = problem("none")
    attend, _ = made(name, p)
    q, k, v = tensors(p)
    mixed = torch.randperm(p.kv_len, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(attend(q, k[:, :, mixed], v[:, :, mixed]), attend(q, k, v))
    assert same == (name != "cosformer")


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_key_are_zero_with_a_gradient_of_zero(name):
    p = problem(q_len=30, kv_len=12)
    attend, _ = made(chunked(name, 4), p)
    out, dq, dk, dv = differentiated(attend, tensors(p))
    assert not out[:, :, :18].any() and not dq[:, :, :18].any()
    assert out[:, :, 18:].any() and all(x.isfinite().all() for x in (dq, dk, dv))


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x._base is None:
                self.numbers = max(self.numbers, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_the_length_forward_and_backward(name, mask):
    held = []
    for length in (1024, 4096):
        p = problem(mask, dtype="float32", batch=1, q_len=length, kv_len=length, phase="train")
        attend, _ = made(name, p)
        saved = {}

        def keep(x, saved=saved):
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            differentiated(attend, tensors(p))
        held.append((largest.numbers, sum(saved.values())))
    (most, kept), (more, kept_more) = held
    assert more <= 4.01 * most and kept_more <= 4.1 * kept


@pytest.mark.parametrize("name", [*NAMES, "hedgehog?init=random"])
def test_the_cost_is_what_is_counted(name):
    p = problem("none", dtype="float32", q_len=2048, kv_len=2048, head_dim=32, v_head_dim=32)
    attend, _ = made(name, p)
    row = impls.table().find(name)
    with FlopCounterMode(display=False) as counter:
        attend(*tensors(p))
    said = load_function(row.cost)(p, **row.chosen).flops
    assert said <= counter.get_total_flops() <= 1.05 * said


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_below_one_is_refused(name, chunk):
    row = impls.table().find(chunked(name, chunk))
    with pytest.raises(Unsupported, match=f"chunk={chunk} must be 1 or more"):
        load_function(row.build)(problem(), **row.chosen)
    load_function(row.definition)(problem(), **row.chosen)
    assert load_function(row.cost)(problem(), **row.chosen).flops > 0


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cosine"])
def test_the_upper_left_corner_is_refused_where_it_differs(name):
    with pytest.raises(Unsupported, match="lower-right"):
        made(name, problem("causal@upper-left", q_len=5))
    made(name, problem("causal@upper-left"))


# ---- public implementations, given the same features -----------------------------------------


class _Transformers(FeatureMap):
    """As linear-attention-transformer has them: softmax over channels; over keys or no further."""

    def __init__(self, problem, over_keys):
        super().__init__(problem)
        self.over_keys, self.scale = over_keys, problem.head_dim**-0.5

    def queries(self, q_bhnd, start):
        return q_bhnd.softmax(-1) * self.scale

    def keys(self, k_bcmd, start):
        return k_bcmd.softmax(-2) if self.over_keys else k_bcmd.exp()


@pytest.mark.filterwarnings("ignore")
def test_linear_attention_transformer_agrees_without_a_mask():
    public = pytest.importorskip("linear_attention_transformer.linear_attention_transformer")
    p = problem("none", kv_heads=4, v_head_dim=8)
    attend = Linear(p, _Transformers(p, True), "none", 16)
    inputs = tensors(p)
    for got, want in zip(
        differentiated(attend, inputs), differentiated(public.linear_attn, inputs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


@pytest.mark.filterwarnings("ignore")
def test_linear_attention_transformer_agrees_causally_with_buckets_of_one():
    public = pytest.importorskip("linear_attention_transformer.linear_attention_transformer")
    p = problem("causal", kv_heads=4, v_head_dim=8)
    attend = Linear(p, _Transformers(p, False), "weights", 16)
    q, k, v = tensors(p)
    want = public.causal_linear_attn(q, k, v, bucket_size=1, eps=0.0)
    torch.testing.assert_close(attend(q, k, v), want, rtol=1e-10, atol=1e-11)
    # In larger buckets its rows see whole buckets before their own, and so less than a causal mask.
    coarse = public.causal_linear_attn(q, k, v, bucket_size=11)
    assert not coarse[:, :, :11].any() and not np.allclose(coarse, want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", POSITIVE)
def test_performer_pytorch_agrees_given_the_same_features(name, mask):
    public = pytest.importorskip("performer_pytorch.performer_pytorch")
    p = problem(mask, kv_heads=4, head_dim=16)
    attend, _ = made(chunked(name, 16), p)
    q, k, v = tensors(p)
    features = attend.features
    phi_q, phi_k = features.expand(features.queries(q, 0)), features.expand(features.keys(k, 0))
    if mask == "none":
        want = public.linear_attention(phi_q, phi_k, v)
    else:
        want = public.causal_linear_attention_noncuda(phi_q, phi_k, v, chunk_size=16, eps=0.0)
    torch.testing.assert_close(attend(q, k, v), want, rtol=1e-9, atol=1e-10)
