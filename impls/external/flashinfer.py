"""FlashInfer: kernels for serving; forward and decode only.

    softmax( q k^T d^-1/2 + mask ) v      q [n, b h, d], k and v [b c, m, d]

Every batch element has the same lengths and mask, so its heads are laid side by side and the
single-request kernels serve the whole batch with no copy: ``single_prefill_with_kv_cache`` (keys
in the layout HND), and ``single_decode_with_kv_cache`` for one query. Documents go through
``BatchPrefillWithRaggedKVCacheWrapper``, planned once. ``backend=fa2`` or ``fa3`` is forced, where
the library would choose by the GPU. In decoding, groups of 4 query heads or more run on tensor
cores, as the library advises for large groups.

Aligned lower-right. A window has a left side only; its right side is closed by causal or covers
everything. Its log-sum-exp is in base two, and is turned into the natural one. head_dim 64, 128 or
256, and v_head_dim the same.

arXiv:2501.01005. Cost: 4 n m d FLOPs a head on the pairs that the mask lets meet; memory linear
in n, and a fixed workspace (128 MiB for documents).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from impls.external.common import Back, Pattern, closing, load, need, offsets, pack, pattern, unpack
from impls.heads import Attend, Noted
from impls.problem import Problem

REMEDY = "pip install 'flashinfer-python>=0.7'"
WORKSPACE_BYTES = 128 << 20
TENSOR_CORES_FROM = 4


def build(problem: Problem, backend: str = "fa2") -> Attend:
    """The form that fits the mask and the phase."""
    need(backend in ("fa2", "fa3"), f"flashinfer has no backend {backend!r} here; it is fa2 or fa3")
    d, e = problem.head_dim, problem.v_head_dim
    need(
        d in (64, 128, 256) and d == e,
        f"flashinfer takes head_dim 64, 128 or 256 with the same v_head_dim, not {d} and {e}",
    )
    library = load("flashinfer", "flashinfer", REMEDY)
    mask = pattern(problem, "flashinfer")
    need(
        mask.causal or not mask.local or mask.right >= problem.kv_len,
        f"flashinfer's windows have a left side only, so {problem.mask} needs causal too",
    )
    close = closing(problem, "flashinfer", partial(unpack, problem=problem))
    more: dict[str, Any] = {"return_lse": bool(problem.lse)}
    if not mask.documents:
        more |= {"kv_layout": "HND", "window_left": mask.left, "sm_scale": problem.scale}
    of_queries: Back = pack
    of_keys: Back = partial(torch.flatten, end_dim=1)
    tokens: Any = slice(None)
    if mask.documents:
        function, of_keys = _planned(problem, library, mask, backend).run, pack
        text = f"BatchPrefillWithRaggedKVCacheWrapper, backend {backend}"
    elif problem.phase == "decode" and problem.q_len == 1:  # causal says nothing more of it
        cores = problem.group >= TENSOR_CORES_FROM
        function, more["use_tensor_cores"] = library.single_decode_with_kv_cache, cores
        of_queries, tokens = partial(torch.flatten, end_dim=2), None
        text = f"single_decode_with_kv_cache {'with' if cores else 'without'} tensor cores"
    else:
        function = library.single_prefill_with_kv_cache
        more |= {"causal": mask.causal, "backend": backend}
        text = f"single_prefill_with_kv_cache, backend {backend}"

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        result = function(of_queries(q_bhnd), of_keys(k_bcmd), of_keys(v_bcme), **more)
        return close(by_heads(result, tokens))

    return Noted(attend, text)


def by_heads(result: Any, tokens: Any) -> Any:
    """Its results as others give them: its log-sums are [n, h] and in base two."""
    if not isinstance(result, tuple):
        return result[tokens]
    out, log_sums = (x[tokens] for x in result)
    return out, (log_sums * math.log(2)).mT.contiguous()


def _planned(problem: Problem, library: Any, mask: Pattern, backend: str) -> Any:
    """The kernel for documents, told where they begin."""
    dtype = getattr(torch, problem.dtype)
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
    edges = offsets(mask.documents, problem.device)
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(space, kv_layout="NHD", backend=backend)
    wrapper.plan(
        edges, edges, problem.batch * problem.heads, problem.batch * problem.kv_heads,
        problem.head_dim, causal=mask.causal, window_left=mask.left, sm_scale=problem.scale,
        q_data_type=dtype, kv_data_type=dtype,
    )  # fmt: skip
    return wrapper
