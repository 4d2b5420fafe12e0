"""The delta rule (DeltaNet, in the chunked form of arXiv:2406.06484): a memory that is corrected.

    S_t = (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T        o_t = s q_t S_t

What the state holds under the key k_t moves a share b_t of the way to v_t. k and q are divided by
their length, x / sqrt(x·x + 1e-6), as the layer does, so that the state can't blow up; k and q here
are those. Only the operator: no convolution or SiLU before, no norm or gate after. s is the
problem's scale. Grouped queries share the state of their key/value head.

Gates: b is the input ``beta`` under ``gates=input``, where k and q are taken as they come, divided
by no length. Under ``gates=key`` b is a projection of the token's key (before it is divided by its
length), drawn once from ``seed``, so that its work and its gradient belong to the time that is
measured: b_t = sigmoid(k_t · w_h), w uniform within ± d^-1/2, as a linear layer's weights.

Causal by construction. The fast form takes chunks of ``chunk`` tokens. With L the part of
b_i k_i·k_j below the diagonal, the chunk's corrections follow from one triangular system,

    (I + L) [W U] = b [k v]      N = U - W S      o = s (q S + P N)      S' = S + k^T N

where P is q k^T on and below the diagonal. All but N and S' is done for all chunks at once
(:mod:`impls.linear.corrected`). The system is solved, never inverted by a series: equal keys make
powers of L huge. A chunk sums corrections that a state would have taken back by now, so its
rounding grows with l / d: chunks have at most 16 d tokens. Half precisions are computed in float32.

Cost: 6 d e FLOPs a token (4 d e to read the key's old value and write the new one, 2 d e to read),
2 d for its gate; the chunks do l (5 d + 3 e) besides. Memory: three matrices of l numbers a token,
and d e for each chunk.
"""

import torch
from torch import Tensor

from impls.heads import Attend, Define
from impls.linear.decay import Gates, gates_from
from impls.linear.gated_chunks import Corrected
from impls.linear.unrolled import unrolled
from impls.problem import Problem

TINY = 1e-6


def parameters(problem: Problem, seed: int) -> Tensor:
    """w [c, d] of each key/value head, in float32."""
    generator = torch.Generator().manual_seed(seed)
    shape = problem.kv_heads, problem.head_dim
    w_cd = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    return (w_cd * problem.head_dim**-0.5).to(problem.device, torch.float32)


def gates(k_bcmd: Tensor, w_cd: Tensor) -> Tensor:
    """b of each token: [b, c, m]."""
    return torch.sigmoid(k_bcmd @ w_cd.to(k_bcmd.dtype)[:, :, None])[..., 0]


def unit(x_bhnd: Tensor) -> Tensor:
    """Divided by its length."""
    return x_bhnd * torch.rsqrt(x_bhnd.square().sum(-1, keepdim=True) + TINY)


class Delta(Corrected):
    """Keys and queries are divided by their length where gates come of the keys."""

    def __init__(self, problem: Problem, chunk: int, gates: Gates | None) -> None:
        super().__init__(problem, chunk, gates)
        self.unit = unit if gates else lambda x_bhnd: x_bhnd

    def _after(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor, *gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        q_bhnd, k_bcmd = (self.unit(x.to(self.wide)) for x in (q_bhnd, k_bcmd))
        return super()._after(q_bhnd, k_bcmd, v_bcme, first_bcde, *gates)

    def query(self, q_bcgd: Tensor) -> Tensor:
        """The query divided by its length, where keys are."""
        return self.unit(q_bcgd)

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """S = S + b k (v - k S)."""
        b_bcxx, k_bcxd = gates[0][..., None, None], self.unit(k_bcd)[:, :, None]
        return state_bcde + k_bcxd.mT @ (b_bcxx * (v_bce[:, :, None] - k_bcxd @ state_bcde))


def of_keys(problem: Problem, seed: int) -> Gates:
    """The gates that keys make; their parameters are drawn here."""
    w_cd = parameters(problem, seed)
    return lambda k_bcmd: (gates(k_bcmd, w_cd),)


def build(problem: Problem, chunk: int, seed: int, gates: str) -> Attend:
    """Over chunks, or from a state."""
    return Delta(problem, chunk, gates_from(gates, of_keys(problem, seed)))


def definition(problem: Problem, chunk: int, seed: int, gates: str) -> Define:
    """The recurrence: see :mod:`impls.linear.unrolled`."""
    gates_of = of_keys(problem, seed) if gates == "key" else None

    def define(
        q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor, beta: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if gates_of:
            beta = gates_of(k_bcmd)[0]
            q_bhnd, k_bcmd = (
                x / (x.square().sum(-1, True) + TINY).sqrt() for x in (q_bhnd, k_bcmd)
            )
        assert beta is not None
        write_bcmd = beta.to(k_bcmd.dtype)[..., None] * k_bcmd
        return unrolled(
            problem, q_bhnd, rows, write_bcmd, v_bcme, read_bcmd=k_bcmd, first_bcde=state
        )

    return define
