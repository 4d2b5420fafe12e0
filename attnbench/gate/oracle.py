"""The oracle: exact softmax attention and its gradients in float64, for some rows of queries.

Rows of attention are independent, so a few hundred of them judge a million. With the upstream
gradient zero outside those rows, dk and dv are exact too, over all keys:

    p = softmax(s)   out = p v   dv = p^T dout   ds = p (dout v^T - sum(dout out))
    dq = scale ds k  dk = scale ds^T q

Under a soft cap s is c tanh(x / c) of the scaled scores x, and ds becomes ds (1 - (s / c)^2). The
log-sum-exp of s has the gradient p, so where it is an output too, with an upstream gradient of its
own, that is taken off sum(dout out).
One block of rows at a time, keys only as far as the mask lets those rows see; one key/value head at
a time on a CPU, as many as fit on a GPU. Legend: x key/value heads over the batch, g query heads to
each, r rows, m keys in sight, d head_dim, e v_head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbench.core.device import device_for
from attnbench.core.record import Error
from attnbench.gate.inputs import as_rows, in_sight, upstream_besides
from impls.heads import Define, to_query_heads
from impls.problem import Problem

BLOCK_BYTES = 32 << 20
"""Roughly what one block of float64 scores may take."""
GPU_BYTES = 512 << 20
"""The same of all the heads that a GPU computes at once."""


class Exact(NamedTuple):
    """What softmax attention is, in float64. Gradients are None where no dout was given."""

    out: Tensor
    """[batch, heads, rows, v_head_dim], as dq is [batch, heads, rows, head_dim]."""
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    """None where values are channels of keys, whose gradient then has both parts."""
    dsinks: Tensor | None = None
    """[heads]; None where there are no sinks."""
    entropy: float = 0.0
    """Mean over rows that see two keys or more, as a share of that of uniform weights."""
    lse: Tensor | None = None
    """[batch, heads, rows]; None where the problem doesn't ask for it."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The output, as ``forward``, what comes besides, and the gradients, in rows."""
        lse = None if self.lse is None else in_sight(self.lse)[..., None]
        values = {"forward": self.out, "lse": lse, "dq": self.dq, "dk": self.dk, "dv": self.dv}
        if self.dsinks is not None:
            values["dsinks"] = as_rows(self.dsinks, ("heads",))
        return {name: x for name, x in values.items() if x is not None}


class _Block(NamedTuple):
    """Some of the rows: where they stand among the sampled ones, what they see, what is added."""

    at: slice
    keys: slice
    seen: Tensor
    bias: Tensor | None

    def of(self, problem: Problem, some: Tensor) -> tuple[Tensor, Tensor | None]:
        """What some of the key heads see, and what is added to their scores."""
        bias = None if self.bias is None else _own(problem, self.bias, some)
        return _own(problem, self.seen, some), bias


