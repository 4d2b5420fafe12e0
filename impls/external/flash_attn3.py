"""FlashAttention-3 for Hopper: warps specialised, products and softmax overlapped.

    softmax( q k^T d^-1/2 + mask ) v      q, k, v in the layout [b, n, h, d]

Calls ``flash_attn_interface.flash_attn_func``; for documents ``flash_attn_varlen_func``; in phase
decode ``flash_attn_with_kvcache``. Aligned lower-right; grouped heads native; no ALiBi. head_dim
and v_head_dim are multiples of 8, at most 256; they may differ where head_dim is at most 64 (then
v_head_dim is at most 512, forward; 256 with gradients) or where head_dim is in (128, 192] and
v_head_dim in (96, 128].

No package index holds it: it is built from the folder ``hopper`` of the flash-attention repository
(distribution flash-attn-3, CUDA 12.3 or later). Its version is not asked for. ``hub.flash_attn3``
calls the same functions of the hub's build, which needs no compiler.

arXiv:2407.08608. Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; memory
linear in n.
"""

import inspect
from typing import Any

from impls.external import BUILD_FA3
from impls.external.common import (
    cached_kernel,
    flash_call,
    load,
    need,
    need_capability,
    need_multiple,
    pattern,
)
from impls.heads import Attend
from impls.problem import Problem

REMEDY = f"build it on a machine with CUDA 12.3 or later: {BUILD_FA3}"


def build(problem: Problem) -> Attend:
    """Through the package."""
    need_capability(problem, "flash_attn3", 9)
    return _call(problem, load("flash_attn_interface", "flash_attn3", REMEDY))


def build_hub(problem: Problem) -> Attend:
    """Through the hub's build, version 1, as transformers 5 takes it."""
    need_capability(problem, "hub.flash_attn3", 9)
    return _call(problem, cached_kernel("kernels-community/flash-attn3", 1, "hub.flash_attn3"))


def _call(problem: Problem, library: Any) -> Attend:
    """The function that fits the mask and the phase."""
    _check_widths(problem)
    mask, more = pattern(problem, "flash_attn3"), dict[str, Any]()
    function = library.flash_attn_varlen_func if mask.documents else library.flash_attn_func
    if problem.phase == "decode" and not mask.documents:
        function = library.flash_attn_with_kvcache
        more["num_splits"] = 0  # as many as it finds best
        more |= {"return_softmax_lse": True} if problem.lse else {}
    elif problem.lse and "return_attn_probs" in inspect.signature(function).parameters:
        more["return_attn_probs"] = True  # versions without the argument give them unasked
    return flash_call(problem, "flash_attn3", mask, function, **more)


def _check_widths(problem: Problem) -> None:
    need_multiple(problem, "flash_attn3")
    d, e = problem.head_dim, problem.v_head_dim
    widest = 256 if problem.gradients else 512
    need(
        d == e or (d <= 64 and e <= widest) or (128 < d <= 192 and 96 < e <= 128),
        f"flash_attn3 has no kernel for head_dim {d} with v_head_dim {e}: where they differ, "
        f"head_dim is at most 64 with v_head_dim at most {widest}, or head_dim is 136 to 192 with "
        "v_head_dim 104 to 128",
    )
