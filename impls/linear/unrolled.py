"""The loop of a recurrence's definition, one token after another, and its gradient by hand.

    S_t = a_t S_(t-1) + w_t (v_t - x_t S_(t-1))^T        o_t = s q_t S_t

v is what is written under w; a, where there is one, is the share that is kept, and x, where there
is one, reads what is to be taken back. With G_t the gradient of S_t, from the last token down,

    G_t = s q_t do_t^T + a_(t+1) G_(t+1) - x_(t+1) (w_(t+1) G_(t+1))^T
    dv_t = w_t G_t      dw_t = G_t (v_t - x_t S_(t-1))      dx_t = -S_(t-1) dv_t
    da_t = the sum of G_t S_(t-1)      dq_t = s S_t do_t

Autograd would keep a state or several for every token; here those at the ends of stretches are
kept, and a stretch is gone over again backward.

Legend: b batch, c key/value heads, x = b c of them, g query heads to each, d head_dim, e
v_head_dim, m keys, r rows that are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from impls.problem import Problem

CACHE_BYTES = 1 << 20
"""What the states of a stretch should fit into."""
KEPT_BYTES = 128 << 20
"""What the states at the ends of stretches may take."""


def unrolled(
    problem: Problem, q_bhnd: Tensor, rows: Tensor, write_bcmd: Tensor, v_bcme: Tensor,
    *, kept_bcmy: Tensor | None = None, read_bcmd: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """o of some rows. ``kept`` is [b, c, m, d], or [b, c, m, 1]: all of a state fades alike."""
    p = problem
    at, back = torch.unique(rows + (p.kv_len - p.q_len), return_inverse=True)
    last = int(at[-1]) + 1
    q_bhrd = q_bhnd.index_select(2, at - (p.kv_len - p.q_len))
    q_rxgd = q_bhrd.unflatten(1, (p.kv_heads, -1)).permute(3, 0, 1, 2, 4).flatten(1, 2)

    def tokens(x_bcmd: Tensor | None) -> Tensor | None:
        return None if x_bcmd is None else x_bcmd[:, :, :last].flatten(0, 1).transpose(0, 1)

    given = (tokens(part) for part in (write_bcmd, v_bcme, kept_bcmy, read_bcmd))
    out_rxge = _Loop.apply(at.tolist(), q_rxgd, *given)  # type: ignore[no-untyped-call]
    out_bcgre = out_rxge.unflatten(1, (p.batch, p.kv_heads)).permute(1, 2, 3, 0, 4)
    out_bhre: Tensor = out_bcgre.flatten(1, 2).index_select(2, back)
    return out_bhre * p.scale


class _Tokens:
    """Some tokens one after the other; ``at``: which of them are read, counted from the first."""

    def __init__(self, at: Sequence[int], q_rxgd: Tensor, write_mxd: Tensor, v_mxe: Tensor,
                 kept_mxy: Tensor | None, read_mxd: Tensor | None) -> None:  # fmt: skip
        self.at, self.q_rxgd, self.write_mxd, self.v_mxe = at, q_rxgd, write_mxd, v_mxe
        self.kept_mxy, self.read_mxd = kept_mxy, read_mxd

    def __len__(self) -> int:
        return len(self.v_mxe)

    def states(self, first_xde: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each token and after the last, and what each token wrote."""
        states = first_xde.new_empty(len(self) + 1, *first_xde.shape)
        states[0] = first_xde
        s, new_mxe = states.unbind(0), self.v_mxe.clone()
        new, write = _each(new_mxe, 2), _each(self.write_mxd, 3)
        read, kept = _each(self.read_mxd, 3), _each(self.kept_mxy, 3)
        for t, after in enumerate(s[1:]):
            if self.read_mxd is not None:
                new[t].sub_((read[t] * s[t]).sum(-2, keepdim=True))
            if self.kept_mxy is None:
                after.copy_(s[t])
            else:
                torch.mul(s[t], kept[t], out=after)
            after.addcmul_(write[t], new[t])
        return states, new_mxe

    def out(self, states: Tensor) -> Tensor:
        """q S of the tokens that are read."""
        outs = [torch.bmm(q, states[t + 1]) for t, q in zip(self.at, self.q_rxgd, strict=True)]
        return torch.stack(outs) if outs else self.q_rxgd.new_empty(0)

    def backward(self, states: Tensor, new_mxe: Tensor, after_xde: Tensor, dout_rxge: Tensor, *,
                 fades: bool) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """The gradient of the first state, and those of all that was given.

        ``fades``: whether that of what is kept is asked for, too.
        """
        grads, dv_mxe = self._of_states(after_xde, dout_rxge)
        made = {"v": dv_mxe, "write": (grads[1:] * new_mxe[:, :, None]).sum(-1)}
        dq = [torch.bmm(d, states[t + 1].mT) for t, d in zip(self.at, dout_rxge, strict=True)]
        made["q"] = torch.stack(dq) if dq else torch.empty_like(self.q_rxgd)
        if fades and self.kept_mxy is not None:
            over_e = (grads[1:] * states[:-1]).sum(-1)
            made["kept"] = over_e if self.kept_mxy.shape[-1] > 1 else over_e.sum(-1, keepdim=True)
        if self.read_mxd is not None:
            made["read"] = (states[:-1] * dv_mxe[:, :, None]).sum(-1).neg_()
        return grads[0], made

    def _of_states(self, after_xde: Tensor, dout_rxge: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each state, the first as it was given, and of what is written."""
        grads = after_xde.new_empty(len(self) + 1, *after_xde.shape)
        grads[-1] = after_xde
        g, dv_mxe = grads.unbind(0), torch.empty_like(self.v_mxe)
        write, dv = _each(self.write_mxd, 3), _each(dv_mxe, 2)
        read, kept = _each(self.read_mxd, 3), _each(self.kept_mxy, 3)
        reads = dict(zip(self.at, zip(self.q_rxgd.mT, dout_rxge, strict=True), strict=True))
        for t in reversed(range(len(self))):
            here, before = g[t + 1], g[t]
            if t in reads:
                here.baddbmm_(*reads[t])
            if self.kept_mxy is None:
                before.copy_(here)
            else:
                torch.mul(here, kept[t], out=before)
            if self.read_mxd is not None:
                dv[t].copy_((write[t] * here).sum(-2, keepdim=True))
                before.addcmul_(read[t], dv[t], value=-1)
        if self.read_mxd is None:
            dv_mxe = (self.write_mxd[..., None] * grads[1:]).sum(-2)
        return grads, dv_mxe


def _each(x_mxd: Tensor | None, axis: int) -> Sequence[Tensor]:
    """Token by token, with one more axis to go along with a state; nothing of nothing."""
    return () if x_mxd is None else x_mxd.unsqueeze(axis).unbind(0)


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, at: Sequence[int], q_rxgd: Tensor, *given: Tensor | None) -> Tensor:
        write_mxd, v_mxe = given[0], given[1]
        assert write_mxd is not None and v_mxe is not None
        state = write_mxd.new_zeros(*write_mxd.shape[1:], v_mxe.shape[-1])
        state_bytes = state.numel() * state.element_size()
        least = math.ceil(len(v_mxe) * state_bytes / KEPT_BYTES)
        ctx.at, ctx.stretch = at, max(least, CACHE_BYTES // state_bytes, 1)
        firsts, outs = [], []
        for stretch in _stretches(ctx.stretch, at, q_rxgd, given):
            firsts.append(state)
            states, _ = stretch.states(state)
            outs.append(stretch.out(states))
            state = states[-1].clone()
        ctx.save_for_backward(q_rxgd, *given, *firsts)
        return torch.cat([out for out in outs if len(out)])

    @staticmethod
    def backward(ctx: Any, dout_rxge: Tensor) -> tuple[Tensor | None, ...]:
        q_rxgd, *saved = ctx.saved_tensors
        given, firsts = saved[:4], saved[4:]
        stretches = list(_stretches(ctx.stretch, ctx.at, q_rxgd, given))
        carried, past, pieces = torch.zeros_like(firsts[0]), len(dout_rxge), []
        for stretch, first in zip(reversed(stretches), reversed(firsts), strict=True):
            douts = dout_rxge[past - len(stretch.at) : past]
            past -= len(stretch.at)
            states, new_mxe = stretch.states(first)
            carried, made = stretch.backward(
                states, new_mxe, carried, douts, fades=ctx.needs_input_grad[4]
            )
            pieces.append(made)
        names = ("q", "write", "v", "kept", "read")
        joined = (
            torch.cat([made[name] for made in reversed(pieces)]) if name in pieces[0] else None
            for name in names
        )
        return None, *joined


def _stretches(
    size: int, at: Sequence[int], q_rxgd: Tensor, given: Sequence[Tensor | None]
) -> Iterator[_Tokens]:
    """The tokens in stretches, each with the rows that are read in it."""
    write_mxd, v_mxe, kept_mxy, read_mxd = given
    assert write_mxd is not None and v_mxe is not None
    done = 0
    for start in range(0, len(write_mxd), size):
        here = slice(start, start + size)
        some = [t - start for t in at if start <= t < start + size]
        yield _Tokens(
            some, q_rxgd[done : done + len(some)], write_mxd[here], v_mxe[here],
            None if kept_mxy is None else kept_mxy[here],
            None if read_mxd is None else read_mxd[here],
        )  # fmt: skip
        done += len(some)
