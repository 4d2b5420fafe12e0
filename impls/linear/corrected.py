"""Shared by the delta rules: from chunk to chunk with a state that is corrected.

With S the state before a chunk, W and U its corrections (the variants say how they come about), P
the products of its queries and keys, q the queries as they read S and k the keys as they are left:

    N = U - W S        o = q S + P N        S' = diag(D) S + k^T N

One chunk comes after another, and of each only S and N are kept. The gradient is the same walk
backward, with G that of S', from above and from the chunks behind:

    dN = P^T do + k G       dU = dN       dW = -dN S^T       dq = do S^T       dP = do N^T
    dk = N G^T              dD = the sum of S G over e       G_before = D G + q^T do - W^T dN

Legend in :mod:`impls.linear.decay`; x = b h states side by side, r rows of queries in a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Chunks(NamedTuple):
    """All chunks of some heads."""

    q_xtrd: Tensor
    scores_xtrl: Tensor
    wu_xtlz: Tensor
    """W beside U, d + e numbers wide."""
    k_xtld: Tensor
    keep_xty1: Tensor | None
    """D, of each channel or of all; None where nothing fades."""


def corrections(overlaps_xtll: Tensor, written_xtlz: Tensor) -> Tensor:
    """(I + L)^-1 of what is written, L the part of the overlaps below the diagonal.

    From the right and transposed: so torch copies neither argument to another layout.
    """
    solved_xtzl = torch.linalg.solve_triangular(
        overlaps_xtll.mT, written_xtlz.mT, upper=True, left=False, unitriangular=True
    )
    return solved_xtzl.mT


def walk(chunks: Chunks, first_bhde: Tensor) -> tuple[Tensor, Tensor]:
    """The output, [b, h, t, r, e], and the state after the last chunk, [b, h, d, e]."""
    flat = (x if x is None else x.flatten(0, 1) for x in chunks)
    out_xtre, last_xde = _Walk.apply(first_bhde.flatten(0, 1), *flat)  # type: ignore[no-untyped-call]
    heads = first_bhde.shape[:2]
    return out_xtre.unflatten(0, heads), last_xde.unflatten(0, heads)


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first_xde: Tensor, *parts: Tensor | None) -> Any:
        chunks = Chunks(*parts)  # type: ignore[arg-type]
        d, count = first_xde.shape[1], chunks.wu_xtlz.shape[1]
        w_xtld, u_xtle = chunks.wu_xtlz.split((d, first_xde.shape[2]), -1)
        states_xtde = first_xde.new_empty(len(first_xde), count + 1, *first_xde.shape[1:])
        states_xtde[:, 0] = first_xde
        new_xtle = torch.empty(u_xtle.shape, dtype=u_xtle.dtype, device=u_xtle.device)
        each = (states_xtde, new_xtle, w_xtld, u_xtle, chunks.k_xtld)
        s, n, w, u, k = (x.unbind(1) for x in each)
        keep = None if chunks.keep_xty1 is None else chunks.keep_xty1.unbind(1)
        for t in range(count):
            torch.baddbmm(u[t], w[t], s[t], alpha=-1, out=n[t])
            torch.baddbmm(s[t] * keep[t] if keep else s[t], k[t].mT, n[t], out=s[t + 1])
        ctx.save_for_backward(states_xtde, new_xtle, *parts)
        return _read(chunks, states_xtde[:, :-1], new_xtle), s[-1].clone()

    @staticmethod
    def backward(ctx: Any, dout_xtre: Tensor, dlast_xde: Tensor) -> Any:
        states_xtde, new_xtle, *parts = ctx.saved_tensors
        chunks, d = Chunks(*parts), states_xtde.shape[2]
        w_xtld = chunks.wu_xtlz[..., :d]
        grads_xtde = torch.empty_like(states_xtde)
        dwu_xtlz = torch.empty_like(chunks.wu_xtlz)
        dn_xtle = dwu_xtlz[..., d:]
        dq = dout_xtre @ states_xtde[:, :-1].mT
        dscores = _products(dout_xtre, new_xtle.mT)
        dn_xtle.copy_(chunks.scores_xtrl.mT @ dout_xtre)
        grads_xtde[:, :-1] = chunks.q_xtrd.mT @ dout_xtre
        grads_xtde[:, -1] = dlast_xde
        g, dn, w, k = (x.unbind(1) for x in (grads_xtde, dn_xtle, w_xtld, chunks.k_xtld))
        keep = None if chunks.keep_xty1 is None else chunks.keep_xty1.unbind(1)
        for t in reversed(range(len(w))):
            dn[t].baddbmm_(k[t], g[t + 1])
            g[t].addcmul_(g[t + 1], keep[t]) if keep else g[t].add_(g[t + 1])
            g[t].baddbmm_(w[t].mT, dn[t], alpha=-1)
        before, after = states_xtde[:, :-1], grads_xtde[:, 1:]
        torch.matmul(dn_xtle, before.mT, out=(dw := dn_xtle.new_empty(w_xtld.shape)))
        dwu_xtlz[..., :d] = dw.neg_()
        dkeep = None
        if chunks.keep_xty1 is not None and ctx.needs_input_grad[5]:
            dkeep = (before * after).sum(-1, keepdim=True).sum_to_size(chunks.keep_xty1.shape)
        return grads_xtde[:, 0], dq, dscores, dwu_xtlz, new_xtle @ after.mT, dkeep


def _products(dout_xtre: Tensor, new_xtel: Tensor) -> Tensor:
    """dP, in float64 on a CPU: where keys are alike, what is new in a chunk cancels in dP k, and
    the rounding of these products would be all that a gradient is off.
    """
    if dout_xtre.device.type != "cpu":
        return dout_xtre @ new_xtel
    return (dout_xtre.double() @ new_xtel.double()).to(new_xtel.dtype)


def _read(chunks: Chunks, states_xtde: Tensor, new_xtle: Tensor) -> Tensor:
    """o of every chunk."""
    out_xtre = chunks.q_xtrd @ states_xtde
    flat = (x.flatten(0, 1) for x in (out_xtre, chunks.scores_xtrl, new_xtle))
    torch.Tensor.baddbmm_(*flat)
    return out_xtre
