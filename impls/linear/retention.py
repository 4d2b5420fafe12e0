"""Retention (RetNet, arXiv:2307.08621): linear attention whose memory fades at a fixed rate.

    S_t = g_h S_(t-1) + k_t v_t^T        g_h = 1 - 2^(-5-h)        o_t = s q_t S_t

or, all at once, o = s (q k^T ⊙ D) v with D_ij = g_h^(i-j) for j <= i and 0 above. h counts the
heads of keys, from 0: the state belongs to the key/value head, so grouped queries share its rate.
Only the operator: no rotation of q and k (xPos), no normalisation of D or of the output, no gate
after it. s is the problem's scale. Gates: none, the decay is fixed; under ``gates=input`` log g is
an input, a number a token and key/value head.

Causal by construction: a state knows the tokens up to its own. The fast form takes chunks of
``chunk`` tokens: the products within a chunk are dense, and each adds k^T v, faded to its end, to
a state that is handed on. Powers of g are made in float64, once; half precisions sum in float32.

Cost: 4 d e FLOPs a token (2 d e to write for each key/value head, 2 d e to read for each query
head); the chunks do 2 l (d + e) more of them. Memory: the matrices of scores, l numbers a token.
"""

import torch
from torch import Tensor

from impls.heads import Attend, Define
from impls.linear.decay import Faded, Gates, Recurrent, gates_from, states_before
from impls.linear.unrolled import unrolled
from impls.problem import Problem


class Retention(Recurrent):
    """Legend in :mod:`impls.linear.decay`."""

    def __init__(self, problem: Problem, chunk: int, gates: Gates | None) -> None:
        super().__init__(problem, chunk, gates)
        head = torch.arange(problem.kv_heads, device=problem.device, dtype=torch.float64)
        self.log_c = torch.log1p(-torch.exp2(-5.0 - head))
        place = torch.arange(self.length, device=problem.device, dtype=torch.float64)
        since = place[:, None] - place
        inside_cll = self._fade(since).masked_fill(since < 0, 0.0)
        self.inside_cgll = (inside_cll * problem.scale).to(self.wide)[:, None, None]
        begun_cl = self._fade(place + 1) * problem.scale
        self.begun_crx = begun_cl.repeat(1, problem.group)[:, None, :, None].to(self.wide)
        self.left_clx = self._fade(self.length - 1 - place)[:, None, :, None].to(self.wide)
        self.chunk_cxx = self._fade(torch.full_like(place[:1], self.length))[:, None, :, None]

    def _fade(self, steps: Tensor) -> Tensor:
        """g_h to the power of so many steps, in float64: [c, …]."""
        return torch.exp(self.log_c.view(-1, *[1] * steps.dim()) * steps.clamp(min=0))

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, *gates: Tensor) -> Tensor:
        """Within the chunks, and from the states at their beginnings."""
        q_bctrd = self.queries(q_bhnd)
        k_bctld, v_bctle = (self.keys(x.to(self.wide)) for x in (k_bcmd, v_bcme))
        scores_bctrl = q_bctrd @ k_bctld.mT
        # in place: the product's backward does not need its own result
        scores_bctrl.unflatten(3, (-1, self.length)).mul_(self.inside_cgll)
        out_bctre = scores_bctrl @ v_bctle
        count = k_bctld.shape[2]
        if count > 1:
            added_bctde = (k_bctld * self.left_clx).mT @ v_bctle
            decay = self.chunk_cxx.to(self.wide).expand(*added_bctde.shape[:3], 1, 1)
            out_bctre = out_bctre + (q_bctrd * self.begun_crx) @ states_before(added_bctde, decay)
        return self.back(out_bctre)

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor, **gates: Tensor) -> Tensor:
        """The sum of all k v^T, each faded to the end."""
        since = torch.arange(k_bcmd.shape[2], device=k_bcmd.device, dtype=torch.float64).flip(0)
        faded_bcmd = k_bcmd * self._fade(since)[:, :, None].to(self.wide)
        return faded_bcmd.mT @ v_bcme.to(self.wide)

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """S = g S + k v^T."""
        rate_c = self.log_c.exp().to(self.wide)[:, None, None]
        return rate_c * state_bcde + k_bcd[..., None] * v_bce[..., None, :]


def build(problem: Problem, chunk: int, gates: str) -> Attend:
    """The chunks' powers of g are made here, where g is fixed."""
    own = gates_from(gates, lambda _: (), "fixed")
    return (Retention if own else Faded)(problem, chunk, own)


def definition(problem: Problem, chunk: int, gates: str) -> Define:
    """The recurrence: see :mod:`impls.linear.unrolled`."""
    heads = torch.arange(problem.kv_heads, device=problem.device, dtype=torch.float64)
    log_c11 = (1.0 - 2.0 ** (-5.0 - heads)).log()[:, None, None]

    def define(
        q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor, g: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        log_bcm1 = log_c11.expand(*k_bcmd.shape[:3], 1) if g is None else g[..., None]
        return unrolled(
            problem, q_bhnd, rows, k_bcmd, v_bcme, log_decay_bcmy=log_bcm1, first_bcde=state
        )

    return define
