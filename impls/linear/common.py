"""Shared by the linear variants: a sum over keys factorised as a running state.

    out_n = sum over the visible m of w_nm v_m / z_n,    w_nm = phi(q_n) . phi(k_m)
          = phi(q_n) S_n / z_n,                          S_n = sum over them of phi(k_m) v_m^T

z_n is the sum of the weights, the number of visible keys, or one. Without a mask all rows share one
S. Under a causal mask the keys are cut into chunks of C: inside a chunk the weights are written out
and cut to their lower triangle; of the chunks before it a row sees their S, a running sum over the
chunks of S of each, so that no bit of a later key comes into it. Few queries, or short sequences,
take the weights of all pairs, where that is less work.

Legend in :mod:`impls.heads`; D features, t chunks, C tokens in each, p = b c t blocks, r rows.
Half precisions: on the CPU all sums and products are float32; on CUDA bfloat16 stays bfloat16 in
the products, which sum in float32 inside, and states add up over the chunks in float32; but where
gradients are taken and a sum of weights is divided by, products are float32's there too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import grouped, ungrouped, wide
from impls.problem import Problem
from impls.spec import Unsupported, at_least


def work_dtype(problem: Problem) -> torch.dtype:
    """The dtype of products. Float16 has too short a range for sums of thousands of terms."""
    if problem.dtype == "bfloat16" and problem.device != "cpu":
        return torch.bfloat16
    return wide(problem)


STRETCH = 2048
"""Tokens done at a time where nothing is kept for backward: their features stay in the cache."""


class FeatureMap:
    """The feature map phi: here the identity; keys are treated as queries are.

    Base features come from :meth:`queries` and :meth:`keys`, of tokens that stand one after the
    other from ``start`` on; :meth:`weights` are those of pairs of base features. What the state
    needs may be wider: :meth:`expand` makes it of base features.
    """

    needs_wide = False
    """True if its terms cancel, or grow, too much for products of bfloat16."""

    def __init__(self, problem: Problem) -> None:
        self.width = problem.head_dim
        """The number of features of the state."""

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return q_bhnd

    def keys(self, k_bcmd: Tensor, start: int) -> Tensor:
        """Base features of keys."""
        return self.queries(k_bcmd, start)

    def weights(self, q_prd: Tensor, k_pmd: Tensor) -> Tensor:
        """The weight of every pair, [..., r, m], from base features."""
        return q_prd @ k_pmd.mT

    def expand(self, x_bcmd: Tensor) -> Tensor:
        """Base features made as wide as the state."""
        return x_bcmd

    def note(self) -> str:
        """A note on the options; mostly empty."""
        return ""


class Memory(NamedTuple):
    """A decoder's memory of the tokens before."""

    state_bcDe: Tensor
    total_bcD1: Tensor
    tokens: int


State = tuple[Tensor, Tensor]
"""For each key/value head the sum of phi(k) v^T, [b, c, D, e], and of phi(k), [b, c, D, 1]."""


