"""Gated delta rules: a memory that fades and is corrected, as gated DeltaNet and KDA have it.

    S' = diag(exp g_t) S_(t-1)      S_t = S' + b_t k_t (v_t - k_t^T S')^T      o_t = s q_t S_t

``gated_delta`` (arXiv:2412.06464, Qwen3-Next) has one g a token and head, ``kda`` (Kimi Linear,
arXiv:2510.26692) one for each channel of the key. g, the logarithm of what is kept, and b are
inputs, and q and k are taken as they come: the models divide them by their length before. Each
head of values has a state of its own; where there are more of them than heads of queries and keys,
neighbouring ones share these. s is the problem's scale. The input ``state`` is what S begins with.

Causal by construction. The fast form takes chunks of ``chunk`` tokens. With D_ij = exp(sum of g
over j < u <= i), channel by channel in kda, L the part of b_i (k_i · D_ij k_j) below the diagonal
and P that of q_i · D_ij k_j on and below it, the corrections follow from one triangular system,

    (I + L) [W U] = b [k', v]    S' = (diag D - k''^T W) S + k''^T U    o = s (P U + (q' - P W) S)

where ' is faded from the chunk's beginning, '' to its end, and D is what is kept over all of it.
No D is a quotient: one a head is the exponential of a difference of sums in float64, and those of
channels come from halving the chunk (:mod:`impls.linear.halving`). Chunks have at most 16 d tokens.
Half precisions are computed in float32.

Cost: 6 d e FLOPs a token and head of values; the chunks do l (d + e) + 2 l (2 d + e) +
4 d (d + e) instead. Memory: three matrices of l numbers a token, and the chunks' d x (d + e).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from impls.heads import Attend, Define
from impls.linear.decay import LONGEST, Recurrent, states_of
from impls.linear.halving import Halved
from impls.linear.unrolled import unrolled
from impls.problem import Problem


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
        """The output of every token and the state after them, from one before them."""
        q_bhnd, k_bhmd = self.of_values(q_bcnd), self.of_values(k_bcmd)
        g_bhm, b_bhm = gates
        return self._after(q_bhnd, k_bhmd, v_bhme, g_bhm, b_bhm, first_bhde)

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, *gates: Tensor) -> Tensor:
        """The output of every token."""
        return self.from_state(q_bhnd, k_bcmd, v_bcme, None, *gates)[0]

    def of_values(self, x_bcnd: Tensor) -> Tensor:
        """Queries or keys repeated for the heads of values that share them."""
        return x_bcnd if self.shared == 1 else x_bcnd.repeat_interleave(self.shared, 1)

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor, **gates: Tensor) -> Tensor:
        """The state after these tokens."""
        p, k_bhmd = self.problem, self.of_values(k_bcmd)
        if k_bcmd.shape[2] == 0:
            shape = (p.batch, p.heads, p.head_dim, p.v_head_dim)
            return torch.zeros(shape, dtype=self.wide, device=k_bcmd.device)
        return self._after(k_bhmd, k_bhmd, v_bcme, *self.gates(k_bcmd, gates))[1]

    def step(
        self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor, memory: Tensor, **gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of the new tokens, and the state after them."""
        q_bhnd, k_bcnd = self.of_values(q_bhnd), self.of_values(k_bcnd)
        return super().step(q_bhnd, k_bcnd, v_bcne, memory, **gates)

    def _after(
        self, q_bhnd: Tensor, k_bhmd: Tensor, v_bhme: Tensor, g_bhm: Tensor, b_bhm: Tensor,
        first_bhde: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Within the chunks, and from the states at their beginnings; and the state at the end."""
        q_bhtld = self.keys(q_bhnd.to(self.wide) * self.problem.scale)
        k_bhtld, v_bhtle = (self.keys(x.to(self.wide)) for x in (k_bhmd, v_bhme))
        b_bhtlx = self.keys(b_bhm[..., None])
        pairs = self._pairs(q_bhtld, k_bhtld, g_bhm)
        scores_bhtll, overlaps_bhtll, q_faded, k_faded, k_left, whole_bhtdx = pairs
        wu_bhtlx = torch.linalg.solve_triangular(
            b_bhtlx * overlaps_bhtll, b_bhtlx * torch.cat((k_faded, v_bhtle), -1),
            upper=False, unitriangular=True,
        )  # fmt: skip
        d = self.problem.head_dim
        inside_bhtlx, moved_bhtdx = scores_bhtll @ wu_bhtlx, k_left.mT @ wu_bhtlx
        eye = torch.eye(d, dtype=self.wide, device=q_bhnd.device)
        added, decay = moved_bhtdx[..., d:], eye * whole_bhtdx - moved_bhtdx[..., :d]
        states, last = states_of(added, decay, first_bhde)
        out_bhtle = inside_bhtlx[..., d:] + (q_faded - inside_bhtlx[..., :d]) @ states
        return self.back(out_bhtle)[:, :, : q_bhnd.shape[2]], last

    def _pairs(self, q_bhtld: Tensor, k_bhtld: Tensor, g_bhm: Tensor) -> tuple[Tensor, ...]:
        """P, the products of keys, q', k', k'' and what a whole chunk keeps, [b, h, t, 1 | d, 1].

        Of the products of keys only those below the diagonal are read.
        """
        sums_bhtl = self.keys(g_bhm).double().cumsum(-1)
        between = (sums_bhtl[..., None] - sums_bhtl[..., None, :]).to(self.wide)
        inside_bhtll = between.masked_fill(self.above_ll, -torch.inf).exp()
        begun_bhtlx = sums_bhtl.exp().to(self.wide)[..., None]
        k_left = k_bhtld * inside_bhtll[..., -1, :, None]
        scores, overlaps = ((x @ k_bhtld.mT) * inside_bhtll for x in (q_bhtld, k_bhtld))
        whole_bhtxx = begun_bhtlx[..., -1:, :]
        return scores, overlaps, q_bhtld * begun_bhtlx, k_bhtld * begun_bhtlx, k_left, whole_bhtxx

    def token(self, k_bhd: Tensor, v_bhe: Tensor, state_bhde: Tensor, *gates: Tensor) -> Tensor:
        """S' = exp(g) S, and S' + b k (v - k S')."""
        g_bhx, b_bh = gates
        fade = g_bhx[..., None] if g_bhx.dim() == 3 else g_bhx[..., None, None]
        state_bhde, k_bhxd = fade.exp() * state_bhde, k_bhd[:, :, None]
        moved_bhxe = b_bh[..., None, None] * (v_bhe[:, :, None] - k_bhxd @ state_bhde)
        return state_bhde + k_bhxd.mT @ moved_bhxe


class Kda(GatedDelta):
    """One decay a channel."""

    def __init__(self, problem: Problem, chunk: int) -> None:
        super().__init__(problem, chunk)
        self.filler = (1 << (self.length - 1).bit_length()) - self.length

    def _halvable(self, x_bhtld: Tensor, value: float = 0.0) -> Tensor:
        """Made longer, to a power of two, by what adds nothing and fades nothing."""
        return pad(x_bhtld, (0, 0, 0, self.filler), value=value) if self.filler else x_bhtld

    def _pairs(self, q_bhtld: Tensor, k_bhtld: Tensor, g_bhm: Tensor) -> tuple[Tensor, ...]:
        alpha_bhtld = self._halvable(self.keys(g_bhm).exp(), 1.0)
        both_bhtgld = torch.stack([self._halvable(x) for x in (q_bhtld, k_bhtld)], 3)
        k_bhtld = self._halvable(k_bhtld)
        scores, faded, k_left, whole = Halved.apply(both_bhtgld, k_bhtld, alpha_bhtld)  # type: ignore[no-untyped-call]
        n = self.length
        (p, overlaps), (q_faded, k_faded) = (x[..., :n, :].unbind(3) for x in (scores, faded))
        return p[..., :n], overlaps[..., :n], q_faded, k_faded, k_left[..., :n, :], whole.mT


def build(problem: Problem, chunk: int) -> Attend:
    """One decay a head."""
    return GatedDelta(problem, chunk)


def build_kda(problem: Problem, chunk: int) -> Attend:
    """One decay a channel."""
    return Kda(problem, chunk)


def definition(problem: Problem, chunk: int) -> Define:
    """The recurrence, token by token; g has a last axis of channels or none."""

    def define(
        q_bcnd: Tensor, k_bcmd: Tensor, v_bhme: Tensor, rows: Tensor, g: Tensor, beta: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        q_bhnd, k_bhmd = (x.repeat_interleave(problem.group, 1) for x in (q_bcnd, k_bcmd))
        log_bhmy = g if g.dim() == 4 else g[..., None]
        return unrolled(
            problem.with_(kv_heads=problem.heads), q_bhnd, rows,
            beta.to(k_bhmd.dtype)[..., None] * k_bhmd, v_bhme, log_decay_bcmy=log_bhmy,
            read_bcmd=log_bhmy.exp().to(k_bhmd.dtype) * k_bhmd, first_bcde=state,
        )  # fmt: skip

    return define
