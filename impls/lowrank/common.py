"""Shared by the low-rank variants: means of segments, attention through kernel features.

Legend in :mod:`impls.heads`; f features, t chunks of s tokens, r = g s rows of a chunk, and
z = e + 1 columns of sums: those of the values, and the one that they are divided by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import grouped, ungrouped, wide
from impls.problem import Problem
from impls.spec import Unsupported, at_least

CACHED = 1 << 18
"""Numbers that stay near a processor."""


def by_blocks(rows: Callable[[Tensor], Tensor], x_bcrd: Tensor, width: int) -> Tensor:
    """``rows`` of a block of rows at a time, so that what lies between, as wide as said, is cached.

    On the CPU: a GPU would rather have all of it at once.
    """
    block = max(64, CACHED // (width * x_bcrd.shape[0] * x_bcrd.shape[1]))
    if x_bcrd.device.type != "cpu" or x_bcrd.shape[2] <= block:
        return rows(x_bcrd)
    return torch.cat([rows(part) for part in x_bcrd.split(block, 2)], 2)


def divisor(total: Tensor) -> Tensor:
    """A sum of positive weights; 1 where it is too small for a gradient to divide by it twice."""
    return total.masked_fill(total < torch.finfo(total.dtype).tiny * 2.0**26, 1.0)


def segment_means(x_bcmd: Tensor, count: int) -> Tensor:
    """The means of ``count`` segments of neighbours, the first m mod count of them one longer.

    No copy of the input: the long segments and the short ones are two views.
    """
    length, longer = divmod(x_bcmd.shape[2], count)
    split = longer * (length + 1)
    parts = []
    for part, segments in ((x_bcmd[:, :, :split], longer), (x_bcmd[:, :, split:], count - longer)):
        if segments:
            parts.append(part.unflatten(2, (segments, -1)).mean(3))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def iterated_inverse(a_bhrs: Tensor, start_bhsr: Tensor, iterations: int) -> Tensor:
    """Steps of third order towards the pseudo-inverse: z (13 - az (15 - az (7 - az))) / 4."""
    eye = torch.eye(a_bhrs.shape[-2], dtype=a_bhrs.dtype, device=a_bhrs.device)
    z_bhsr = start_bhsr
    for _ in range(iterations):
        az = a_bhrs @ z_bhsr
        inner = torch.sub(15.0 * eye, az @ (7.0 * eye - az))
        z_bhsr = (0.25 * z_bhsr) @ (13.0 * eye - az @ inner)
    return z_bhsr


class Keys(NamedTuple):
    """Features of keys, to be multiplied by exp of a number for each key."""

    phi_bcmf: Tensor
    log_bcm1: Tensor | None = None


class Memory(NamedTuple):
    """Sums over the keys so far, of phi_f [v, 1], to be multiplied by exp(top)."""

    sums_bcfz: Tensor
    top_bc11: Tensor | None = None


class FeatureAttention:
    """out_n = phi(q_n) S / phi(q_n) z with S, z the sums of phi(k_m) [v_m, 1] over what n sees.

    Under a causal mask the sequence is cut into chunks: within one, the products phi(q) phi(k)
    that the mask lets meet; before it, the sums at its beginning. What scales a row knows no later
    key: it is the running maximum of the logs.
    """

    def __init__(self, problem: Problem, queries: Callable[[Tensor], Tensor],
                 keys: Callable[[Tensor], Keys], divide: Callable[[Tensor], Tensor],
                 chunk: int) -> None:  # fmt: skip
        """``divide`` makes the output of sums that share a factor by row."""
        at_least("chunk", chunk, 1)
        n, m = problem.q_len, problem.kv_len
        self.causal = "causal" in problem.mask.kinds
        if self.causal and problem.mask.upper_left and n != m:
            raise Unsupported("queries stand at the last keys here; @upper-left is not served")
        if problem.phase == "decode" and n > m:
            raise Unsupported(f"q_len={n} new tokens need kv_len to be {n} or more, not {m}")
        self.problem, self.chunk = problem, chunk
        self._queries, self._keys, self._divide = queries, keys, divide

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """All rows at once."""
        if not self.causal:
            return self._read(q_bhnd, self.remember(k_bcmd, v_bcme))
        n, m = q_bhnd.shape[2], k_bcmd.shape[2]
        blind, past = max(0, n - m), max(0, m - n)
        memory = self.remember(k_bcmd[:, :, :past], v_bcme[:, :, :past]) if past else None
        rest = (q_bhnd[:, :, blind:], k_bcmd[:, :, past:], v_bcme[:, :, past:])
        out_bhne = self._causal(*rest, memory)[0]
        return F.pad(out_bhne, (0, 0, blind, 0)) if blind else out_bhne

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor) -> Memory:
        """A decoder's memory of these tokens."""
        keys, values_bcmz = self._keys(k_bcmd), with_ones(v_bcme, wide(self.problem))
        if keys.log_bcm1 is None:
            return Memory(keys.phi_bcmf.mT @ values_bcmz)
        log = keys.log_bcm1
        top = log.new_full((*log.shape[:2], 1, 1), -torch.inf)
        if log.shape[2]:
            top = log.detach().amax(2, keepdim=True)
        return Memory(keys.phi_bcmf.mT @ (values_bcmz * (log - top).exp()), top)

    def step(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor,
             memory: Memory) -> tuple[Tensor, Memory]:  # fmt: skip
        """The output of new tokens, and the memory with them in it."""
        if self.causal and q_bhnd.shape[2] > 1:
            return self._causal(q_bhnd, k_bcmd, v_bcme, memory)
        after = _merged(memory, self.remember(k_bcmd, v_bcme))
        return self._read(q_bhnd, after), after

    def _read(self, q_bhnd: Tensor, memory: Memory) -> Tensor:
        def rows(q_bcrd: Tensor) -> Tensor:
            return self._divide(self._queries(q_bcrd) @ memory.sums_bcfz)

        width = memory.sums_bcfz.shape[2]
        out_bcre = by_blocks(rows, grouped(q_bhnd, self.problem), width)
        return ungrouped(out_bcre, self.problem).to(q_bhnd.dtype)

    def _causal(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor,
                memory: Memory | None) -> tuple[Tensor, Memory]:  # fmt: skip
        """As many queries as keys, each seeing the memory, the keys before it and its own."""
        n, size = q_bhnd.shape[2], min(self.chunk, q_bhnd.shape[2])
        keys, values_bcmz = self._keys(k_bcmd), with_ones(v_bcme, wide(self.problem))
        q_bctrf = self._query_chunks(self._queries(q_bhnd), size)
        k_btsf, v_btsz = _chunks(keys.phi_bcmf, size), _chunks(values_bcmz, size)
        hidden_ss = torch.ones(size, size, dtype=torch.bool, device=q_bhnd.device).triu(1)
        weights = (q_bctrf @ k_btsf.mT).unflatten(3, (-1, size))  # [b, c, t, g, s, s]
        if keys.log_bcm1 is None:
            tops = None
            weights = weights.masked_fill(hidden_ss, 0.0)
        else:
            log_btsg = _chunks(keys.log_bcm1, size, -torch.inf)
            tops = _Tops(log_btsg, None if memory is None else memory.top_bc11)
            late = (log_btsg.mT - tops.row_bcts1).masked_fill(hidden_ss, -torch.inf)
            weights = weights * late.exp()[:, :, :, None]
            v_btsz_end = v_btsz * (log_btsg - tops.end_bct11).exp()
        added_bctfz = k_btsf.mT @ (v_btsz if tops is None else v_btsz_end)
        before_bctfz, after = _running(added_bctfz, tops, memory)
        old = (q_bctrf @ before_bctfz).unflatten(3, (-1, size))
        if tops is not None:
            old = old * (tops.start_bct11 - tops.row_bcts1).exp()[:, :, :, None]
        sums = old + (weights.flatten(3, 4) @ v_btsz).unflatten(3, (-1, size))
        out = self._divide(sums).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)[:, :, :, :n]
        return out.flatten(1, 2).to(q_bhnd.dtype), after

    def _query_chunks(self, phi_bhnf: Tensor, size: int) -> Tensor:
        """[b, c, t, g s, f]"""
        phi = _chunks(phi_bhnf, size).unflatten(1, (-1, self.problem.group))
        return phi.transpose(2, 3).flatten(3, 4)


