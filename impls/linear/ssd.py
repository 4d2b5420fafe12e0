"""State space duality (Mamba-2, arXiv:2405.21060): a state that fades as each token says.

    S_t = exp(dt_t a_h) S_(t-1) + k_t (dt_t v_t)^T        o_t = s q_t S_t

with k for the paper's B, q for its C and v for its x. Only the operator: no convolution before it,
no D x beside it, no gate or norm after it. s is the problem's scale. Grouped queries share the
state of their key/value head, which is what h counts.

Gates: in the model dt is a projection of the token. Here it is one of the token's key, drawn once
from ``seed``, so its work and its gradient belong to the time that is measured:
dt_t = softplus(k_t · w_h + bias_h), a_h = -A_h. As Mamba-2 starts them: A uniform in 1 to 16,
softplus(bias) log-uniform in 0.001 to 0.1; w uniform within ± d^-1/2, as a linear layer's weights.

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
from impls.linear.decay import Recurrent, states_before
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


def gates(k_bcmd: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """dt and the logarithm of the decay, dt a, of each token: [b, c, m] each."""
    w_cd, bias_c, a_c = (x.to(k_bcmd.dtype) for x in given)
    raw_bcm = (k_bcmd @ w_cd[:, :, None])[..., 0] + bias_c[:, None]
    dt_bcm = -F.logsigmoid(-raw_bcm)  # softplus, without a threshold
    return dt_bcm, dt_bcm * a_c[:, None]


class Ssd(Recurrent):
    """Legend in :mod:`impls.linear.decay`."""

    def __init__(self, problem: Problem, chunk: int, seed: int) -> None:
        super().__init__(problem, chunk)
        w, bias, a = parameters(problem, seed)
        self.given = w.to(self.wide), bias.to(self.wide), a.to(self.wide)
        ones = torch.ones(self.length, self.length, device=problem.device, dtype=torch.bool)
        self.above_ll, self.upto_ll = ones.triu(1), ones.triu()

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """Within the chunks, and from the states at their beginnings."""
        k_bcmd = k_bcmd.to(self.wide)
        dt_bcm, log_bcm = gates(k_bcmd, self.given)
        q_bctrd, k_bctld, log_bctl = self.queries(q_bhnd), self.keys(k_bcmd), self.keys(log_bcm)
        v_bctle = self.keys(v_bcme.to(self.wide) * dt_bcm[..., None])
        inside_bctll = self._inside(log_bctl)
        scores_bctrl = (q_bctrd * self.problem.scale) @ k_bctld.mT
        scores = scores_bctrl.unflatten(3, (-1, self.length)) * inside_bctll[:, :, :, None]
        out_bctre = scores.flatten(3, 4) @ v_bctle
        if k_bctld.shape[2] > 1:
            begun_bctl = log_bctl.cumsum(-1).exp()
            left_bctl = inside_bctll[..., -1, :]
            added_bctde = (k_bctld * left_bctl[..., None]).mT @ v_bctle
            states = states_before(added_bctde, begun_bctl[..., -1:, None])
            begun_bctrx = (begun_bctl * self.problem.scale).repeat(1, 1, 1, self.problem.group)
            out_bctre = out_bctre + (q_bctrd * begun_bctrx[..., None]) @ states
        return self.back(out_bctre)

    def _inside(self, log_bctl: Tensor) -> Tensor:
        """exp of the sum over j < u <= i for each pair of a chunk, 0 above the diagonal."""
        each = log_bctl[..., None].masked_fill(self.upto_ll, 0.0)  # [u, j], none of u <= j
        return each.cumsum(-2).masked_fill(self.above_ll, -torch.inf).exp()

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The sum of all k (dt v)^T, each faded to the end."""
        k_bcmd = k_bcmd.to(self.wide)
        dt_bcm, log_bcm = gates(k_bcmd, self.given)
        since = F.pad(log_bcm.double(), (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
        weight_bcm = dt_bcm * since.exp().to(self.wide)
        return (k_bcmd * weight_bcm[..., None]).mT @ v_bcme.to(self.wide)

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor) -> Tensor:
        """S = exp(dt a) S + k (dt v)^T."""
        dt_bcn, log_bcn = gates(k_bcd[:, :, None], self.given)
        added = k_bcd[..., None] * (dt_bcn * v_bce)[..., None, :]
        return log_bcn.exp()[..., None] * state_bcde + added


def build(problem: Problem, chunk: int, seed: int) -> Attend:
    """The gate's parameters are drawn here."""
    return Ssd(problem, chunk, seed)


def definition(problem: Problem, chunk: int, seed: int) -> Define:
    """The recurrence: see :mod:`impls.linear.unrolled`."""
    given = parameters(problem, seed)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        dt_bcm, log_bcm = gates(k_bcmd, given)
        told_bcme = dt_bcm[..., None] * v_bcme
        return unrolled(problem, q_bhnd, rows, k_bcmd, told_bcme, log_kept_bcmy=log_bcm[..., None])

    return define