def exact(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    dout: Tensor | None = None,
    *,
    sinks: Tensor | None = None,
    uniform: bool = False,
) -> Exact:
    """Softmax attention of some rows; ``dout`` is [batch, heads, rows, v_head_dim], sinks [heads].

    ``uniform`` gives every key in sight the same weight: what ``mean_v`` computes.
    """
    b, h, c, g = problem.batch, problem.heads, problem.kv_heads, problem.group
    zeros = partial(torch.zeros, dtype=torch.float64, device=q.device)
    out, lse = zeros(b, h, len(rows), problem.v_head_dim), zeros(b, h, len(rows), 1)
    dq = zeros(b, h, len(rows), problem.head_dim)
    keys = 0 if dout is None else problem.kv_len
    dk, dv = (zeros(b, c, keys, width) for width in (problem.head_dim, problem.v_head_dim))
    out_x, dq_x, lse_x = (y.view(b * c, g, *y.shape[2:]) for y in (out, dq, lse))
    do_x = None if dout is None else dout.reshape(b * c, g, *dout.shape[2:])
    dl_x = [] if do_x is None else upstream_besides(problem, do_x)
    dk_x, dv_x, k_x, v_x = (y.flatten(0, 1) for y in (dk, dv, k, v))
    q_x = q[:, :, rows].reshape(b * c, g, len(rows), -1)
    sinks_cg = (zeros(h) - torch.inf if sinks is None else sinks.double()).view(c, g)
    d_sinks, shares = torch.zeros_like(sinks_cg), list[Tensor]()
    blocks = [*_blocks(problem, rows, plain=uniform)]
    for some in torch.arange(b * c).split(_heads_at_once(problem, len(rows))):
        own = slice(int(some[0]), int(some[-1]) + 1)
        q_xgrd = q_x[own].double() * (0.0 if uniform else 1.0)
        k_xmd, v_xme = k_x[own, None].double(), v_x[own, None].double()
        for block in blocks:
            k_in, v_in = k_xmd[..., block.keys, :], v_xme[..., block.keys, :]
            q_in, (seen, bias) = q_xgrd[:, :, block.at], block.of(problem, some)
            scores = cap(problem, q_in @ k_in.mT * problem.scale)
            slope = None if problem.softcap is None else 1 - (scores / problem.softcap).square()
            p, p_sink, log_sum = _weights(scores, seen, bias, sinks_cg[some % c, :, None, None])
            out_x[own, :, block.at] = o = p @ v_in
            lse_x[own, :, block.at] = log_sum
            shares.append(_entropy(p, seen))
            if do_x is None:
                continue
            do = do_x[own, :, block.at].double()
            dv_x[own, block.keys] += p.flatten(1, 2).mT @ do.flatten(1, 2)
            lost = (do * o).sum(-1, keepdim=True) - sum(dl[own, :, block.at, None] for dl in dl_x)
            d_sinks.index_add_(0, some % c, -(p_sink * lost).sum((2, 3)))
            ds = (do @ v_in.mT).sub_(lost).mul_(p)
            ds = ds if slope is None else ds.mul_(slope)
            dq_x[own, :, block.at] = (ds @ k_in).mul_(problem.scale)
            dk_x[own, block.keys] += ds.flatten(1, 2).mT @ q_in.flatten(1, 2) * problem.scale
    entropy = torch.cat(shares)
    mean = float(entropy.sum() / max(1, len(entropy)))
    result = Exact(out, entropy=mean, lse=lse[..., 0] if problem.lse else None)
    if dout is None:
        return result
    if problem.v_in_k:
        dk[..., : problem.v_head_dim] += dv
    d_sinks_h = None if sinks is None else d_sinks.flatten()
    return result._replace(dq=dq, dk=dk, dv=None if problem.v_in_k else dv, dsinks=d_sinks_h)


def _entropy(p: Tensor, seen: Tensor) -> Tensor:
    """By row that sees two keys or more: its entropy as a share of that of uniform weights."""
    counts = seen.sum(-1).expand(p.shape[:-1])
    shares = torch.special.entr(p).sum(-1) / counts.double().log()
    return shares[counts > 1]


