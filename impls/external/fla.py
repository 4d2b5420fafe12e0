"""flash-linear-attention (fla-core): operators with a state, by its chunked Triton kernels.

One state S of d x e a head; x' is x d^-1/2. Per token:

    linear        S += f(k) v^T;                z += f(k);  out = f(q) S / f(q) z;   f = elu + 1
    retention     S = a S + k v^T;              out = q' S;  a = 1 - 2^(-5-h) of head h
    gla           S = diag(exp g) S + k v^T;    out = q' S;  g = log sigmoid(k W) / 16, d wide
    simple_gla    S = exp(g) S + k v^T;         out = q' S;  g = log sigmoid(k w) / 16, one number
    delta         S += b k (v - k^T S)^T;       out = q' S;  b = sigmoid(k w), |q| = |k| = 1

simple_gla is Mamba-2's SSD form. Models compute gates from the token; here only the keys are at
hand, so the gates come from them through a fixed random projection (seeded, the same in every
head, rows of unit variance), at every call and with their gradient. Gates are computed in float32.

All are causal and see every earlier token through the state, so the mask is causal and nothing
else. The library needs as many key/value heads as query heads. linear, retention, gla and
simple_gla take v_head_dim of their own. Half precision only: delta refuses float32, the others
would multiply in TF32. The kernels want heads after tokens, so q, k and v are copied at each call.

The definitions are plain: sums over pairs (linear, retention, simple_gla), or the recurrence above,
token by token (gla, delta).

arXiv:2006.16236, 2307.08621, 2312.06635, 2405.21060, 2406.06484. Cost: about 4 d e
FLOPs a token and head forward (delta 6), gates besides; memory linear in n.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.external.common import find, load, need, swap
from impls.heads import Attend, Define
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install 'fla-core>=0.6' triton"
SEED, SOFTNESS, TINY, UNIT_TINY = 2406, 16.0, 1e-10, 1e-6
Gate = Callable[[Tensor], Tensor]


def projection(problem: Problem, columns: int) -> Tensor:
    """Random numbers [d, columns] of variance 1 / d in the problem's dtype; the same each time."""
    dice = torch.Generator().manual_seed(SEED)
    matrix = torch.randn(problem.head_dim, columns, generator=dice, dtype=torch.float64)
    matrix = matrix / math.sqrt(problem.head_dim)
    return matrix.to(getattr(torch, problem.dtype)).to(problem.device)


def gates(problem: Problem, columns: int, to_gate: Gate) -> Gate:
    """``gate(k) -> to_gate(k W)``, [..., columns], or [...] for one column."""
    w = projection(problem, columns)

    def gate(k: Tensor) -> Tensor:
        wide = torch.promote_types(k.dtype, torch.float32)
        logits = to_gate(k.to(wide) @ w.to(wide))
        return logits.squeeze(-1) if columns == 1 else logits

    return gate


def forget(x: Tensor) -> Tensor:
    """The logarithm of how much of the state is kept."""
    return F.logsigmoid(x) / SOFTNESS


def features(x: Tensor) -> Tensor:
    """The positive features of queries and keys in linear attention."""
    return F.elu(x) + 1.0


def decay(problem: Problem) -> Tensor:
    """The logarithm of the fixed decay of each head, float64 [h, 1, 1]."""
    head = torch.arange(problem.heads, dtype=torch.float64, device=problem.device)
    return torch.log1p(-(2.0 ** (-5.0 - head)))[:, None, None]


# ---- the library's kernels -----------------------------------------------------------------------


def _kernel(problem: Problem, row: str, module: str, name: str) -> Any:
    need(not problem.mask.upper_left, f"{row} has no upper-left alignment")
    with suppress(Unavailable):
        load("transformers.utils.versions", row, REMEDY)  # the library imports it in its first call
    return find(load(f"fla.ops.{module}", row, REMEDY), name, row, REMEDY)


def build_linear(problem: Problem) -> Attend:
    """``chunk_linear_attn`` on the features."""
    kernel = _kernel(problem, "fla.linear", "linear_attn", "chunk_linear_attn")

    def attend(q_bhnd: Tensor, k_bhnd: Tensor, v_bhne: Tensor) -> Tensor:
        q, k = features(q_bhnd), features(k_bhnd)
        out = kernel(swap(q), swap(k), swap(v_bhne), scale=1.0, normalize=True)[0]
        return swap(out).to(v_bhne.dtype)

    return attend


def build_retention(problem: Problem) -> Attend:
    """``chunk_retention``, whose decay is fixed."""
    kernel = _kernel(problem, "fla.retention", "retention", "chunk_retention")

    def attend(q_bhnd: Tensor, k_bhnd: Tensor, v_bhne: Tensor) -> Tensor:
        out = kernel(swap(q_bhnd), swap(k_bhnd), swap(v_bhne), scale=problem.scale)[0]
        return swap(out)

    return attend


