"""Small problems for the tests of ``impls``, their inputs, and what a row makes of them."""

from functools import lru_cache

import torch

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from attnbench.gate.selection import judged_by
from impls import operators
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()
SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 45, "kv_len": 45, "head_dim": 16,
    "v_head_dim": 12, "dtype": "float64",
}  # fmt: skip


OPTIONS = {  # that make a few dozen tokens several blocks, chunks, landmarks or clusters
    "chunked": ["block=5"], "online": ["q_block=32&k_block=16"], "window.blocked": ["", "block=7"],
    "strided": ["", "stride=7"], "fixed": ["", "stride=9&summary=2"],
    "dilated": ["", "dilation=3&width=5"], "longformer": ["", "window=6&globals=3"],
    "bigbird": ["", "block=8&globals=1&random=2"], "topk": ["k=1", "k=6"],
    "lsh": ["rounds=3&bucket=8", "rounds=3&bucket=8&shared=true"],
    "routing": ["", "clusters=4&window=30&seed=2"],
    "moba": ["block=8&top=3", "block=7&top=1"], "nsa": ["block=8&top=4&window=5"],
    "dsa": ["top=6"],
    "evict.sinks": ["budget=9&sinks=3", "budget=9&sinks=0"], "evict.h2o": ["budget=9"],
    "evict.snapkv": ["budget=9&window=3"], "evict.quest": ["budget=11&page=4"],
    "evict.random": ["budget=9"],
    "linformer": ["rank=7", "projection=random&rank=9&seed=3"],
    "nystrom": ["landmarks=7", "landmarks=7&iterations=2"],
    "performer": ["", "features=20&chunk=7&seed=2"], "rfa": ["", "chunk=7&seed=2"],
    "skyformer": ["", "landmarks=9&seed=1&gamma=0.01"],
    "linear.identity": ["chunk=16", "normalise=true&chunk=16"], "linear.elu": ["chunk=16"],
    "cosformer": ["chunk=16"], "linear.taylor": ["features=0&chunk=16", "features=5&chunk=16"],
    "hedgehog": ["chunk=16", "init=random&chunk=16"], "cosine": ["chunk=16", "normalise=softmax"],
    "retention": ["chunk=7&gates=fixed"], "gla": ["chunk=7&seed=3&gates=key", "chunk=32&gates=key"],
    "delta": ["chunk=7&seed=3&gates=key", "chunk=32&gates=key"],
    "ssd": ["chunk=7&seed=3&gates=key", "chunk=32&gates=key"],
    "mha": ["", "key_bias=false", "bias=false", "core=linear.elu", "core=chunked?block=16"],
    "mha.native": ["", "need_weights=true"],
    "mla": ["", "absorbed=true", "latent=3&rope=2", "latent=20&absorbed=true"],
    "mixed": ["form=graph", "form=full&edges=3&hidden=1", "form=matnet&seed=7"],
    "block": ["", "norm=post&activation=relu&ff=1", "core=linear.elu"],
    "block.native": ["", "norm=post&activation=relu"],
}  # fmt: skip


def problem(mask="none", length=45, **changes):
    """In float64; ``length`` is that of queries and keys."""
    extent = {**SMALL, "q_len": length, "kv_len": length}
    return Problem(**{**extent, **changes}, mask=Mask.parse(mask))


def both_forms(label, p):
    """``(attend, define)`` of a row and a problem; None for what it computes as softmax does."""
    row = TABLE.find(label)
    paths = (row.build, row.definition)
    return tuple(load_function(path)(p, **row.chosen) if path else None for path in paths)


def takes_more(row, p):
    """Inputs beyond q, k and v, which come by name."""
    return p.level == "core" and any(x.keyword for x in operators.inputs(row.operator, p).values())


@lru_cache(maxsize=64)
def judged(p, seed=0):
    """The reference that the gate holds every variant of a problem against."""
    return judge(p, make(p, seed), seed)


