"""The masks that transformers makes for a model while a variant of ours attends.

They are the masks of eager attention: numbers to add, zero where a query may see a key and the
lowest of the dtype where not. So an attention that a model's file writes out itself computes what
it computes under eager. But numbers are written only when something computes with them: a layer
that calls a variant reads what the mask says, and a causal mask never becomes a matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import eager_mask, sdpa_mask

FORM = {
    "shape", "size", "dim", "ndim", "ndimension", "numel", "dtype", "device", "layout", "is_cuda",
    "is_cpu", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_nested", "is_quantized", "get_device",
    "is_floating_point", "is_complex", "is_inference", "requires_grad", "is_leaf", "grad_fn",
}  # fmt: skip
"""The attributes and methods of a tensor that need none of its numbers."""


class Said(NamedTuple):
    """A mask as F.scaled_dot_product_attention takes it."""

    attn_mask: Tensor | None
    is_causal: bool


class EagerMask(Tensor):
    """A float mask [batch, 1, q_len, kv_len] whose numbers are written on first use."""

    seen: Tensor | None
    """Booleans, true where a query may see a key; None where it is causal from the first key on."""
    dense: Tensor | None
    """The numbers, once written."""

    @staticmethod
    def __new__(
        cls, seen: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> EagerMask:
        """A mask of that shape, as transformers' eager attention would be given it."""
        made: EagerMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.seen, made.dense = seen, None
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"EagerMask({tuple(self.shape)}, {'causal' if self.seen is None else 'dense'})"

    def said(self) -> Said:
        """What the mask says now: its numbers, where a model may have written into them."""
        if self.dense is not None and (self.dense.is_inference() or self.dense._version > 0):
            return Said(self.dense, False)
        return Said(self.seen, self.seen is None and self.shape[2] > 1)

    def numbers(self) -> Tensor:
        """The mask as eager attention has it, one tensor however often it is asked for."""
        if self.dense is None:
            seen = self.seen
            if seen is None:
                seen = torch.ones(self.shape, dtype=torch.bool, device=self.device)
                seen = seen.tril() if self.shape[2] > 1 else seen
            zero = torch.zeros((), dtype=self.dtype, device=self.device)
            self.dense = torch.where(seen, zero, torch.finfo(self.dtype).min)
        return self.dense

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` with the numbers; what it asks about the form needs none."""
        name = getattr(getattr(func, "__self__", None), "__name__", func.__name__)
        if name in FORM:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.numbers, (args, kwargs or {}))
        return func(*args, **kwargs)


def mask_as_eager(**asked: Any) -> Tensor | None:
    """What transformers calls for each mask of a model, in the words of its ``sdpa_mask``.

    Returns None where eager attention gets no mask either: every query sees every key.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return eager_mask(**asked)
    if asked.get("allow_is_bidirectional_skip"):
        seen = sdpa_mask(**{**asked, "allow_is_causal_skip": False})
        if seen is None:
            return None
    else:
        seen = sdpa_mask(**{**asked, "allow_is_causal_skip": _may_be_causal(asked)})
    shape = (asked["batch_size"], 1, asked["q_length"], asked["kv_length"])
    dtype, device = asked.get("dtype", torch.float32), torch.device(asked.get("device", "cpu"))
    return EagerMask(seen, shape, dtype, device)


def _may_be_causal(asked: dict[str, Any]) -> bool:
    """Whether a mask that ``sdpa_mask`` leaves out hides nothing but what comes later.

    For one query it leaves out the free places of a static cache too, where no 2D mask names them.
    """
    keys_before = asked.get("q_offset", 0) - asked.get("kv_offset", 0)
    alone = asked["q_length"] == 1
    whole = not alone or bool(keys_before == asked["kv_length"] - 1)
    return bool(asked.get("allow_is_causal_skip", True)) and whole
