"""A recurrence's definition: one token after another, or for long sequences by direct forms.

    S_t = a_t S_(t-1) + w_t (v_t - x_t S_(t-1))^T        o_t = s q_t S_t

v is what is written under w; a, where there is one, is the share that is kept, and x, where there
is one, reads what is to be taken back. Up to ``WALKED`` tokens this is what is computed.

Beyond, a state that only fades is unrolled into the weight of each token for each row,

    o_i = s sum over j <= i of (q_i · D_ij w_j) v_j        D_ij = exp(sum of log a_u, j < u <= i)

Keys come in blocks: a sum is that of the rest of j's block, of the blocks between and of i's own,
taken each on its own in float64, so that none is a difference of long sums and no exponential
overflows. A state that is corrected goes on a block at a time: with S before the block,

    (I + L) n = v - x S      L = x w^T below the diagonal      o_i = s (q_i S + (q_i w^T) n, j <= i)

and S + w^T n after it.

The loop's gradient is written by hand. With G_t that of S_t, from the last token down,

    G_t = s q_t do_t^T + a_(t+1) G_(t+1) - x_(t+1) (w_(t+1) G_(t+1))^T
    dv_t = w_t G_t      dw_t = G_t (v_t - x_t S_(t-1))      dx_t = -S_(t-1) dv_t
    da_t = the sum of G_t S_(t-1)      dq_t = s S_t do_t

Autograd would keep a state or several for every token; here those at the ends of stretches are
kept, and a stretch is gone over again backward.

Legend: b batch, c key/value heads, x = b c of them, g query heads to each, d head_dim, e
v_head_dim, m keys, r rows that are read, t blocks of l keys; y channels that fade apart, d or one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from impls.problem import Problem

WALKED = 1024
"""Tokens up to which a definition goes one by one."""
BLOCK = 128
"""Keys whose decays to a row are split at the end of their block."""
SOLVED, STRETCH = 64, 64
"""Tokens of one triangular system, and how many of them backward goes over again at a time."""
CACHE_BYTES = 1 << 20
"""Bytes that the states of a stretch should fit into."""
KEPT_BYTES = 128 << 20
"""Bytes that the states at the ends of stretches may take."""


def unrolled(
    problem: Problem, q_bhnd: Tensor, rows: Tensor, write_bcmd: Tensor, v_bcme: Tensor,
    *, log_decay_bcmy: Tensor | None = None, read_bcmd: Tensor | None = None,
    first_bcde: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """o of some rows; ``first``: the state before the first token, where that is not zero.

    Where a state both fades and is read, or where it begins with another, there is no direct form.
    """
    p = problem
    at, back = torch.unique(rows + (p.kv_len - p.q_len), return_inverse=True)
    last = int(at[-1]) + 1
    q_bcgrd = q_bhnd.index_select(2, at - (p.kv_len - p.q_len)).unflatten(1, (p.kv_heads, -1))
    write_bcmd, v_bcme = write_bcmd[:, :, :last], v_bcme[:, :, :last]
    if log_decay_bcmy is not None:
        log_decay_bcmy = log_decay_bcmy[:, :, :last]
    neither = log_decay_bcmy is None or read_bcmd is None
    if p.kv_len <= WALKED or first_bcde is not None or not neither:
        tokens = write_bcmd, v_bcme, log_decay_bcmy, read_bcmd
        out_bcgre = _walked(at, q_bcgrd, *tokens, first_bcde)
    elif read_bcmd is not None:
        out_bcgre = _corrected(at, q_bcgrd, write_bcmd, v_bcme, read_bcmd[:, :, :last])
    else:
        assert log_decay_bcmy is not None
        out_bcgre = _weighed(at, q_bcgrd, write_bcmd, v_bcme, log_decay_bcmy)
    out_bhre: Tensor = out_bcgre.flatten(1, 2).index_select(2, back)
    return out_bhre * p.scale


# ---- direct forms ------------------------------------------------------------------------------


def _weighed(
    at: Tensor, q_bcgrd: Tensor, write_bcmd: Tensor, v_bcme: Tensor, log_decay_bcmy: Tensor
) -> Tensor:
    """The weights of all the tokens for each row, times what they wrote: [b, c, g, r, e]."""
    write_bctld, log_bctly = _blocks(write_bcmd, BLOCK), _blocks(log_decay_bcmy.double(), BLOCK)
    own, place = at // BLOCK, at % BLOCK
    inside = (torch.arange(BLOCK, device=at.device) <= place[:, None])[..., None]
    own_bcrly = log_bctly[:, :, own].masked_fill(~inside, 0.0)
    number = torch.arange(log_bctly.shape[2], device=at.device)
    before = (number < own[:, None])[..., None]
    between_bcrty = log_bctly.sum(3)[:, :, None].masked_fill(~before, 0.0)
    between_bcrty = _rest(between_bcrty) + own_bcrly.sum(3, keepdim=True)
    decay_bcrty = between_bcrty.exp().masked_fill(~before, 0.0).to(q_bcgrd.dtype)
    to_end_bctld = write_bctld * _rest(log_bctly).exp().to(write_bctld.dtype)
    q_bctgrd = (q_bcgrd[:, :, :, :, None] * decay_bcrty[:, :, None]).movedim(4, 2)
    weights_bctgrl = (q_bctgrd.flatten(3, 4) @ to_end_bctld.mT).unflatten(3, q_bcgrd.shape[2:4])
    to_row_bcrly = _rest(own_bcrly).exp().masked_fill(~inside, 0.0)
    to_row_bcrld = write_bctld[:, :, own] * to_row_bcrly.to(write_bctld.dtype)
    own_bcgrl = (to_row_bcrld @ q_bcgrd.movedim(2, 4)).movedim(4, 2)
    here = (number == own[:, None])[..., None]
    weights_bcgrtl = torch.where(here, own_bcgrl[:, :, :, :, None], weights_bctgrl.movedim(2, 4))
    weights_bcrm = weights_bcgrtl.flatten(4, 5).flatten(2, 3)[..., : v_bcme.shape[2]]
    return (weights_bcrm @ v_bcme).unflatten(2, q_bcgrd.shape[2:4])


def _blocks(x_bcmd: Tensor, size: int) -> Tensor:
    """Tokens in blocks, [b, c, t, l, …]; zeros after the last token."""
    return pad(x_bcmd, (0, 0, 0, -x_bcmd.shape[2] % size)).unflatten(2, (-1, size))


def _rest(log_bcrly: Tensor) -> Tensor:
    """The sum of those after each, along the last axis but one."""
    sums = log_bcrly[..., 1:, :].flip(-2).cumsum(-2).flip(-2)
    return pad(sums, (0, 0, 0, 1))


def _corrected(
    at: Tensor, q_bcgrd: Tensor, write_bcmd: Tensor, v_bcme: Tensor, read_bcmd: Tensor
) -> Tensor:
    """A triangular system for each block, and the state from block to block: [b, c, g, r, e]."""
    (b, c, m, d), e = write_bcmd.shape, v_bcme.shape[3]
    state_xde = write_bcmd.new_zeros(b * c, d, e)
    q_xgrd, outs, done = q_bcgrd.flatten(0, 1), [], 0
    size, trained = SOLVED * STRETCH, torch.is_grad_enabled()
    for start in range(0, m, size):
        here = slice(start, start + size)
        places = at[(at >= start) & (at < start + size)] - start
        q_here = q_xgrd[:, :, done : done + len(places)]
        done += len(places)
        w, v, x = (part[:, :, here].flatten(0, 1) for part in (write_bcmd, v_bcme, read_bcmd))
        arguments = places.tolist(), state_xde, q_here, w, v, x
        if trained:  # backward goes over it again, and all that is kept are the states between
            result = checkpoint(_stretch, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            result = _stretch(*arguments)
        state_xde, out_xgre = result
        outs.append(out_xgre)
    return torch.cat(outs, 2).unflatten(0, (b, c))


def _stretch(
    places: Sequence[int], state_xde: Tensor, q_xgrd: Tensor,
    write_xmd: Tensor, v_xme: Tensor, read_xmd: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Some blocks: the state after them, and what is read in them."""
    done, groups = 0, q_xgrd.shape[1]
    outs = [q_xgrd.new_empty(*q_xgrd.shape[:2], 0, v_xme.shape[2])]
    solved = torch.promote_types(v_xme.dtype, torch.float32)
    blocks = (x.split(SOLVED, 1) for x in (write_xmd, v_xme, read_xmd))
    for number, (write_xld, v_xle, read_xld) in enumerate(zip(*blocks, strict=True)):
        change_xle = v_xle - read_xld @ state_xde
        overlap_xll = read_xld @ write_xld.mT  # only what is below its diagonal is read
        new_xle = torch.linalg.solve_triangular(
            overlap_xll.to(solved), change_xle.to(solved), upper=False, unitriangular=True
        ).to(v_xle.dtype)
        some = [p - number * SOLVED for p in places[done:] if p < (number + 1) * SOLVED]
        if some:
            q_xrd = q_xgrd[:, :, done : done + len(some)].flatten(1, 2)
            hidden = torch.arange(write_xld.shape[1]) > torch.tensor(some)[:, None]
            weights_xrl = q_xrd @ write_xld.mT
            weights_xrl = weights_xrl.masked_fill(hidden.to(q_xrd.device).repeat(groups, 1), 0.0)
            out_xre = q_xrd @ state_xde + weights_xrl @ new_xle
            outs.append(out_xre.unflatten(1, (groups, -1)))
            done += len(some)
        state_xde = state_xde + write_xld.mT @ new_xle
    return state_xde, torch.cat(outs, 2)


