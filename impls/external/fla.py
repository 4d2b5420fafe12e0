"""flash-linear-attention (fla-core): operators with a state, by its chunked Triton kernels.

One state S of d x e a head; q' is q times the scale. Per token:

    linear        S += f(k) v^T;                z += f(k);  out = f(q) S / f(q) z;   f = elu + 1
    retention     S = a S + k v^T;              out = q' S;  a = 1 - 2^(-5-h) of head h
    gla           S = diag(exp g) S + k v^T;    out = q' S
    simple_gla    S = exp(g) S + k v^T;         out = q' S;  Mamba-2's SSD form
    delta         S += b k (v - k^T S)^T;       out = q' S
    gated_delta   S' = exp(g) S;  S = S' + b k (v - k^T S')^T;  out = q' S
    kda           the same with diag(exp g)

g and b, named beta, are inputs, and so is the state before the first token where a problem has one;
linear and retention have neither. The models divide q and k of the delta rules by their length
before. simple_gla computes the operator that the table calls retention.

All are causal and see every earlier token through the state, so the mask is causal and nothing
else. The delta rules with decays share heads of keys among heads of values; the others have as many
of one as of the other. Half precision only: delta refuses
float32, the others would multiply in TF32. The kernels want heads after tokens, so tensors are
copied at each call.

The definitions are plain: sums over pairs (linear, retention), or the recurrence above, token by
token.

arXiv:2006.16236, 2307.08621, 2312.06635, 2405.21060, 2406.06484, 2412.06464, 2510.26692. Cost:
about 4 d e FLOPs a token and head forward (delta rules 6); memory linear in n.
"""

from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.external.common import find, load, need, swap
from impls.heads import Attend, Define
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install 'fla-core>=0.6' triton"
TINY = 1e-10


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


def _gated(problem: Problem, row: str, module: str, name: str) -> Attend:
    """A kernel of tokens before heads, whose gates come by name."""
    kernel = _kernel(problem, row, module, name)

    def attend(
        q_bhnd: Tensor, k_bhnd: Tensor, v_bhne: Tensor, state: Tensor | None = None,
        return_state: bool = False, **gates: Tensor,
    ) -> Any:  # fmt: skip
        by_token = {name: gate.transpose(1, 2).contiguous() for name, gate in gates.items()}
        if "beta" in by_token:
            by_token["beta"] = by_token["beta"].to(v_bhne.dtype)
        out, after = kernel(
            swap(q_bhnd), swap(k_bhnd), swap(v_bhne), scale=problem.scale, initial_state=state,
            output_final_state=return_state, **by_token,
        )[:2]  # fmt: skip
        return (swap(out), after) if return_state else swap(out)

    return attend


build_retention = partial(_gated, row="fla.retention", module="retention", name="chunk_retention")
"""Its decay is fixed."""
build_gla = partial(_gated, row="fla.gla", module="gla", name="chunk_gla")
build_simple_gla = partial(
    _gated, row="fla.simple_gla", module="simple_gla", name="chunk_simple_gla"
)
build_delta = partial(_gated, row="fla.delta", module="delta_rule", name="chunk_delta_rule")
build_gated_delta = partial(
    _gated, row="fla.gated_delta", module="gated_delta_rule", name="chunk_gated_delta_rule"
)
build_kda = partial(_gated, row="fla.kda", module="kda", name="chunk_kda")


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


def define_gated(problem: Problem) -> Define:
    """Token by token: the state fades, and what it says of the key is taken off the value."""

    def define(
        q: Tensor, k: Tensor, v: Tensor, rows: Tensor, g: Tensor | None = None,
        beta: Tensor | None = None, state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
        outputs = {int(row) for row in rows.tolist()}
        zeros = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        state_bhde = zeros if state is None else state.to(v.dtype)
        out: dict[int, Tensor] = {}
        for n in range(max(outputs) + 1):
            k_bhd, v_bhe = k[:, :, n], v[:, :, n]
            if g is not None:
                fade = g[:, :, n].exp().to(v.dtype)
                fade = fade[..., None] if fade.ndim == 3 else fade[..., None, None]
                state_bhde = state_bhde * fade
            if beta is not None:
                old_bhe = (k_bhd[..., None] * state_bhde).sum(-2)
                v_bhe = beta[:, :, n, None].to(v.dtype) * (v_bhe - old_bhe)
            state_bhde = state_bhde + k_bhd[..., None] * v_bhe[..., None, :]
            if n in outputs:
                out[n] = ((q[:, :, n] * problem.scale)[..., None] * state_bhde).sum(-2)
        return torch.stack([out[int(row)] for row in rows.tolist()], 2)

    return define
