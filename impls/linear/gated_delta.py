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

    (I + L) [W U] = b [k', v]    N = U - W S    o = s (q' S + P N)    S' = diag D S + k''^T N

where ' is faded from the chunk's beginning, '' to its end, and D is what is kept over all of it.
No D is a quotient: one a head is the exponential of a difference of sums in float64, and those of
channels come from halving the chunk (:mod:`impls.linear.halving`). Chunks have at most 16 d tokens.
Half precisions are computed in float32.

Cost: 6 d e FLOPs a token and head of values; the chunks do l (5 d + 3 e) besides. Memory: three
matrices of l numbers a token, and d e for each chunk.
"""

from torch import Tensor

from impls.heads import Attend, Define
from impls.linear.gated_chunks import GatedDelta, Kda
from impls.linear.unrolled import unrolled
from impls.problem import Problem


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