class _Tops:
    """Running maxima of the logs: at each row, and at the start and the end of each chunk."""

    def __init__(self, log_bcts1: Tensor, before_bc11: Tensor | None) -> None:
        log_bcm1 = log_bcts1.detach().flatten(2, 3)
        if before_bc11 is None:
            before_bc11 = log_bcm1.new_full((*log_bcm1.shape[:2], 1, 1), -torch.inf)
        run = torch.cat((before_bc11, log_bcm1), 2).cummax(2).values
        self.row_bcts1 = run[:, :, 1:].unflatten(2, log_bcts1.shape[2:4])
        self.end_bct11 = self.row_bcts1[:, :, :, -1:]
        self.start_bct11 = torch.cat((before_bc11[:, :, None], self.end_bct11[:, :, :-1]), 2)
        self.decay_bct11 = (self.start_bct11 - self.end_bct11).exp()


def with_ones(v_bcme: Tensor, dtype: torch.dtype) -> Tensor:
    """The values with a column of ones, in which what they are divided by is summed."""
    return F.pad(v_bcme.to(dtype), (0, 1), value=1.0)


def _chunks(x_bcmf: Tensor, size: int, fill: float = 0.0) -> Tensor:
    """[b, c, t, s, f]: the end filled up, which only rows past the end can see."""
    short = -x_bcmf.shape[2] % size
    x_bcmf = F.pad(x_bcmf, (0, 0, 0, short), value=fill) if short else x_bcmf
    return x_bcmf.unflatten(2, (-1, size))


def _running(added_bctfz: Tensor, tops: _Tops | None,
             memory: Memory | None) -> tuple[Tensor, Memory]:  # fmt: skip
    """The sums at the start of each chunk, and past the last."""
    now = torch.zeros_like(added_bctfz[:, :, 0]) if memory is None else memory.sums_bcfz
    starts = []
    for t, added_bcfz in enumerate(added_bctfz.unbind(2)):
        starts.append(now)
        now = added_bcfz + (now if tops is None else now * tops.decay_bct11[:, :, t])
    top = None if tops is None else tops.end_bct11[:, :, -1]
    return torch.stack(starts, 2), Memory(now, top)


def _merged(one: Memory, other: Memory) -> Memory:
    if one.top_bc11 is None or other.top_bc11 is None:
        return Memory(one.sums_bcfz + other.sums_bcfz)
    top = torch.maximum(one.top_bc11, other.top_bc11)
    sums = (m.sums_bcfz * (m.top_bc11 - top).exp() for m in (one, other) if m.top_bc11 is not None)
    return Memory(sum(sums, torch.zeros_like(one.sums_bcfz)), top)
