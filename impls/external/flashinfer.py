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

from impls.external.common import Pattern, closing, load, need, offsets, pack, pattern, unpack
from impls.heads import Attend
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
    if mask.documents:
        return _Ragged(problem, library, mask, backend)
    if problem.phase == "decode" and problem.q_len == 1:
        return _Decode(problem, library, mask)
    return _Prefill(problem, library, mask, backend)


def by_heads(result: Any, tokens: Any = slice(None)) -> Any:
    """Its results as others give them: its log-sums are [n, h] and in base two."""
    if not isinstance(result, tuple):
        return result[tokens]
    out, log_sums = (x[tokens] for x in result)
    return out, (log_sums * math.log(2)).mT.contiguous()


class _Prefill:
    def __init__(self, problem: Problem, library: Any, mask: Pattern, backend: str) -> None:
        self.problem, self.library, self.mask, self.backend = problem, library, mask, backend
        self.close = closing(problem, "flashinfer", partial(unpack, problem=problem))

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        result = self.library.single_prefill_with_kv_cache(
            pack(q_bhnd), k_bcmd.flatten(0, 1), v_bcme.flatten(0, 1), causal=self.mask.causal,
            kv_layout="HND", sm_scale=self.problem.scale, window_left=self.mask.left,
            backend=self.backend, return_lse=bool(self.problem.lse),
        )  # fmt: skip
        return self.close(by_heads(result))

    def note(self) -> str:
        """The backend."""
        return f"single_prefill_with_kv_cache, backend {self.backend}"


class _Decode:
    """One query sees every key it may by standing at the last: causal says nothing more."""

    def __init__(self, problem: Problem, library: Any, mask: Pattern) -> None:
        self.problem, self.library, self.mask = problem, library, mask
        self.close = closing(problem, "flashinfer", partial(unpack, problem=problem))
        self.tensor_cores = problem.group >= TENSOR_CORES_FROM

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        result = self.library.single_decode_with_kv_cache(
            q_bhnd.flatten(0, 2), k_bcmd.flatten(0, 1), v_bcme.flatten(0, 1),
            kv_layout="HND", use_tensor_cores=self.tensor_cores,
            window_left=self.mask.left, sm_scale=self.problem.scale,
            return_lse=bool(self.problem.lse),
        )  # fmt: skip
        return self.close(by_heads(result, None))

    def note(self) -> str:
        """The backend."""
        cores = "with" if self.tensor_cores else "without"
        return f"single_decode_with_kv_cache {cores} tensor cores"


class _Ragged:
    def __init__(self, problem: Problem, library: Any, mask: Pattern, backend: str) -> None:
        self.problem, self.backend = problem, backend
        self.close = closing(problem, "flashinfer", partial(unpack, problem=problem))
        dtype = getattr(torch, problem.dtype)
        space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        edges = offsets(mask.documents, problem.device)
        self.wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(
            space, kv_layout="NHD", backend=backend
        )
        self.wrapper.plan(
            edges, edges, problem.batch * problem.heads, problem.batch * problem.kv_heads,
            problem.head_dim, causal=mask.causal, window_left=mask.left, sm_scale=problem.scale,
            q_data_type=dtype, kv_data_type=dtype,
        )  # fmt: skip

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        packed = map(pack, (q_bhnd, k_bcmd, v_bcme))
        return self.close(by_heads(self.wrapper.run(*packed, return_lse=bool(self.problem.lse))))

    def note(self) -> str:
        """The backend."""
        return f"BatchPrefillWithRaggedKVCacheWrapper, backend {self.backend}"
