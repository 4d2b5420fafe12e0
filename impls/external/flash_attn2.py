"""FlashAttention-2, the package flash-attn: softmax attention in tiles, no matrix of scores.

    softmax( q k^T d^-1/2 + mask ) v      q, k, v in the layout [b, n, h, d]

Calls ``flash_attn_func``; for documents ``flash_attn_varlen_func`` with offsets made once; in
phase decode ``flash_attn_with_kvcache``, which splits the keys over the GPU. Causal masks, windows
and ALiBi are aligned lower-right (flash-attn 2.1 and later). Grouped heads are native. head_dim is
at most 256; what is no multiple of 8 is padded by the library, which copies q, k and v. Padding
masks are refused: the training form has no lengths of keys apart from packed ones.
``hub.flash_attn2`` calls the same functions of the hub's build, which needs no compiler.

arXiv:2307.08691. Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; memory
linear in n.
"""

from typing import Any

from impls.external.common import cached_kernel, flash_call, load, pattern, slopes
from impls.heads import Attend
from impls.problem import Problem

REMEDY = "pip install --no-build-isolation 'flash-attn>=2.6' (it is compiled with nvcc)"


def build(problem: Problem) -> Attend:
    """Through the package."""
    return _call(problem, load("flash_attn", "flash_attn2", REMEDY))


def build_hub(problem: Problem) -> Attend:
    """Through the hub's build, version 4, which transformers 5 takes with torch 2.10 or later."""
    return _call(problem, cached_kernel("kernels-community/flash-attn2", 4, "hub.flash_attn2"))


def _call(problem: Problem, library: Any) -> Attend:
    """The function that fits the mask and the phase."""
    mask, more = pattern(problem, "flash_attn2"), dict[str, Any]()
    function, asks = library.flash_attn_func, "return_attn_probs"
    if mask.documents:
        function = library.flash_attn_varlen_func
    elif problem.phase == "decode":
        function, asks = library.flash_attn_with_kvcache, "return_softmax_lse"
        more["num_splits"] = 0  # as many as it finds best
    more |= {asks: True} if problem.lse else {}
    alibi = slopes(problem, problem.batch if mask.documents else 1) if mask.alibi else None
    return flash_call(problem, "flash_attn2", mask, function, alibi_slopes=alibi, **more)