def verdict(label, p, seed=0):
    """The verdict of the ruler's gate on a row: its ``reason`` is None where it holds."""
    row = TABLE.find(label)
    assert row.supports(p) is None
    attend, define = both_forms(label, p)
    define = judged_by(p, define, attend, operators.inputs(row.operator, p))
    return gate(judged(p, seed).of(row.operator), attend, define, seed)


def both_give(label, p, tensors, want, *, head=(), **close):
    """Both forms of a row give what was computed by hand; of one head, where one is named."""
    attend, define = both_forms(label, p)
    rows, want = torch.tensor([p.q_len - 1, 0, p.q_len // 2]), torch.as_tensor(want)
    torch.testing.assert_close(attend(*tensors)[head], want, **close)
    torch.testing.assert_close(define(*tensors, rows)[head], want[..., rows, :], **close)


def cost(label, p):
    row = TABLE.find(label)
    return load_function(row.cost)(p, **row.chosen)


def inputs(p, factor=1.0, seed=0):
    """q, k, v, standard normal; queries and keys times a factor."""
    generator = torch.Generator().manual_seed(seed)

    def normal(heads, length, width):
        shape = (p.batch, heads, length, width)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(getattr(torch, p.dtype))

    q = normal(p.heads, p.q_len, p.head_dim)
    k = normal(p.kv_heads, p.kv_len, p.head_dim)
    return q * factor, k * factor, normal(p.kv_heads, p.kv_len, p.v_head_dim)


def differentiated(function, tensors, seed=1):
    """The output, and the gradients of the tensors under one drawn from above."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    above = up.to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, above, materialize_grads=True)]


def draw(p, seed=7):
    """q, k, v and sinks, if there are any, as leaves in the problem's dtype."""
    tensors = [*inputs(p, seed=seed)]
    if p.sinks:
        tensors.append(torch.linspace(-1, 2, p.heads, dtype=tensors[0].dtype))
    return [x.requires_grad_(p.gradients) for x in tensors]


def softmax(p, q, k, v, sinks=None, visible=None):
    """Exact attention by the mask's dense form, or another; rows that see nothing give zeros."""
    if visible is None:
        visible = p.mask.visible(p.shape)
    visible, bias = torch.as_tensor(visible), p.mask.bias(p.shape)
    k, v = (x.repeat_interleave(p.heads // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * p.scale
    if p.softcap:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    if bias is not None:
        scores = scores + torch.as_tensor(bias).to(q.dtype)
    blind = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~(visible | blind), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    return (scores.softmax(-1)[..., : p.kv_len] @ v).masked_fill(blind, 0.0)


FAR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Relative errors, by the norm."""


def check(p, attend, exact=softmax):
    """The output and, where there are any, the gradients, against float64; returns the leaves."""
    leaves = draw(p)
    twins = [x.detach().double().requires_grad_(p.gradients) for x in leaves]
    out = attend(*leaves[:3], **({"sinks": leaves[3]} if p.sinks else {}))
    want = exact(p, *twins)
    pairs = [(out, want)]
    if p.gradients:
        dout = torch.randn(want.shape, generator=torch.Generator().manual_seed(8)).to(out.dtype)
        got = torch.autograd.grad(out, leaves, dout)
        pairs += zip(got, torch.autograd.grad(want, twins, dout.double()), strict=True)
    for one, other in pairs:
        assert one.shape == other.shape and one.dtype == getattr(torch, p.dtype)
        off = (one.detach().double() - other.detach()).norm() / other.detach().norm().clamp(min=1.0)
        assert off < FAR[p.dtype], float(off)
    return leaves


def layer(mask="none", phase="forward", length=33, level="layer", **more):
    """A small problem of a layer or a block, in float32; queries and keys as long as each other."""
    extent = {"heads": 4, "kv_heads": 4, "q_len": length, "kv_len": length, "head_dim": 8, **more}
    extent |= {"v_head_dim": extent["head_dim"], "level": level}
    return Problem(**extent, phase=phase, mask=Mask.parse(mask))