class Linear:
    """``attend`` of a feature map. ``divide`` by: ``weights`` (their sum), ``count``, ``none``."""

    def __init__(self, problem: Problem, features: FeatureMap, divide: str, chunk: int) -> None:
        at_least("chunk", chunk, 1)
        self.problem, self.features, self.chunk, self.divide = problem, features, chunk, divide
        self.causal = "causal" in problem.mask.kinds
        if self.causal and problem.mask.upper_left and problem.q_len != problem.kv_len:
            raise Unsupported(
                "a causal mask with q_len other than kv_len stands lower-right here, "
                f"but the mask is {problem.mask}"
            )
        if problem.phase == "decode" and problem.q_len > problem.kv_len:
            raise Unsupported(
                f"decoding needs every query to be a token, but q_len={problem.q_len} is above "
                f"kv_len={problem.kv_len}"
            )
        n, m = problem.q_len, problem.kv_len
        self.wide = wide(problem)
        cancels = problem.gradients and divide == "weights"  # of dq little is left of two sums
        self.work = self.wide if features.needs_wide or cancels else work_dtype(problem)
        self.blind = max(n - m, 0) if self.causal else 0
        self.key_start = max(n - m, 0)
        self.query_start = self.blind + max(m - n, 0)
        self.per_row: Tensor | None = None
        if divide == "count":
            self.per_row = self._count_inverse(m - (n - self.blind), n - self.blind)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The whole of it: rows that see nothing lead and are zero."""
        q_bhnd = q_bhnd[:, :, self.blind :]
        if self.causal and not torch.is_grad_enabled() and q_bhnd.shape[2] > STRETCH:
            out_bhne = self._stretches(q_bhnd, k_bcmd, v_bcme)
        else:
            q_bcrd = grouped(self._queries(q_bhnd, self.query_start), self.problem)
            k_bcmd, v = self._keys(k_bcmd, self.key_start), v_bcme.to(self.work)
            rows = (q_bcrd, k_bcmd, v)
            out_bhne = self._pairs(*rows) if self._few(*rows) else self._states(*rows)
        if self.per_row is not None:
            out_bhne = out_bhne * self.per_row
        out_bhne = out_bhne.to(v_bcme.dtype)
        return F.pad(out_bhne, (0, 0, self.blind, 0)) if self.blind else out_bhne

    def note(self) -> str:
        """The feature map's note on its options."""
        return self.features.note()

    # ---- whole sequences -----------------------------------------------------------------------

    def _queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        return self.features.queries(q_bhnd.to(self.wide), start).to(self.work)

    def _keys(self, k_bcmd: Tensor, start: int) -> Tensor:
        return self.features.keys(k_bcmd.to(self.wide), start).to(self.work)

    def _few(self, q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> bool:
        """True if the weights of all pairs are less work than states, and no more memory."""
        r, m = q_bcrd.shape[2], k_bcmd.shape[2]
        width, e = self.features.width, v_bcme.shape[3]
        if self.causal and m <= self.chunk:
            return True
        return r * m * (k_bcmd.shape[3] + e) <= (m + r) * width * e

    def _pairs(self, q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        weights_bcrm = self.features.weights(q_bcrd, k_bcmd)
        if self.causal:
            n, m = self.problem.q_len - self.blind, k_bcmd.shape[2]
            weights_bcrm.view(*weights_bcrm.shape[:2], -1, n, m).tril_(m - n)
        out = weights_bcrm @ v_bcme
        return ungrouped(self._over(out, self._sum(weights_bcrm)), self.problem)

    def _states(self, q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        if self.causal:
            before = k_bcmd.shape[2] - (self.problem.q_len - self.blind)
            k_bcmD = self.features.expand(k_bcmd[:, :, :before])
            first = (k_bcmD.mT @ v_bcme[:, :, :before], self._total(k_bcmD)) if before else None
            return self._chunks(q_bcrd, k_bcmd[:, :, before:], v_bcme[:, :, before:], first)[0]
        q_bcrD, k_bcmD = self.features.expand(q_bcrd), self.features.expand(k_bcmd)
        out = q_bcrD @ (k_bcmD.mT @ v_bcme)
        total = _times(q_bcrD, self._total(k_bcmD)) if self.divide == "weights" else None
        return ungrouped(self._over(out, total), self.problem)

    def _stretches(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The same, a stretch of tokens after the other."""
        before = k_bcmd.shape[2] - q_bhnd.shape[2]
        memory = self.remember(k_bcmd[:, :, :before], v_bcme[:, :, :before])
        so_far = (memory.state_bcDe.to(self.work), memory.total_bcD1.to(self.work))
        size, outs = max(STRETCH // self.chunk, 1) * self.chunk, []
        for start in range(0, q_bhnd.shape[2], size):
            q = self._queries(q_bhnd[:, :, start : start + size], self.query_start + start)
            keys = slice(before + start, before + start + size)
            k, v = self._keys(k_bcmd[:, :, keys], self.key_start + keys.start), v_bcme[:, :, keys]
            out, so_far = self._chunks(grouped(q, self.problem), k, v.to(self.work), so_far)
            outs.append(out)
        return torch.cat(outs, 2)

    def _chunks(self, q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor,
                first: State | None) -> tuple[Tensor, State]:  # fmt: skip
        """As many queries as keys, cut into chunks, after what ``first`` sums up."""
        b, c, n, _ = k_bcmd.shape
        group, size = self.problem.group, min(self.chunk, n)
        short = -n % size
        chunks = (n + short) // size
        q_bcgnd = _longer(q_bcrd.reshape(b, c, group, n, -1), short)
        q_bctgCd = q_bcgnd.reshape(b, c, group, chunks, size, -1).transpose(2, 3)
        q_prd = q_bctgCd.reshape(b * c * chunks, group * size, -1)  # a copy only where g > 1
        k_pCd, v_pCe = (
            _longer(x, short).reshape(b * c * chunks, size, -1) for x in (k_bcmd, v_bcme)
        )
        weights_prC = self.features.weights(q_prd, k_pCd)
        weights_prC.view(-1, group, size, size).tril_()
        total_pr1 = self._sum(weights_prC)
        out_pre = weights_prC @ v_pCe
        k_pCD, q_prD = self.features.expand(k_pCd), self.features.expand(q_prd)
        states, last = self._running(k_pCD.mT @ v_pCe, first and first[0], b * c)
        out_pre = out_pre.baddbmm_(q_prD, states)
        totals, last_total = self._running(self._total(k_pCD), first and first[1], b * c)
        if total_pr1 is not None:
            total_pr1 = total_pr1 + _times(q_prD, totals)
        out_pre = self._over(out_pre, total_pr1)
        out_bcgtCe = out_pre.view(b, c, chunks, group, size, -1).transpose(2, 3)
        out_bhne = out_bcgtCe.reshape(b, c * group, n + short, -1)[:, :, :n]
        return out_bhne, (last.unflatten(0, (b, c)), last_total.unflatten(0, (b, c)))

    def _running(self, each_pDe: Tensor, first_bcDe: Tensor | None,
                 heads: int) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The state before every chunk, and the one after the last."""
        each_xtDe = each_pDe.view(heads, -1, *each_pDe.shape[1:])
        zero = torch.zeros_like(each_xtDe[:, :1])
        start = zero if first_bcDe is None else first_bcDe.reshape(zero.shape)
        joined = torch.cat((start, each_xtDe[:, :-1]), 1)
        sums = joined.cumsum(1, dtype=self.wide)
        last = sums[:, -1] + each_xtDe[:, -1]
        return sums.to(self.work).view(each_pDe.shape), last.to(self.work)

    def _total(self, k_bcmD: Tensor) -> Tensor:
        return k_bcmD.sum(-2, dtype=self.wide).to(self.work)[..., None]

    def _sum(self, weights_bcrm: Tensor) -> Tensor | None:
        if self.divide != "weights":
            return None
        return weights_bcrm.sum(-1, keepdim=True, dtype=self.wide)

    def _over(self, out: Tensor, total: Tensor | None) -> Tensor:
        """The quotient; where all weights are zero so is the output."""
        if total is None:
            return out
        out, total = out.to(self.wide), nonzero(total.to(self.wide))
        return out / total if torch.is_grad_enabled() else out.div_(total)

    def _count_inverse(self, before: int, new: int) -> Tensor:
        counts = torch.arange(before + 1, before + new + 1, device=self.problem.device)
        if not self.causal:
            counts = torch.full_like(counts, before + new)
        return (1.0 / counts.double()).to(self.wide)[:, None]

    # ---- a token, or few, at a time ------------------------------------------------------------

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor) -> Memory:
        """The state of all tokens before the new ones."""
        k_bcmD = self.features.expand(self.features.keys(k_bcmd.to(self.wide), 0))
        return Memory(k_bcmD.mT @ v_bcme.to(self.wide), k_bcmD.sum(2)[..., None], k_bcmd.shape[2])

    def step(
        self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The output of new tokens, and the memory with them in it. All in the wide dtype."""
        new, problem = k_bcnd.shape[2], self.problem
        q_bcrd = grouped(self.features.queries(q_bhnd.to(self.wide), memory.tokens), problem)
        k_bcnd, v = self.features.keys(k_bcnd.to(self.wide), memory.tokens), v_bcne.to(self.wide)
        weights_bcrn = self.features.weights(q_bcrd, k_bcnd)  # of new pairs: exact as no state is
        if self.causal and new > 1:
            weights_bcrn.view(*weights_bcrn.shape[:2], -1, new, new).tril_()
        k_bcnD, q_bcrD = self.features.expand(k_bcnd), self.features.expand(q_bcrd)
        total_bcr1, total_bcD1 = self._sum(weights_bcrn), memory.total_bcD1
        if total_bcr1 is not None:
            total_bcr1 = total_bcr1 + _times(q_bcrD, total_bcD1)
            total_bcD1 = total_bcD1 + k_bcnD.sum(2)[..., None]
        out = self._over(q_bcrD @ memory.state_bcDe + weights_bcrn @ v, total_bcr1)
        out_bhne = ungrouped(out, problem)
        if self.divide == "count":
            out_bhne = out_bhne * self._count_inverse(memory.tokens, new)
        state_bcDe = memory.state_bcDe + k_bcnD.mT @ v
        return out_bhne.to(v_bcne.dtype), Memory(state_bcDe, total_bcD1, memory.tokens + new)


def nonzero(total: Tensor) -> Tensor:
    """Sums to divide by: one where there is nothing to divide."""
    return total.masked_fill(total == 0, 1.0)


def _times(q_prD: Tensor, total_pD1: Tensor) -> Tensor:
    """The product as a row times a matrix: torch is slow at batches with one column, on the CPU."""
    return (total_pD1.mT @ q_prD.mT).mT


def _longer(x_bcmd: Tensor, short: int) -> Tensor:
    """Zeros after the last token: whole chunks, and no row that counts may see them."""
    return F.pad(x_bcmd, (0, 0, 0, short)) if short else x_bcmd
