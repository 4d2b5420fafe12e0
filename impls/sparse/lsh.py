"""Attention among queries and keys that hash alike (Reformer, arXiv:2001.04451).

    h(x)  = argmax[ x R ; -x R ]      R random, the same for queries and keys; drawn anew each round
    queries and keys are sorted by h, each by its own place where h is equal, and cut into chunks of
    `bucket`; the queries of a chunk attend the keys of that chunk and of the one before
    out_i = sum_j c_ij exp(s_ij) v_j / sum_j c_ij exp(s_ij)      s = q k^T d^-1/2
    c_ij  = in how many of the `rounds` query i met key j

So rounds are combined by log-sum-exp, and a key met twice weighs twice. That is what
reformer-pytorch does by default; the authors' code (trax, allow_duplicate_attention=False) and the
paper's formula count it once. Keys of other buckets within the two chunks are attended, as by
reformer-pytorch and in the authors' configurations; the paper's equation 3 hides them. The first
chunk looks back at the last, so that all chunks are alike. Of n tokens, about n / bucket buckets
are hashed to, rounded up to an even number, as reformer-pytorch chooses; the paper's chunks of
m = 2 n / buckets would make it twice as many. Above 128 they are the pairs of two smaller hashes,
else hashing would be quadratic.

`shared` is Reformer as published: the keys are the queries, and a token does not attend itself
unless it is alone. The keys are divided by their length sqrt(sum x^2) and scores multiplied by
d^-1/2, as in reformer-pytorch; the authors' code divides by the root of the mean square, so its
scores are sqrt(d) times larger. k is never read: the result does not approximate the softmax of q
and k, and its distance from that says nothing. Without `shared`, queries and keys are each their
own, as an attention that is given both needs; h does not depend on the length of x, so nothing need
be normalised, and with bucket at n / 2 or more every query meets every key: exact softmax
attention.

Which chunk a token falls into depends on all the tokens, the later ones too: only the empty mask is
strictly kept, so only that is taken (public causal forms hide later keys but are moved by them).

Cost: for each round and head 2 n d buckets / 2 to hash each of q and k, and 4 n bucket (d + e).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from impls.heads import Define, to_query_heads, wide
from impls.problem import Problem
from impls.sparse.cost import hash_widths
from impls.spec import Unsupported, at_least

MOST_ROUNDS = 64
"""Each round adds a rounding to the sums."""


UNRELATED = "the keys are the queries: its distance from softmax attention of q and k says nothing"


def rotations(problem: Problem, rounds: int, bucket: int, seed: int) -> Tensor:
    """The random matrices of every round, in the problem's dtype: [rounds, d, columns]."""
    columns = sum(hash_widths(problem.kv_len, bucket)) // 2
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(rounds, problem.head_dim, columns, generator=generator)
    return matrices.to(problem.device, getattr(torch, problem.dtype))


