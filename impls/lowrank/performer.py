"""Softmax attention through positive random features (Performer, FAVOR+).

    x' = d^-1/4 x                                       w_1..w_f: orthogonal in blocks of d
    phi_r(x) = f^-1/2 exp(w_r x' - |x'|^2 / 2)          E phi(q) phi(k) = exp(d^-1/2 q k)
    out_n = sum_m phi(q_n) phi(k_m) v_m / sum_m phi(q_n) phi(k_m)      over the m that n may see

Choromanski et al., arXiv:2009.14794. The rows w_r are those of orthogonal matrices, drawn evenly
and stretched to the lengths that Gaussian rows have; all heads share them. The kernel is unbiased,
the quotient is not, and it is poor where |q| and |k| are large: few features then meet both.

Factors that cancel keep exponentials at one or below: exp(-max_r w_r q') of a query, and of a key
exp(max_r w_r k' - |k'|^2 / 2), which is held as a logarithm and counted from the largest that the
row has seen. No key moves an earlier row. Nothing is added to the features (a constant there pulls
the output towards the mean of the values). Only where a query and the largest key it sees share no
feature within exp(-69), at logits of several hundreds, does a float32 row sum to nothing: it is
then zero. Half precisions are computed in float32. Decoding keeps f (e + 1) numbers a head.

Cost: 2 (n + m) f (d + e) FLOPs a head, with a causal mask besides 2 n s (f + e) in chunks of s. A
new token of decoding is 4 f (d + e), however many came before.
"""

import torch
from torch import Tensor

from impls.heads import Define, to_query_heads, wide, widened
from impls.lowrank.common import FeatureAttention, Keys, divisor
from impls.problem import Problem
from impls.score_mask import visible_pairs
from impls.spec import at_least


def directions(features: int, head_dim: int, seed: int) -> Tensor:
    """The rows w_r: [f, d], float64, on the CPU. Each alone is a standard Gaussian vector."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-features // head_dim)):
        square = torch.randn(head_dim, head_dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(square)
        blocks.append(q * r.diagonal().sign())  # without the signs, not every turn is as likely
    gauss = torch.randn(features, head_dim, generator=generator, dtype=torch.float64)
    return torch.cat(blocks)[:features] * gauss.norm(dim=1, keepdim=True)


def projection(problem: Problem, features: int, seed: int) -> Tensor:
    """The projection of queries and keys to exponents, d^-1/4 w_r: [d, f], on the device."""
    w_fd = directions(features, problem.head_dim, seed) * problem.scale**0.5
    return w_fd.mT.to(problem.device, wide(problem)).contiguous()


def build(problem: Problem, features: int, seed: int, chunk: int) -> FeatureAttention:
    """Legend in :mod:`impls.lowrank.common`."""
    at_least("features", features, 1)
    dtype, half = wide(problem), problem.scale / 2
    w_df = projection(problem, features, seed)

    def queries(q_bhnd: Tensor) -> Tensor:
        x_bhnf = q_bhnd.to(dtype) @ w_df
        return x_bhnf.sub_(x_bhnf.detach().amax(-1, keepdim=True)).exp_()

    def keys(k_bcmd: Tensor) -> Keys:
        k_bcmd = k_bcmd.to(dtype)
        x_bcmf = k_bcmd @ w_df
        top_bcm1 = x_bcmf.detach().amax(-1, keepdim=True)
        log_bcm1 = top_bcm1 - half * k_bcmd.square().sum(-1, keepdim=True)
        return Keys(x_bcmf.sub_(top_bcm1).exp_(), log_bcm1)

    def divide(sums: Tensor) -> Tensor:
        return sums[..., :-1] / divisor(sums[..., -1:])

    return FeatureAttention(problem, queries, keys, divide, chunk)


def definition(problem: Problem, features: int, seed: int, chunk: int) -> Define:
    """The plain form: phi(q) phi(k) for each pair, over its sum by row."""
    w_df = projection(problem, max(features, 1), seed)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        k, v = (to_query_heads(widened(x), problem) for x in (k_bcmd, v_bcme))
        q = widened(q_bhnd[:, :, rows])
        x_q, x_k = (x @ w_df.to(x.dtype) for x in (q, k))
        top_q, top_k = (x.detach().amax(-1, keepdim=True) for x in (x_q, x_k))
        kernel = (x_q - top_q).exp() @ (x_k - top_k).exp().mT
        log = (top_k - k.square().sum(-1, keepdim=True) * (problem.scale / 2)).mT
        log = log.masked_fill(~visible_pairs(problem, rows), -torch.inf)
        top = log.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(log.dtype).min)
        weights = kernel * (log - top).exp()
        return (weights @ v / divisor(weights.sum(-1, keepdim=True))).to(q_bhnd.dtype)

    return define
