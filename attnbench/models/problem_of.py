"""The problem that a call puts: the same one whether a variant answers it or it is captured.

torch's own words come as they are (``torch.float32``, ``cuda:0``); nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from impls.masks import Mask
from impls.problem import Problem

FEW = 16
"""New tokens, at the most, that count as decoding where there are more keys than queries."""
SCALE_OFF = 1e-6


def phase_of(q_len: int, kv_len: int, *, gradient: bool) -> str:
    """What is asked for; ``gradient``: whether a backward pass may come of it."""
    if gradient:
        return "train"
    return "decode" if q_len < kv_len and q_len <= FEW else "forward"


def problem_of(
    q: Sequence[int], v: Sequence[int], dtype: object, device: object, mask: Mask, phase: str
) -> Problem:
    """From the forms of q [batch, heads, q_len, head_dim] and v [batch, kv_heads, kv_len, …]."""
    batch, heads, q_len, head_dim = map(int, q)
    _, kv_heads, kv_len, v_head_dim = map(int, v)
    return Problem(
        batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len,
        head_dim=head_dim, v_head_dim=v_head_dim, dtype=str(dtype).removeprefix("torch."),
        mask=mask, phase=phase, device=str(device),
    )  # fmt: skip


def is_usual(scale: float, head_dim: int) -> bool:
    """Whether scores are scaled as a problem's are; ``1 / math.sqrt(d)`` is ``d**-0.5`` too."""
    return isclose(scale, head_dim**-0.5, rel_tol=SCALE_OFF)
