"""Attention to directions through random Fourier features (RFA, without its gate).

    x^ = x / |x|                                        w_1..w_f: standard Gaussian / sigma
    phi(x) = f^-1/2 [sin w_1 x^, .., sin w_f x^, cos w_1 x^, .., cos w_f x^]
    E phi(q) phi(k) = exp(-|q^ - k^|^2 / 2 sigma^2), in proportion to exp(q^ k^ / sigma^2)
    out_n = sum_m phi(q_n) phi(k_m) v_m / max(floor, sum_m phi(q_n) phi(k_m))

Peng et al., arXiv:2103.02143. With many features this is softmax attention on the angle between
query and key; their lengths say nothing, so it is an operator of its own, and with sigma = 1 a flat
one: no key weighs more than e^2 times another. All heads share the w_r.

Sines and cosines have signs: an estimate of a kernel may be negative, and so may a row's sum be,
with few features or in the first rows of a causal mask, where nothing averages it out. So the sum
is held above a floor, as in the authors' code; the value here is our own, since theirs is a
constant for features of another scale. A row that meets it is shrunk, or worse, but finite. Half
precisions are computed in float32. Decoding keeps 2 f (e + 1) numbers a head.

Cost: 2 (n + m) f (d + 2 e) FLOPs a head, with a causal mask besides 2 n s (2 f + e) in chunks of s.
A new token of decoding is 4 f (d + 2 e), however many came before.
"""

import torch
from torch import Tensor

from impls.heads import Define, to_query_heads, wide, widened
from impls.lowrank.common import FeatureAttention, Keys
from impls.problem import Problem
from impls.score_mask import visible_pairs
from impls.spec import at_least

SMALLEST = 1e-12
"""No length counts as less than this: a zero vector has no direction, and stays zero."""


def directions(features: int, head_dim: int, seed: int) -> Tensor:
    """The rows w_r where sigma is one: [f, d], float64, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(features, head_dim, generator=generator, dtype=torch.float64)


def projection(problem: Problem, features: int, sigma: float, seed: int) -> Tensor:
    """w_r / sigma: [d, f], on the problem's device."""
    w_fd = directions(features, problem.head_dim, seed) / sigma
    return w_fd.mT.to(problem.device, wide(problem)).contiguous()


def build(problem: Problem, features: int, sigma: float, floor: float, seed: int,
          chunk: int) -> FeatureAttention:  # fmt: skip
    """Legend in :mod:`impls.lowrank.common`; there are 2 f features."""
    at_least("features", features, 1)
    at_least("sigma", sigma, 1e-3)
    at_least("floor", floor, 1e-6)
    dtype = wide(problem)
    w_df = projection(problem, features, sigma, seed)

    def phi(x_bhnd: Tensor) -> Tensor:
        x_bhnd = x_bhnd.to(dtype)
        length = x_bhnd.norm(dim=-1, keepdim=True).clamp(min=SMALLEST)
        x_bhnf = (x_bhnd / length) @ w_df
        return torch.cat((x_bhnf.sin(), x_bhnf.cos()), -1)

    def keys(k_bcmd: Tensor) -> Keys:
        return Keys(phi(k_bcmd))

    def divide(sums: Tensor) -> Tensor:
        return sums[..., :-1] / sums[..., -1:].clamp(min=floor * features)

    return FeatureAttention(problem, phi, keys, divide, chunk)


def definition(problem: Problem, features: int, sigma: float, floor: float, seed: int,
               chunk: int) -> Define:  # fmt: skip
    """The plain form: the estimated kernel, pair by pair: phi(q) phi(k) is a mean of cosines."""
    w_df = projection(problem, max(features, 1), sigma or 1.0, seed)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k, v = map(widened, (q_bhnd[:, :, rows], k_bcmd, v_bcme))

        def angles(x: Tensor) -> Tensor:
            return (x / x.norm(dim=-1, keepdim=True).clamp(min=SMALLEST)) @ w_df.to(x.dtype)

        a_q, a_k = angles(q), angles(to_query_heads(k, problem))
        kernel = (a_q.cos() @ a_k.cos().mT + a_q.sin() @ a_k.sin().mT) / features
        kernel = kernel.masked_fill(~visible_pairs(problem, rows), 0.0)
        total = kernel.sum(-1, keepdim=True).clamp(min=floor)
        return (kernel / total @ to_query_heads(v, problem)).to(q_bhnd.dtype)

    return define