def _heads_at_once(problem: Problem, rows: int) -> int:
    """How many key/value heads are computed together: on a processor, what its caches hold."""
    room = GPU_BYTES if device_for(problem.device).queued else 0
    return max(1, room // (8 * problem.group * rows * problem.kv_len))


def _blocks(problem: Problem, rows: Tensor, *, plain: bool) -> Iterator[_Block]:
    """Rows in blocks that see about as much of the keys as each other."""
    shape, mask, device = problem.shape, problem.mask, rows.device
    widest = problem.group + (problem.heads if "alibi" in mask.kinds or "bias" in mask.kinds else 0)
    step = max(1, BLOCK_BYTES // (8 * widest * problem.kv_len))
    picked = rows.cpu().numpy()
    for start in range(0, len(picked), step):
        some = picked[start : start + step]
        first, past = mask.spans(shape, some)
        keys = slice(int(first.min()), max(int(past.max()), int(first.min()) + 1))
        keys = slice(min(keys.start, shape.kv_len - 1), min(keys.stop, shape.kv_len))
        seen = torch.from_numpy(np.ascontiguousarray(mask.visible(shape, some)[..., keys]))
        added = None if plain else mask.bias(shape, some)
        bias = None if added is None else torch.from_numpy(added[..., keys].copy()).to(device)
        yield _Block(slice(start, start + len(some)), keys, seen.to(device), bias)


def _own(problem: Problem, table: Tensor, heads: Tensor) -> Tensor:
    """The part of a [b|1, h|1, …] table that belongs to some key/value heads: [x|1, g|1, …]."""
    b, h = table.shape[:2]
    if b == h == 1:
        return table
    by_head = table.unflatten(1, (problem.kv_heads, -1) if h > 1 else (1, 1))
    element, head = heads // problem.kv_heads, heads % problem.kv_heads
    return by_head[element if b > 1 else 0 * element, head if h > 1 else 0 * head]


def cap(problem: Problem, scores: Tensor) -> Tensor:
    """Scaled scores under the problem's soft cap."""
    if problem.softcap is None:
        return scores
    return (scores / problem.softcap).tanh() * problem.softcap


def _weights(
    scores: Tensor, visible: Tensor, bias: Tensor | None, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax over what is in sight and a sink, in place, the sink's own weight, and the
    log-sum-exp; rows of zeros, and -inf, where nothing is in sight.
    """
    if bias is not None:
        scores += bias
    scores.masked_fill_(~visible, -torch.inf)
    kind = torch.finfo(torch.float64)
    top = scores.amax(-1, keepdim=True).clamp_(min=kind.min).maximum(sink)
    powers = scores.sub_(top).exp_()
    beside = (sink - top).exp_()
    total = powers.sum(-1, keepdim=True) + beside
    log_sum = total.log() + top
    total.clamp_(min=kind.tiny)
    return powers.div_(total), beside / total, log_sum


EDGES = (0, 1, 127, 128, -2, -1)
"""Rows always sampled: where blocks and sequences begin and end."""


def sample_rows(q_len: int, count: int, seed: int) -> Tensor:
    """All rows where there are few, else the edges and a random rest, in order."""
    if q_len <= count:
        return torch.arange(q_len)
    generator = torch.Generator().manual_seed(seed)
    edges = torch.tensor([e % q_len for e in EDGES])
    rest = torch.randint(q_len, (count,), generator=generator)
    rest = rest[~torch.isin(rest, edges)].unique()
    few = rest[torch.randperm(len(rest), generator=generator)][: count - len(edges)]
    return torch.cat([edges, few]).unique()


def softmax_weights(problem: Problem, q: Tensor, k: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of some rows on all keys, and which rows see none."""
    scores, blind = _scores(problem, q, k, rows)
    return scores.softmax(-1), blind


def softmax_define(problem: Problem) -> Define:
    """The output of some rows, and what comes besides, differentiable."""

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, sinks: Tensor | None = None) -> Any:
        scores, blind = _scores(problem, q, k, rows)
        column = scores.new_full((), -torch.inf)
        if sinks is not None:
            column = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], -1)
        weights = scores.softmax(-1)[..., : problem.kv_len]
        out = (weights @ to_query_heads(v, problem)).masked_fill(blind, 0.0)
        if not problem.lse:
            return out
        log_sums = scores.logsumexp(-1, keepdim=True)
        return out, torch.where(blind, column, log_sums)[..., 0]

    return define


def recomputed(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    dout: Tensor | None,
    sinks: Tensor | None = None,
) -> dict[str, Tensor]:
    """The output and, over the rows, the gradients, from weights computed a second time."""
    dtype = q.dtype
    inside = dtype if dtype.itemsize > 2 else torch.float32
    q, k, v = (x.to(inside) for x in (q, k, v))
    k_bhmd, v_bhme = to_query_heads(k, problem), to_query_heads(v, problem)
    scores, blind = _scores(problem, q, k, rows)
    log_sum = scores.logsumexp(-1, keepdim=True)
    if sinks is not None:
        log_sum = torch.logaddexp(log_sum, sinks[:, None, None].to(inside))
    out = ((scores - log_sum).exp() @ v_bhme).masked_fill(blind, 0.0).to(dtype).to(inside)
    again, _ = _scores(problem, q, k, rows, another_order=True)
    weights = (again - log_sum).exp().masked_fill(blind, 0.0)
    tensors, own = {"forward": weights @ v_bhme}, dict[str, Tensor]()
    if problem.lse:
        alone = log_sum.new_zeros(()) if sinks is None else sinks[:, None, None].to(inside)
        own["lse"] = log_sum = torch.where(blind, alone, log_sum)
    if dout is not None:
        above = upstream_besides(problem, dout)
        dout = dout.to(inside)
        lost = (dout * out).sum(-1, keepdim=True)
        for each in above:
            lost -= each[..., None].to(inside)
        if sinks is not None:
            taken = (sinks[:, None, None].to(inside) - log_sum).exp()
            tensors["dsinks"] = (taken * lost).sum((0, 2, 3)).neg()
        ds = weights * (dout @ v_bhme.mT - lost)
        if problem.softcap is not None:
            ds *= 1 - ((q[:, :, rows] @ k_bhmd.mT) * (problem.scale / problem.softcap)).tanh() ** 2
        tensors["dq"] = (ds @ k_bhmd) * problem.scale
        heads = (problem.kv_heads, problem.group)
        tensors["dk"] = ((ds.mT @ q[:, :, rows]) * problem.scale).unflatten(1, heads).sum(2)
        tensors["dv"] = (weights.mT @ dout).unflatten(1, heads).sum(2)
        if problem.v_in_k:
            tensors["dk"][..., : problem.v_head_dim] += tensors.pop("dv")
    return {name: tensor.to(dtype) for name, tensor in tensors.items()} | own


