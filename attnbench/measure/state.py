"""What all variants of a process share, and none may leave changed for the next."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

SHARED = (
    (F, "scaled_dot_product_attention"), (F, "softmax"), (torch, "matmul"), (torch, "bmm"),
    (torch, "softmax"), (torch, "equal"), (torch, "allclose"), (torch.Tensor, "softmax"),
    (torch.Tensor, "__matmul__"), (torch.Tensor, "isfinite"), (torch.autograd, "grad"),
    (torch.cuda, "synchronize"), (time, "perf_counter"), (time, "perf_counter_ns"),
)  # fmt: skip
"""Functions that others call, and that nobody may put another in place of."""


def snapshot() -> dict[str, Any]:
    """The shared settings as they stand, and which functions stand behind the shared names."""
    taken: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "float32 product precision": torch.get_float32_matmul_precision(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
    }
    for owner, name in SHARED:
        taken[f"{getattr(owner, '__name__', owner)}.{name}"] = getattr(owner, name)
    return taken


def changes(before: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    after = snapshot()
    return [
        name if callable(was) else f"{name} ({was} → {after[name]})"
        for name, was in before.items()
        if after[name] is not was and after[name] != was
    ]
