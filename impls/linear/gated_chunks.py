"""Shared by the delta rules: chunks of tokens, as :mod:`impls.linear.gated_delta` has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from impls.linear.corrected import Chunks, corrections, walk
from impls.linear.decay import LONGEST, Gates, Recurrent
from impls.linear.halving import Halved, halvable
from impls.problem import Problem

STRETCH = 1 << 14
"""Tokens of all heads that are done at a time on a CPU."""


class Corrected(Recurrent):
    """States that are corrected; here nothing fades. Legend in :mod:`impls.linear.decay`."""

    names: tuple[str, ...] = ("beta",)

    def __init__(self, problem: Problem, chunk: int, gates: Gates | None = None) -> None:
        super().__init__(problem, chunk, gates, LONGEST * problem.head_dim)
        size = problem.group, self.length, self.length
        ones = torch.ones(size, device=problem.device, dtype=torch.bool)
        self.above_rl = ones.triu(1).flatten(0, 1)

    def from_state(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The output of every token and the state after them, from one before them; a stretch that
        fits the cache at a time.
        """
        outs, state = [], self.start(v_bcme, first_bcde)
        for q, k, v, *of_tokens in self.stretches(q_bhnd, k_bcmd, v_bcme, *gates):
            out, state = self._after(q, k, v, state, *of_tokens)
            outs.append(out)
        return torch.cat(outs, 2) if len(outs) > 1 else outs[0], state

    def stretches(self, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Whole chunks of all that has tokens, as many as the processor's cache holds."""
        size = STRETCH // (self.problem.batch * self.problem.heads * self.length)
        size = max(size, 1) * self.length if self.problem.device == "cpu" else parts[0].shape[2]
        return zip(*(x.split(size, 2) for x in parts), strict=True)

    def _after(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor, *gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of some tokens, and the state after them, from the one before."""
        *fades, b_bcm = gates
        q_bctrd = self.queries(q_bhnd.to(self.wide) * self.problem.scale)
        k_bctld, v_bctle = (self.keys(x.to(self.wide)) for x in (k_bcmd, v_bcme))
        b_bctlx = self.keys(b_bcm[..., None])
        pairs = self._pairs(q_bctrd, k_bctld, b_bctlx, *fades)
        scores_bctrl, overlaps_bctll, q_faded, write_bctld, k_left, whole_bctdx = pairs
        wu_bctlz = corrections(overlaps_bctll, torch.cat((write_bctld, b_bctlx * v_bctle), -1))
        chunks = Chunks(q_faded, scores_bctrl, wu_bctlz, k_left, whole_bctdx)
        out_bctre, last_bcde = walk(chunks, first_bcde)
        return self.back(out_bctre)[:, :, : q_bhnd.shape[2]], last_bcde

    def _pairs(
        self, q_bctrd: Tensor, k_bctld: Tensor, b_bctlx: Tensor, *fades: Tensor
    ) -> tuple[Any, ...]:
        """P, the products of keys, q', b k', k'' and what a whole chunk keeps, [b, c, t, 1 | d, 1].

        Of the products of keys only those below the diagonal are read.
        """
        bk_bctld = b_bctlx * k_bctld
        scores_bctrl = (q_bctrd @ k_bctld.mT).masked_fill(self.above_rl, 0.0)
        return scores_bctrl, bk_bctld @ k_bctld.mT, q_bctrd, bk_bctld, k_bctld, None


class GatedDelta(Corrected):
    """One decay a head; h heads of values, each a state."""

    names = ("g", "beta")

    def __init__(self, problem: Problem, chunk: int) -> None:
        super().__init__(problem.with_(kv_heads=problem.heads), chunk)
        self.shared = problem.group

    def of_values(self, x_bcnd: Tensor) -> Tensor:
        """Queries or keys repeated for the heads of values that share them."""
        return x_bcnd if self.shared == 1 else x_bcnd.repeat_interleave(self.shared, 1)

    def step(
        self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor, memory: Tensor, **gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of the new tokens, and the state after them."""
        q_bhnd, k_bcnd = self.of_values(q_bhnd), self.of_values(k_bcnd)
        return super().step(q_bhnd, k_bcnd, v_bcne, memory, **gates)

    def _after(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor, *gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        q_bhnd, k_bcmd = self.of_values(q_bhnd), self.of_values(k_bcmd)
        return super()._after(q_bhnd, k_bcmd, v_bcme, first_bcde, *gates)

    def _pairs(
        self, q_bhtld: Tensor, k_bhtld: Tensor, b_bhtlx: Tensor, *fades: Tensor
    ) -> tuple[Any, ...]:
        sums_bhtl = self.keys(fades[0]).double().cumsum(-1)
        begun_bhtlx = sums_bhtl.exp().to(self.wide)[..., None]
        left_bhtlx = (sums_bhtl[..., -1:] - sums_bhtl).exp().to(self.wide)[..., None]
        bk_bhtld = b_bhtlx * k_bhtld
        scores, overlaps = _Faded.apply(q_bhtld, bk_bhtld, k_bhtld, sums_bhtl, self.above_rl)  # type: ignore[no-untyped-call]
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

    def _pairs(
        self, q_bhtld: Tensor, k_bhtld: Tensor, b_bhtlx: Tensor, *fades: Tensor
    ) -> tuple[Any, ...]:
        alpha_bhtld = halvable(self.keys(fades[0]).exp(), 1.0)
        k_bhtld = halvable(k_bhtld)
        both_bhtgld = torch.stack((halvable(q_bhtld), k_bhtld), 3)
        scores, faded, k_left, whole = Halved.apply(both_bhtgld, k_bhtld, alpha_bhtld)  # type: ignore[no-untyped-call]
        n = self.length
        (p, overlaps), (q_faded, k_faded) = (x[..., :n, :].unbind(3) for x in (scores, faded))
        write = b_bhtlx * k_faded
        return p[..., :n], b_bhtlx * overlaps[..., :n], q_faded, write, k_left[..., :n, :], whole.mT
