"""NVIDIA Transformer Engine's DotProductAttention, with its backend forced.

    softmax( q k^T d^-1/2 + mask ) v      q, k, v in the layout [b, n, h, d]; documents [t, h, d]

``backend=fused`` is cuDNN's, ``flash`` the flash-attn that is installed, ``unfused`` torch with a
fused softmax. The library reads its choice from the environment (NVTE_FLASH_ATTN,
NVTE_FUSED_ATTN, NVTE_UNFUSED_ATTN), so these are set for the length of each call and put back;
where the backend that was asked for can't serve, the call raises. Causal is lower-right where
lengths differ; documents are packed, with the mask type padding or padding_causal.

Its fused backend draws from CUDA's default generator at every call, without dropout as well. That
generator is everyone's, so each call puts it back; what it drew, it did not use.

Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; memory linear in n, but
for unfused, which holds the scores.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from impls.external.common import (
    Pattern,
    find,
    load,
    need,
    need_multiple,
    offsets,
    pack,
    pattern,
    swap,
    unpack,
)
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unsupported

REMEDY = "pip install --no-build-isolation 'transformer_engine[pytorch]>=2.0' (needs CUDA, cuDNN)"
SWITCHES = {
    "flash": "NVTE_FLASH_ATTN", "fused": "NVTE_FUSED_ATTN", "unfused": "NVTE_UNFUSED_ATTN",
}  # fmt: skip
CHOICE = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"


def build(problem: Problem, backend: str = "fused") -> Attend:
    """The module, once."""
    need(
        backend in SWITCHES,
        f"transformer_engine has no backend {backend!r}; it is {', '.join(SWITCHES)}",
    )
    need_multiple(problem, "transformer_engine")
    library = load("transformer_engine.pytorch", "transformer_engine", REMEDY)
    make = find(library, "DotProductAttention", "transformer_engine", REMEDY)
    mask = pattern(problem, "transformer_engine")
    copies = problem.batch if mask.documents else 1
    widths = (problem.head_dim, problem.v_head_dim)
    module = make(
        num_attention_heads=problem.heads * copies,
        kv_channels=widths[0] if widths[0] == widths[1] else widths,
        num_gqa_groups=problem.kv_heads * copies,
        attention_dropout=0.0,
        qkv_format="thd" if mask.documents else "bshd",
        attn_mask_type=_mask_type(problem, mask),
        window_size=mask.window,
        softmax_scale=problem.scale,
        attention_type="self" if problem.q_len == problem.kv_len else "cross",
    )
    return _Engine(problem, module, mask, backend)


def _mask_type(problem: Problem, mask: Pattern) -> str:
    if mask.documents:
        return "padding_causal" if mask.causal else "padding"
    if not mask.causal:
        return "no_mask"
    return "causal" if problem.q_len == problem.kv_len else "causal_bottom_right"


@contextmanager
def _only(backend: str) -> Iterator[None]:
    """The library's environment with one backend on, and as it was afterwards."""
    before = {name: os.environ.get(name) for name in SWITCHES.values()}
    os.environ.update({name: str(int(key == backend)) for key, name in SWITCHES.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _same_chance(device: torch.device) -> Iterator[None]:
    """Put the generator that kernels draw from back where it was."""
    if device.type == "cpu":
        yield
        return
    generator = torch.cuda.default_generators[device.index]
    offset = generator.get_offset()
    try:
        yield
    finally:
        generator.set_offset(offset)


class _Engine:
    def __init__(self, problem: Problem, module: Any, mask: Pattern, backend: str) -> None:
        self.problem, self.module, self.mask, self.backend = problem, module, mask, backend
        self.state: dict[str, Any] = getattr(
            load(CHOICE, "transformer_engine", REMEDY), "_attention_backends", {}
        )
        self.state["backend_selection_requires_update"] = True  # it keeps the last one's choice
        if mask.documents:
            self.edges = offsets(mask.documents, problem.device)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        lay, more = swap, {}
        if self.mask.documents:
            longest = max(self.mask.documents)
            lay, more = pack, {
                "cu_seqlens_q": self.edges, "cu_seqlens_kv": self.edges,
                "max_seqlen_q": longest, "max_seqlen_kv": longest,
            }  # fmt: skip
        try:
            with _only(self.backend), _same_chance(q_bhnd.device):
                flat: Tensor = self.module(lay(q_bhnd), lay(k_bcmd), lay(v_bcme), **more)
        except ValueError as error:
            if "No dot product attention" in str(error):
                reason = f"transformer_engine's {self.backend} can't take {self.problem}"
                raise Unsupported(reason) from None
            raise
        out = flat.unflatten(-1, (-1, self.problem.v_head_dim))  # the heads come laid end to end
        return unpack(out, self.problem) if self.mask.documents else swap(out)

    def note(self) -> str:
        """The library's own choice of backend."""
        backends = [key for key in SWITCHES if self.state.get(f"use_{key}_attention")]
        return f"backend {', '.join(backends) or self.backend}"