def _gated(problem: Problem, kernel: Any, unit: bool, **gate_of: Gate) -> Attend:
    more = {"use_qk_l2norm_in_kernel": True} if unit else {}

    def attend(q_bhnd: Tensor, k_bhnd: Tensor, v_bhne: Tensor) -> Tensor:
        k_bnhd = swap(k_bhnd)
        gate_values = {name: gate(k_bnhd) for name, gate in gate_of.items()}
        if "beta" in gate_values:
            gate_values["beta"] = gate_values["beta"].to(v_bhne.dtype)
        out = kernel(
            swap(q_bhnd), k_bnhd, swap(v_bhne), scale=problem.scale, **gate_values, **more
        )[0]  # fmt: skip
        return swap(out)

    return attend


def build_gla(problem: Problem) -> Attend:
    """``chunk_gla``: a gate for each channel."""
    kernel = _kernel(problem, "fla.gla", "gla", "chunk_gla")
    return _gated(problem, kernel, False, g=gates(problem, problem.head_dim, forget))


def build_simple_gla(problem: Problem) -> Attend:
    """``chunk_simple_gla``: a gate for each token."""
    kernel = _kernel(problem, "fla.simple_gla", "simple_gla", "chunk_simple_gla")
    return _gated(problem, kernel, False, g=gates(problem, 1, forget))


def build_delta(problem: Problem) -> Attend:
    """``chunk_delta_rule`` with queries and keys of length one."""
    kernel = _kernel(problem, "fla.delta", "delta_rule", "chunk_delta_rule")
    return _gated(problem, kernel, True, beta=gates(problem, 1, torch.sigmoid))


# ---- the definitions -----------------------------------------------------------------------------


def _pairs(q_bhrd: Tensor, k_bhnd: Tensor, rows: Tensor, decays: Tensor | None) -> Tensor:
    """q . k of each row with the tokens up to it, faded by exp(kept); 0 for later ones."""
    key = torch.arange(k_bhnd.shape[2], device=rows.device)
    later = key > rows[:, None]
    scores = q_bhrd @ k_bhnd.transpose(-1, -2)
    if decays is not None:
        scores = scores * decays.masked_fill(later, 0.0).exp().to(scores.dtype)
    return scores.masked_fill(later, 0.0)


def define_linear(problem: Problem) -> Define:
    """Weights f(q) . f(k), divided by their sum."""

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        weights = _pairs(features(q[:, :, rows]), features(k), rows, None)
        return weights @ v / (weights.sum(-1, keepdim=True) + TINY)

    return define


def define_retention(problem: Problem) -> Define:
    """Scores faded by the distance."""
    rate = decay(problem)

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        away = rows[:, None] - torch.arange(k.shape[2], device=rows.device)
        return _pairs(q[:, :, rows] * problem.scale, k, rows, rate * away) @ v

    return define


def define_simple_gla(problem: Problem) -> Define:
    """Scores faded by the gates between."""
    gate = gates(problem, 1, forget)

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        sums = gate(k).cumsum(-1)
        decays = sums[:, :, rows, None] - sums[:, :, None]
        return _pairs(q[:, :, rows] * problem.scale, k, rows, decays) @ v

    return define


def _recurrence(problem: Problem, unit: bool, g: Gate | None, beta: Gate | None) -> Define:
    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        keep = None if g is None else g(k).exp().to(v.dtype)
        write = None if beta is None else beta(k).to(v.dtype)
        q = q * (q.square().sum(-1, keepdim=True) + UNIT_TINY).rsqrt() if unit else q
        k = k * (k.square().sum(-1, keepdim=True) + UNIT_TINY).rsqrt() if unit else k
        outputs = {int(row) for row in rows.tolist()}
        state = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        out: dict[int, Tensor] = {}
        for n in range(max(outputs) + 1):
            k_bhd, v_bhe = k[:, :, n], v[:, :, n]
            if keep is not None:
                fade = keep[:, :, n]
                state = state * (fade[..., None] if fade.ndim == 3 else fade[..., None, None])
            if write is not None:
                old_bhe = (k_bhd[..., None] * state).sum(-2)
                v_bhe = write[:, :, n, None] * (v_bhe - old_bhe)
            state = state + k_bhd[..., None] * v_bhe[..., None, :]
            if n in outputs:
                out[n] = ((q[:, :, n] * problem.scale)[..., None] * state).sum(-2)
        return torch.stack([out[int(row)] for row in rows.tolist()], 2)

    return define


def define_gla(problem: Problem) -> Define:
    """Token by token, the state faded channel by channel."""
    return _recurrence(problem, False, gates(problem, problem.head_dim, forget), None)


def define_delta(problem: Problem) -> Define:
    """Token by token, what the state already says of the key taken off the value."""
    return _recurrence(problem, True, None, gates(problem, 1, torch.sigmoid))