# ---- one token after another -------------------------------------------------------------------


def _walked(
    at: Tensor, q_bcgrd: Tensor, write_bcmd: Tensor, v_bcme: Tensor,
    log_decay_bcmy: Tensor | None, read_bcmd: Tensor | None, first_bcde: Tensor | None,
) -> Tensor:  # fmt: skip
    q_rxgd = q_bcgrd.permute(3, 0, 1, 2, 4).flatten(1, 2)
    decay_bcmy = None if log_decay_bcmy is None else log_decay_bcmy.exp().to(v_bcme.dtype)

    def tokens(x_bcmd: Tensor | None) -> Tensor | None:
        return (
            None
            if x_bcmd is None
            else x_bcmd[:, :, : v_bcme.shape[2]].flatten(0, 1).transpose(0, 1)
        )

    inputs = (tokens(part) for part in (write_bcmd, v_bcme, decay_bcmy, read_bcmd))
    first_xde = None if first_bcde is None else first_bcde.to(v_bcme.dtype).flatten(0, 1)
    out_rxge = _Loop.apply(at.tolist(), q_rxgd, first_xde, *inputs)  # type: ignore[no-untyped-call]
    out_bcgre: Tensor = out_rxge.unflatten(1, v_bcme.shape[:2]).permute(1, 2, 3, 0, 4)
    return out_bcgre


