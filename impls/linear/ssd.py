"""State space duality (Mamba-2, arXiv:2405.21060): a state that fades as each token says.

    S_t = exp(dt_t a_h) S_(t-1) + k_t (dt_t v_t)^T        o_t = s q_t S_t

with k for the paper's B, q for its C and v for its x. Only the operator: no convolution before it,
no D x beside it, no gate or norm after it. s is the problem's scale. Grouped queries share the
state of their key/value head, which is what h counts.

Gates: dt and ``g`` = dt a are inputs under ``gates=input``. Under ``gates=key`` dt is a projection
of the token's key, drawn once from ``seed``, so that its work and its gradient belong to the time
that is measured: dt_t = softplus(k_t · w_h + bias_h), a_h = -A_h. As Mamba-2 starts them: A uniform
in 1 to 16, softplus(bias) log-uniform in 0.001 to 0.1; w uniform within ± d^-1/2, as a linear
layer's weights.

Causal by construction. The fast form takes chunks of ``chunk`` tokens, all at once. Within one,
o = s (q k^T ⊙ D) dt v, D_ij = exp(sum of dt a over j < u <= i): each sum is taken on its own, so
that none is a difference of long ones (their rounding would be larger than a short sum); all are
<= 0, so no exponential overflows. Half precisions sum in float32.

Cost: 4 d e FLOPs a token, 2 d for its gate; the chunks do 2 l (d + e) more of them. Memory: the
matrices of scores and of decays, l numbers a token each.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import Attend, Define
from impls.linear.decay import Faded, Gates, gates_from
from impls.linear.unrolled import unrolled
from impls.problem import Problem

A_RANGE = (1.0, 16.0)
DT_RANGE = (1e-3, 1e-1)


def parameters(problem: Problem, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """w [c, d], bias [c] and a [c] of each key/value head, in float32."""
    generator = torch.Generator().manual_seed(seed)
    c, d = problem.kv_heads, problem.head_dim

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    w_cd = (2 * uniform(c, d) - 1) * d**-0.5
    low, high = torch.tensor(DT_RANGE, dtype=torch.float64).log()
    dt_c = torch.exp(low + uniform(c) * (high - low))
    bias_c = dt_c + torch.log(-torch.expm1(-dt_c))  # softplus(bias) = dt
    a_c = -(A_RANGE[0] + uniform(c) * (A_RANGE[1] - A_RANGE[0]))
    w, bias, a = (x.to(problem.device, torch.float32) for x in (w_cd, bias_c, a_c))
    return w, bias, a


def gates(k_bcmd: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The logarithm of the decay, dt a, and dt of each token: [b, c, m] each."""
    w_cd, bias_c, a_c = (x.to(k_bcmd.dtype) for x in weights)
    raw_bcm = (k_bcmd @ w_cd[:, :, None])[..., 0] + bias_c[:, None]
    dt_bcm = -F.logsigmoid(-raw_bcm)  # softplus, without a threshold
    return dt_bcm * a_c[:, None], dt_bcm


class Ssd(Faded):
    """Legend in :mod:`impls.linear.decay`."""

    names = ("g", "dt")

    def from_state(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As a state that fades, of dt v."""
        step_bcme = v_bcme.to(self.wide) * gates[1][..., None]
        return super().from_state(q_bhnd, k_bcmd, step_bcme, first_bcde, gates[0])

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """S = exp(dt a) S + k (dt v)^T."""
        return super().token(k_bcd, v_bce * gates[1][..., None], state_bcde, gates[0])


def of_keys(problem: Problem, seed: int) -> Gates:
    """The gates that keys make; their parameters are drawn here."""
    weights = parameters(problem, seed)
    return lambda k_bcmd: gates(k_bcmd, weights)


def build(problem: Problem, chunk: int, seed: int, gates: str) -> Attend:
    """Over chunks, or from a state."""
    return Ssd(problem, chunk, gates_from(gates, of_keys(problem, seed)))


def definition(problem: Problem, chunk: int, seed: int, gates: str) -> Define:
    """The recurrence: see :mod:`impls.linear.unrolled`."""
    gates_of = of_keys(problem, seed) if gates == "key" else None

    def define(
        q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor, **inputs: Tensor
    ) -> Tensor:
        log_bcm, dt_bcm = gates_of(k_bcmd) if gates_of else (inputs["g"], inputs["dt"])
        step_bcme = dt_bcm.to(v_bcme.dtype)[..., None] * v_bcme
        return unrolled(
            problem, q_bhnd, rows, k_bcmd, step_bcme, log_decay_bcmy=log_bcm[..., None],
            first_bcde=inputs.get("state"),
        )  # fmt: skip

    return define