def hashed(x_bhnd: Tensor, rotation_dx: Tensor, widths: tuple[int, ...]) -> Tensor:
    """The bucket of every token, [b, h, n]: argmax[xR; -xR], or the pair of two such."""
    turned = x_bhnd.detach().contiguous().flatten(0, 2) @ rotation_dx
    bucket: Tensor | None = None
    for width, part in zip(widths, turned.split([w // 2 for w in widths], -1), strict=True):
        most = part.abs().argmax(-1, keepdim=True)
        digit = (most + (part.gather(-1, most) < 0) * (width // 2))[:, 0]
        bucket = digit if bucket is None else bucket * width + digit
    assert bucket is not None
    return bucket.view(x_bhnd.shape[:3])


def order_of(bucket_bhn: Tensor) -> Tensor:
    """The tokens by bucket, and by place where the bucket is the same."""
    return bucket_bhn.int().argsort(dim=-1, stable=True)


class Places(NamedTuple):
    """One round: which token stands in which slot, as rows of the flattened tensors."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    back: Tensor
    """For each query row [b h n], its slot among [b, c, chunks, g, bucket]."""


class Lsh:
    """Attention in sorted chunks. Legend in :mod:`impls.heads`; s slots of keys."""

    def __init__(self, problem: Problem, rounds: int, bucket: int, seed: int, shared: bool) -> None:
        if not 1 <= rounds <= MOST_ROUNDS:
            raise Unsupported(f"rounds={rounds} must be 1 to {MOST_ROUNDS}")
        at_least("bucket", bucket, 1)
        self.problem, self.shared, self.wanted = problem, shared, bucket
        self.length = min(bucket, problem.kv_len)
        self.chunks = -(-problem.kv_len // self.length)
        self.short = self.chunks * self.length - problem.kv_len
        self.heads = problem.heads if shared else problem.kv_heads  # each with keys of its own
        self.group = problem.heads // self.heads
        self.widths = hash_widths(problem.kv_len, bucket)
        self.rotations = rotations(problem, rounds, bucket, seed)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """One call."""
        keys = normalize(q_bhnd, dim=-1) if self.shared else k_bcmd
        inputs = q_bhnd, keys, v_bcme, self
        out: Tensor = Attention.apply(*inputs)  # type: ignore[no-untyped-call]
        return out

    def note(self) -> str:
        """The cut of the tokens."""
        all_ = " (all there are)" if self.wanted >= self.problem.kv_len else ""
        hashed_to = " x ".join(str(width) for width in self.widths)
        cut = f"{self.chunks} chunks of {self.length} tokens{all_}, {hashed_to} buckets hashed to"
        return f"{cut}; {UNRELATED}" if self.shared else cut

    def places(self, q_bhnd: Tensor, k_bcmd: Tensor, rotation: Tensor) -> Places:
        """Sorts by hash and cuts into chunks."""
        b, heads, group, n = self.problem.batch, self.heads, self.group, self.problem.kv_len
        chunks, length = self.chunks, self.length
        sorted_q = order_of(hashed(q_bhnd, rotation, self.widths))
        sorted_k = sorted_q if self.shared else order_of(hashed(k_bcmd, rotation, self.widths))
        slots = pad(sorted_k, (0, self.short)).view(b, heads, chunks, length)
        if chunks > 1:
            slots = torch.cat([slots, slots.roll(1, 2)], -1)
        row = torch.arange(b * heads, device=slots.device).view(b, heads, 1, 1)
        v_row = row // (heads // self.problem.kv_heads)
        q_row = torch.arange(b * heads * group, device=slots.device).view(b, heads, group, 1, 1)
        asks = pad(sorted_q, (0, self.short)).view(b, heads, group, chunks, length) + q_row * n
        at = torch.empty_like(sorted_q)  # the slot of each token among its head's
        count = torch.arange(n, device=at.device).expand_as(at)
        at = at.scatter_(-1, sorted_q, count).view(b, heads, group, n)
        chunk = row * chunks + at // length
        member = torch.arange(group, device=at.device).view(group, 1)
        back = (chunk * group + member) * length + at % length
        return Places(asks.transpose(2, 3).flatten(), (slots + row * n).flatten(),
                      (slots + v_row * n).flatten(), back.flatten())  # fmt: skip

    def tiles(self, x_bhnd: Tensor, rows: Tensor) -> Tensor:
        """The tokens in their slots: [b, c, chunks, slots, x]."""
        picked = x_bhnd.reshape(-1, x_bhnd.shape[-1]).index_select(0, rows)
        return picked.view(self.problem.batch, self.heads, self.chunks, -1, x_bhnd.shape[-1])

    def scores(self, q_bcurd: Tensor, k_bcusd: Tensor) -> Tensor:
        """Scaled scores in the wide dtype, -inf where a slot is empty or is the query itself."""
        scores = (q_bcurd @ k_bcusd.mT).to(wide(self.problem)).mul_(self.problem.scale)
        if self.short:
            scores[:, :, -1, :, self.length - self.short : self.length] = -torch.inf
            if self.chunks > 1:
                scores[:, :, 0, :, -self.short :] = -torch.inf
        if self.shared and self.problem.kv_len > 1:
            own = scores.unflatten(3, (self.group, self.length))[..., : self.length]
            own.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
        return scores


class Attention(torch.autograd.Function):
    """Round by round; backward computes the weights again, from each row's maximum and sum.

    Not from their log-sum, nor with sum_e dout out for sum_j p dp: where one key has all the weight
    either would leave rounding where the plain form cancels exactly.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Lsh) -> Tensor:
        """The rounds are added as they come, as blocks of one softmax would be."""
        dtype, rounds = wide(plan.problem), [plan.places(q, k, r) for r in plan.rotations]
        out, total, top = torch.zeros((), dtype=dtype, device=q.device), None, None
        for at in rounds:
            weights = plan.scores(plan.tiles(q, at.queries), plan.tiles(k, at.keys))
            most = weights.amax(-1, keepdim=True)
            added = weights.sub_(most).exp_().sum(-1, keepdim=True)
            part = weights.div_(added).to(q.dtype) @ plan.tiles(v, at.values)
            part = part.view(-1, v.shape[-1]).index_select(0, at.back).to(dtype)
            most, added = (x.view(-1, 1)[at.back] for x in (most, added))
            if total is None or top is None:
                out, total, top = part, added, most
                continue
            both = torch.maximum(top, most)
            old, added = total * (top - both).exp(), added * (most - both).exp()
            total, top = old + added, both
            out = out.mul_(old / total).add_(part.mul_(added / total))
        ctx.plan, ctx.rounds = plan, rounds
        ctx.save_for_backward(q, k, v, total, top)
        return out.to(q.dtype).view(*q.shape[:3], -1)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        """First what each row gets in all rounds, then what goes to each score."""
        plan: Lsh = ctx.plan
        q, k, v, total, top = ctx.saved_tensors
        dout, dtype = above[0].contiguous(), total.dtype
        dq, dk, dv = (torch.zeros_like(x, dtype=dtype).flatten(0, 2) for x in (q, k, v))
        mean, steps = torch.zeros_like(total), []
        for at in ctx.rounds:
            weights = plan.scores(plan.tiles(q, at.queries), plan.tiles(k, at.keys))
            column = (*weights.shape[:-1], 1)
            weights = weights.sub_(top[at.queries].view(column)).exp_()
            weights = weights.div_(total[at.queries].view(column))
            if plan.short:  # rows that stand in no one's place
                weights.unflatten(3, (plan.group, plan.length))[:, :, -1, :, -plan.short :] = 0.0
            douts = plan.tiles(dout, at.queries)
            dv.index_add_(0, at.values, (weights.to(v.dtype).mT @ douts).to(dtype).flatten(0, 3))
            ds = (douts @ plan.tiles(v, at.values).mT).to(dtype)
            mean += (weights * ds).sum(-1).view(-1, 1)[at.back]
            steps.append((weights, ds))
        for at, (weights, ds) in zip(ctx.rounds, steps, strict=True):
            ds = ds.sub_(mean[at.queries].view(*ds.shape[:-1], 1)).mul_(weights)
            ds = ds.mul_(plan.problem.scale).to(q.dtype)
            dq.index_add_(0, at.queries, (ds @ plan.tiles(k, at.keys)).to(dtype).flatten(0, 3))
            dk.index_add_(0, at.keys, (ds.mT @ plan.tiles(q, at.queries)).to(dtype).flatten(0, 3))
        gradients = ((dq, q), (dk, k), (dv, v))
        return (*(x.to(like.dtype).view(like.shape) for x, like in gradients), None)


build = Lsh


def definition(problem: Problem, rounds: int, bucket: int, seed: int, shared: bool) -> Define:
    """The plain form: all scores, each weighted by how many rounds let the pair meet."""
    rounds, bucket = max(rounds, 1), max(bucket, 1)
    matrices = rotations(problem, rounds, bucket, seed)
    widths, chunks = hash_widths(problem.kv_len, bucket), math.ceil(problem.kv_len / bucket)
    own = getattr(torch, problem.dtype)

    def chunk_of(x_bhnd: Tensor, matrix: Tensor) -> Tensor:
        order = order_of(hashed(x_bhnd.to(own), matrix, widths))
        return order.argsort(-1) // bucket

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        met = torch.zeros((), device=rows.device)
        for matrix in matrices:
            of_query = chunk_of(q_bhnd, matrix)
            of_key = of_query if shared else to_query_heads(chunk_of(k_bcmd, matrix), problem)
            mine, its = of_query[:, :, rows, None], of_key[:, :, None]
            met = met + ((its == mine) | (its == (mine - 1) % chunks)).to(q_bhnd.dtype)
        keys = normalize(q_bhnd, dim=-1) if shared else to_query_heads(k_bcmd, problem)
        if shared and problem.kv_len > 1:
            key = torch.arange(problem.kv_len, device=rows.device)
            met = met.masked_fill(key == rows[:, None], 0.0)
        scores = (q_bhnd[:, :, rows] @ keys.mT) * problem.scale + met.log()
        return scores.softmax(-1) @ to_query_heads(v_bcme, problem)

    return define