class _Tokens:
    """Some tokens one after the other; ``at``: which of them are read, counted from the first."""

    def __init__(self, at: Sequence[int], q_rxgd: Tensor, write_mxd: Tensor, v_mxe: Tensor,
                 decay_mxy: Tensor | None, read_mxd: Tensor | None) -> None:  # fmt: skip
        self.at, self.q_rxgd, self.write_mxd, self.v_mxe = at, q_rxgd, write_mxd, v_mxe
        self.decay_mxy, self.read_mxd = decay_mxy, read_mxd

    def __len__(self) -> int:
        return len(self.v_mxe)

    def states(self, first_xde: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each token and after the last, and what each token wrote."""
        states = first_xde.new_empty(len(self) + 1, *first_xde.shape)
        states[0] = first_xde
        s, new_mxe = states.unbind(0), self.v_mxe.clone()
        new, write = _each(new_mxe, 2), _each(self.write_mxd, 3)
        read, decay = _each(self.read_mxd, 3), _each(self.decay_mxy, 3)
        for t, after in enumerate(s[1:]):
            if self.read_mxd is not None:
                new[t].sub_((read[t] * s[t]).sum(-2, keepdim=True))
            if self.decay_mxy is None:
                after.copy_(s[t])
            else:
                torch.mul(s[t], decay[t], out=after)
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
        gradients = {"v": dv_mxe, "write": (grads[1:] * new_mxe[:, :, None]).sum(-1)}
        dq = [torch.bmm(d, states[t + 1].mT) for t, d in zip(self.at, dout_rxge, strict=True)]
        gradients["q"] = torch.stack(dq) if dq else torch.empty_like(self.q_rxgd)
        if fades and self.decay_mxy is not None:
            over_e = (grads[1:] * states[:-1]).sum(-1)
            gradients["decay"] = (
                over_e if self.decay_mxy.shape[-1] > 1 else over_e.sum(-1, keepdim=True)
            )
        if self.read_mxd is not None:
            gradients["read"] = (states[:-1] * dv_mxe[:, :, None]).sum(-1).neg_()
        return grads[0], gradients

    def _of_states(self, after_xde: Tensor, dout_rxge: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each state, the first as it was given, and of what is written."""
        grads = after_xde.new_empty(len(self) + 1, *after_xde.shape)
        grads[-1] = after_xde
        g, dv_mxe = grads.unbind(0), torch.empty_like(self.v_mxe)
        write, dv = _each(self.write_mxd, 3), _each(dv_mxe, 2)
        read, decay = _each(self.read_mxd, 3), _each(self.decay_mxy, 3)
        reads = dict(zip(self.at, zip(self.q_rxgd.mT, dout_rxge, strict=True), strict=True))
        for t in reversed(range(len(self))):
            here, before = g[t + 1], g[t]
            if t in reads:
                here.baddbmm_(*reads[t])
            if self.decay_mxy is None:
                before.copy_(here)
            else:
                torch.mul(here, decay[t], out=before)
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
    def forward(
        ctx: Any, at: Sequence[int], q_rxgd: Tensor, first_xde: Tensor | None,
        *inputs: Tensor | None,
    ) -> Tensor:  # fmt: skip
        write_mxd, v_mxe = inputs[0], inputs[1]
        assert write_mxd is not None and v_mxe is not None
        state = write_mxd.new_zeros(*write_mxd.shape[1:], v_mxe.shape[-1])
        state = state if first_xde is None else first_xde
        state_bytes = state.numel() * state.element_size()
        least = math.ceil(len(v_mxe) * state_bytes / KEPT_BYTES)
        ctx.at, ctx.stretch = at, max(least, CACHE_BYTES // state_bytes, 1)
        firsts, outs = [], []
        for stretch in _stretches(ctx.stretch, at, q_rxgd, inputs):
            firsts.append(state)
            states, _ = stretch.states(state)
            outs.append(stretch.out(states))
            state = states[-1].clone()
        ctx.save_for_backward(q_rxgd, *inputs, *firsts)
        return torch.cat([out for out in outs if len(out)])

    @staticmethod
    def backward(ctx: Any, dout_rxge: Tensor) -> tuple[Tensor | None, ...]:
        q_rxgd, *saved = ctx.saved_tensors
        inputs, firsts = saved[:4], saved[4:]
        stretches = list(_stretches(ctx.stretch, ctx.at, q_rxgd, inputs))
        carried, past, pieces = torch.zeros_like(firsts[0]), len(dout_rxge), []
        for stretch, first in zip(reversed(stretches), reversed(firsts), strict=True):
            douts = dout_rxge[past - len(stretch.at) : past]
            past -= len(stretch.at)
            states, new_mxe = stretch.states(first)
            carried, gradients = stretch.backward(
                states, new_mxe, carried, douts, fades=ctx.needs_input_grad[5]
            )
            pieces.append(gradients)
        names = ("write", "v", "decay", "read")
        dq, *joined = (
            torch.cat([gradients[name] for gradients in reversed(pieces)])
            if name in pieces[0]
            else None
            for name in ("q", *names)
        )
        return None, dq, carried if ctx.needs_input_grad[2] else None, *joined


def _stretches(
    size: int, at: Sequence[int], q_rxgd: Tensor, inputs: Sequence[Tensor | None]
) -> Iterator[_Tokens]:
    """The tokens in stretches, each with the rows that are read in it."""
    write_mxd, v_mxe, decay_mxy, read_mxd = inputs
    assert write_mxd is not None and v_mxe is not None
    done = 0
    for start in range(0, len(write_mxd), size):
        here = slice(start, start + size)
        some = [t - start for t in at if start <= t < start + size]
        yield _Tokens(
            some, q_rxgd[done : done + len(some)], write_mxd[here], v_mxe[here],
            None if decay_mxy is None else decay_mxy[here],
            None if read_mxd is None else read_mxd[here],
        )  # fmt: skip
        done += len(some)
