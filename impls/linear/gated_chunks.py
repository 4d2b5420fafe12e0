"""Shared by the gated delta rules: chunks of tokens, as :mod:`impls.linear.gated_delta` has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from impls.linear.corrected import Chunks, corrections, walk
from impls.linear.decay import LONGEST, Recurrent
from impls.linear.halving import Halved
from impls.problem import Problem

STRETCH = 1 << 14
"""Tokens of all heads that are done at a time on a CPU."""


class GatedDelta(Recurrent):
    """One decay a head. Legend in :mod:`impls.linear.decay`; h heads of values, each a state."""

    names = ("g", "beta")

    def __init__(self, problem: Problem, chunk: int) -> None:
        by_value = problem.with_(kv_heads=problem.heads)
        super().__init__(by_value, chunk, None, LONGEST * problem.head_dim)
        self.shared = problem.group
        ones = torch.ones(self.length, self.length, device=problem.device, dtype=torch.bool)
        self.above_ll = ones.triu(1)

    def from_state(
        self, q_bcnd: Tensor, k_bcmd: Tensor, v_bhme: Tensor, first_bhde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The output of every token and the state after them, from one before them; a stretch that
        fits the cache at a time.
        """
        outs, state = [], self.start(v_bhme, first_bhde)
        for q, k, v, *of_tokens in self.stretches(q_bcnd, k_bcmd, v_bhme, *gates):
            out, state = self._after(self.of_values(q), self.of_values(k), v, state, *of_tokens)
            outs.append(out)
        return torch.cat(outs, 2) if len(outs) > 1 else outs[0], state

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, *gates: Tensor) -> Tensor:
        """The output of every token."""
        return self.from_state(q_bhnd, k_bcmd, v_bcme, None, *gates)[0]

    def start(self, v_bhme: Tensor, first_bhde: Tensor | None) -> Tensor:
        """The state before the first token."""
        if first_bhde is not None:
            return first_bhde.to(self.wide)
        p = self.problem
        return v_bhme.new_zeros(p.batch, p.heads, p.head_dim, p.v_head_dim, dtype=self.wide)

    def stretches(self, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Whole chunks of all that has tokens, as many as the processor's cache holds."""
        size = STRETCH // (self.problem.batch * self.problem.heads * self.length)
        size = max(size, 1) * self.length if self.problem.device == "cpu" else parts[0].shape[2]
        return zip(*(x.split(max(size, 1), 2) for x in parts), strict=True)

    def of_values(self, x_bcnd: Tensor) -> Tensor:
        """Queries or keys repeated for the heads of values that share them."""
        return x_bcnd if self.shared == 1 else x_bcnd.repeat_interleave(self.shared, 1)

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor, **gates: Tensor) -> Tensor:
        """The state after these tokens."""
        state, parts = self.start(v_bcme, None), self.gates(k_bcmd, gates)
        for k, v, *of_tokens in self.stretches(k_bcmd, v_bcme, *parts):
            if k.shape[2]:
                k = self.of_values(k)
                state = self._after(k, k, v, state, *of_tokens)[1]
        return state

    def step(
        self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor, memory: Tensor, **gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of the new tokens, and the state after them."""
        q_bhnd, k_bcnd = self.of_values(q_bhnd), self.of_values(k_bcnd)
        return super().step(q_bhnd, k_bcnd, v_bcne, memory, **gates)

    def _after(
        self, q_bhnd: Tensor, k_bhmd: Tensor, v_bhme: Tensor, first_bhde: Tensor, g_bhm: Tensor,
        b_bhm: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The output of some tokens, and the state after them, from the one before."""
        q_bhtld = self.keys(q_bhnd.to(self.wide) * self.problem.scale)
        k_bhtld, v_bhtle = (self.keys(x.to(self.wide)) for x in (k_bhmd, v_bhme))
        b_bhtlx = self.keys(b_bhm[..., None])
        pairs = self._pairs(q_bhtld, k_bhtld, b_bhtlx, g_bhm)
        scores_bhtll, overlaps_bhtll, q_faded, write_bhtld, k_left, whole_bhtdx = pairs
        wu_bhtlz = corrections(overlaps_bhtll, torch.cat((write_bhtld, b_bhtlx * v_bhtle), -1))
        chunks = Chunks(q_faded, scores_bhtll, wu_bhtlz, k_left, whole_bhtdx)
        out_bhtle, last_bhde = walk(chunks, first_bhde)
        out_bhne = self.back(out_bhtle)[:, :, : q_bhnd.shape[2]]
        return out_bhne, last_bhde

    def _pairs(
        self, q_bhtld: Tensor, k_bhtld: Tensor, b_bhtlx: Tensor, g_bhm: Tensor
    ) -> tuple[Tensor, ...]:
        """P, the products of keys, q', b k', k'' and what a whole chunk keeps, [b, h, t, 1 | d, 1].

        Of the products of keys only those below the diagonal are read.
        """
        sums_bhtl = self.keys(g_bhm).double().cumsum(-1)
        begun_bhtlx = sums_bhtl.exp().to(self.wide)[..., None]
        left_bhtlx = (sums_bhtl[..., -1:] - sums_bhtl).exp().to(self.wide)[..., None]
        bk_bhtld = b_bhtlx * k_bhtld
        scores, overlaps = _Faded.apply(q_bhtld, bk_bhtld, k_bhtld, sums_bhtl, self.above_ll)  # type: ignore[no-untyped-call]
        whole_bhtxx = begun_bhtlx[..., -1:, :]
        return (
            scores, overlaps, q_bhtld * begun_bhtlx, bk_bhtld * begun_bhtlx, k_bhtld * left_bhtlx,
            whole_bhtxx,
        )  # fmt: skip

    def token(self, k_bhd: Tensor, v_bhe: Tensor, state_bhde: Tensor, *gates: Tensor) -> Tensor:
        """S' = exp(g) S, and S' + b k (v - k S')."""
        g_bhx, b_bh = gates
        fade = g_bhx[..., None] if g_bhx.dim() == 3 else g_bhx[..., None, None]
        state_bhde, k_bhxd = fade.exp() * state_bhde, k_bhd[:, :, None]
        moved_bhxe = b_bh[..., None, None] * (v_bhe[:, :, None] - k_bhxd @ state_bhde)
        return state_bhde + k_bhxd.mT @ moved_bhxe


class _Faded(torch.autograd.Function):
    """The products of queries and of written keys with keys, faded by what lies between."""

    @staticmethod
    def forward(
        ctx: Any, q_bhtld: Tensor, bk_bhtld: Tensor, k_bhtld: Tensor, sums_bhtl: Tensor,
        above_ll: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        between = (sums_bhtl[..., None] - sums_bhtl[..., None, :]).to(q_bhtld.dtype)
        inside_bhtll = between.masked_fill_(above_ll, -torch.inf).exp_()
        scores, overlaps = ((x @ k_bhtld.mT).mul_(inside_bhtll) for x in (q_bhtld, bk_bhtld))
        ctx.save_for_backward(q_bhtld, bk_bhtld, k_bhtld, inside_bhtll, scores, overlaps)
        return scores, overlaps

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q_bhtld, bk_bhtld, k_bhtld, inside_bhtll, *products = ctx.saved_tensors
        of_q, of_k = (d * inside_bhtll for d in upstream)
        d_sums = None
        if ctx.needs_input_grad[3]:
            each = upstream[0] * products[0] + upstream[1] * products[1]
            d_sums = each.sum(-1, dtype=torch.float64) - each.sum(-2, dtype=torch.float64)
        d_k = of_q.mT @ q_bhtld + of_k.mT @ bk_bhtld
        return of_q @ k_bhtld, of_k @ k_bhtld, d_k, d_sums, None


class Kda(GatedDelta):
    """One decay a channel."""

    def __init__(self, problem: Problem, chunk: int) -> None:
        super().__init__(problem, chunk)
        self.filler = (1 << (self.length - 1).bit_length()) - self.length

    def _halvable(self, x_bhtld: Tensor, value: float = 0.0) -> Tensor:
        """Made longer, to a power of two, by what adds nothing and fades nothing."""
        return pad(x_bhtld, (0, 0, 0, self.filler), value=value) if self.filler else x_bhtld

    def _pairs(
        self, q_bhtld: Tensor, k_bhtld: Tensor, b_bhtlx: Tensor, g_bhm: Tensor
    ) -> tuple[Tensor, ...]:
        alpha_bhtld = self._halvable(self.keys(g_bhm).exp(), 1.0)
        both_bhtgld = torch.stack([self._halvable(x) for x in (q_bhtld, k_bhtld)], 3)
        k_bhtld = self._halvable(k_bhtld)
        scores, faded, k_left, whole = Halved.apply(both_bhtgld, k_bhtld, alpha_bhtld)  # type: ignore[no-untyped-call]
        n = self.length
        (p, overlaps), (q_faded, k_faded) = (x[..., :n, :].unbind(3) for x in (scores, faded))
        write = b_bhtlx * k_faded
        return p[..., :n], b_bhtlx * overlaps[..., :n], q_faded, write, k_left[..., :n, :], whole.mT