def _scores(
    problem: Problem, q: Tensor, k: Tensor, rows: Tensor, *, another_order: bool = False
) -> tuple[Tensor, Tensor]:
    """Masked scores, rows that see nothing left open, and which rows those are."""
    picked = rows.cpu().numpy()
    seen = torch.from_numpy(problem.mask.visible(problem.shape, picked)).to(q.device)
    added = problem.mask.bias(problem.shape, picked)
    q_bhrd, k_bhmd = q[:, :, rows], to_query_heads(k, problem)
    if another_order:
        even, odd = (q_bhrd[..., i::2] @ k_bhmd[..., i::2].mT for i in (0, 1))
        scores = (even + odd) * problem.scale
    else:
        scores = (q_bhrd @ k_bhmd.mT) * problem.scale
    scores = cap(problem, scores)
    if added is not None:
        scores = scores + torch.from_numpy(added).to(q.device, q.dtype)
    blind = ~seen.any(-1, keepdim=True)
    open_scores = scores if added is None else scores.nan_to_num(neginf=0.0).where(blind, scores)
    return open_scores.masked_fill(~(seen | blind), -torch.inf), blind


SLICE_NUMBERS = 1 << 24


def compare(got: Tensor, want: Tensor) -> Error:
    """The error of ``got``, [batch, heads, rows, width], against the float64 ``want``."""
    batch, heads, rows, _ = want.shape
    got_xrw, want_xrw = got.flatten(0, 1), want.flatten(0, 1)
    step = max(1, SLICE_NUMBERS // max(1, want_xrw[0].numel()))
    squares = torch.zeros(4, dtype=torch.float64)  # of: difference, reference, got; their product
    largest, worst, worst_at = 0.0, -1.0, 0
    for start in range(0, len(want_xrw), step):
        a, b = got_xrw[start : start + step].double(), want_xrw[start : start + step]
        difference = a - b
        by_row = difference.square().sum(-1)
        parts = (by_row.sum(), b.square().sum(), a.square().sum(), (a * b).sum())
        squares += torch.stack(parts).cpu()
        largest = max(largest, _finite(difference.abs().max()))
        top = by_row.flatten().argmax()
        if (height := _finite(by_row.flatten()[top])) > worst:
            worst, worst_at = height, start * rows + int(top)
    error2, want2, got2, product = (float(s) for s in squares)
    mean_row = math.sqrt(want2 / (batch * heads * rows)) if want2 else 0.0
    head, row = divmod(worst_at, rows)
    return Error(
        relative=_over(math.sqrt(error2), math.sqrt(want2)),
        max=largest,
        worst_row=_over(math.sqrt(worst), mean_row),
        cosine=_over(product, math.sqrt(got2 * want2)),
        worst_at=[head // heads, head % heads, row],
    )


def _finite(value: Tensor) -> float:
    return math.inf if value.isnan() else float(value)


def _over(part: float, whole: float) -> float:
    """A share that says 0 where nothing was wanted and nothing came."""
    if whole:
        return part / whole
    return 0.0 if part == 0 else math.inf


def worse(a: Error, b: Error) -> Error:
    """The larger of each measure; what is not a number counts as infinite."""
    larger: dict[str, Any] = {}
    for name in ("relative", "max", "worst_row"):
        some = (getattr(a, name), getattr(b, name))
        larger[name] = max(math.inf if x is None or math.isnan(x) else x for x in some)
    return Error(**larger, cosine=min(a.cosine or 0.0, b.cosine or 0.0))


Errors = Mapping[str, Error]
