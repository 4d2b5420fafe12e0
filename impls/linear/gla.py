"""Gated linear attention (arXiv:2312.06635): every channel of the key fades at its own rate.

    S_t = diag(alpha_t) S_(t-1) + k_t v_t^T        o_t = s q_t S_t

Only the operator: no norm or output gate after it. s is the problem's scale. Grouped queries share
the state of their key/value head.

Gates: ``g``, the logarithm of alpha, is an input under ``gates=input``. Under ``gates=key`` it is a
projection of the token's key, of each key/value head, drawn once from ``seed``, so that its work
and its gradient belong to the time that is measured: alpha_t = sigmoid(k_t W1 W2 + bias)^(1/16), W1
[d, 16], W2 [16, d], as the paper's layer has it, all uniform within ± 1 / sqrt(rows), as a linear
layer starts.

Causal by construction. The fast form takes chunks of ``chunk`` tokens, all at once. Within one the
score of i and j is the sum over channels of q_i k_j prod(alpha_u, j < u <= i): a product of
matrices only where that product is split in two at some token. The usual split, at the chunk's
beginning, divides by products of alpha, which overflows. Here a chunk is halved again and again:
pairs with i in the right half and j in the left are split at the middle, so that q_i and k_j are
each multiplied by what lies between them and the middle, and pairs within one half are left to its
own halves. From the smallest halves up, each step fades the right queries and the left keys by what
the other half adds. Nothing is ever divided, and no factor is above one. Half precisions are
computed in float32.

Cost: 4 d e FLOPs a token, 64 d for its gate; the chunks do 2 l (d + e) more of them, and 2 log2(l)
passes over q and k. Memory: l numbers a token and some d; backward does the halving again, and
holds log2(l) d.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import Attend, Define
from impls.linear.decay import Gates, Recurrent, gates_from, scanned
from impls.linear.halving import Halved, halvable
from impls.linear.unrolled import unrolled
from impls.problem import Problem

RANK = 16
ROOT = 16
"""alpha is the sixteenth root of a sigmoid: a long memory to begin with."""

STRETCH = 2048
"""Tokens done at a time where nothing is kept for backward."""

Parameters = tuple[Tensor, Tensor, Tensor]


def parameters(problem: Problem, seed: int) -> Parameters:
    """W1 [c, d, 16], W2 [c, 16, d] and bias [c, d] of each key/value head, in float32."""
    generator = torch.Generator().manual_seed(seed)
    c, d = problem.kv_heads, problem.head_dim

    def uniform(rows: int, *shape: int) -> Tensor:
        x = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
        return (x * rows**-0.5).to(problem.device, torch.float32)

    return uniform(d, c, d, RANK), uniform(RANK, c, RANK, d), uniform(RANK, c, d)


def gates(k_bcmd: Tensor, weights: Parameters) -> Tensor:
    """log alpha of each token and channel: [b, c, m, d]."""
    down_cdr, up_crd, bias_cd = (x.to(k_bcmd.dtype) for x in weights)
    raw_bcmd = k_bcmd @ down_cdr @ up_crd + bias_cd[:, None]
    return F.logsigmoid(raw_bcmd) / ROOT


class Gla(Recurrent):
    """Legend in :mod:`impls.linear.decay`."""

    names = ("g",)

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, *gates: Tensor) -> Tensor:
        """At once; where nothing is kept for backward, a stretch that fits the cache at a time."""
        size = max(STRETCH // self.length, 1) * self.length
        if torch.is_grad_enabled() or q_bhnd.shape[2] <= size:
            return super().whole(q_bhnd, k_bcmd, v_bcme, *gates)
        outs, state = [], None
        parts = (x.split(size, 2) for x in (q_bhnd, k_bcmd, v_bcme, *gates))
        for q, k, v, g in zip(*parts, strict=True):
            out, state = self.from_state(q, k, v, state, g)
            outs.append(out)
        return torch.cat(outs, 2)

    def from_state(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Within the chunks, and from the states at their beginnings."""
        alpha_bctld = halvable(self.keys(gates[0]).exp(), 1.0)
        k_bctld, v_bctle = (halvable(self.keys(x.to(self.wide))) for x in (k_bcmd, v_bcme))
        q_bctgld = self.queries(q_bhnd.to(self.wide) * self.problem.scale)
        q_bctgld = halvable(q_bctgld.unflatten(3, (-1, self.length)))
        parts = Halved.apply(q_bctgld, k_bctld, alpha_bctld)  # type: ignore[no-untyped-call]
        scores_bctgll, q_bctgld, k_bctld, decay_bctxd = parts
        out_bctre = scores_bctgll.flatten(3, 4) @ v_bctle
        states, last = scanned(k_bctld.mT @ v_bctle, decay_bctxd.mT, first_bcde)
        if states is not None:
            out_bctre = out_bctre + q_bctgld.flatten(3, 4) @ states
        out_bctgle = out_bctre.unflatten(3, (self.problem.group, -1))[..., : self.length, :]
        return self.back(out_bctgle.flatten(3, 4))[:, :, : q_bhnd.shape[2]], last

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """S = diag(alpha) S + k v^T."""
        return gates[0].exp()[..., None] * state_bcde + k_bcd[..., None] * v_bce[..., None, :]


def of_keys(problem: Problem, seed: int) -> Gates:
    """The gates that keys make; their parameters are drawn here."""
    weights = parameters(problem, seed)
    return lambda k_bcmd: (gates(k_bcmd, weights),)


def build(problem: Problem, chunk: int, seed: int, gates: str) -> Attend:
    """Over chunks, or from a state."""
    return Gla(problem, chunk, gates_from(gates, of_keys(problem, seed)))


def definition(problem: Problem, chunk: int, seed: int, gates: str) -> Define:
    """The recurrence: see :mod:`impls.linear.unrolled`."""
    gates_of = of_keys(problem, seed) if gates == "key" else None

    def define(
        q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor, g: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        log_bcmd = gates_of(k_bcmd)[0] if gates_of else g
        return unrolled(
            problem, q_bhnd, rows, k_bcmd, v_bcme, log_decay_bcmy=log_bcmd, first_bcde=state
        )

    return define
