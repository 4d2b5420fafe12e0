"""The problem that a call puts: the same one whether a variant answers it or it is captured.

torch's own words come as they are (``torch.float32``, ``cuda:0``); nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from impls.masks import Mask, Shape
from impls.problem import Problem

FEW = 16
"""New tokens, at the most, that count as decoding where there are more keys than queries."""
SCALE_OFF = 1e-6


def phase_of(shape: Shape, mask: Mask, *, gradient: bool) -> str:
    """What is asked for; ``gradient``: whether a backward pass may come of it.

    A few queries on more keys decode if they are the last tokens of these: each sees the keys up to
    its own place and none after it. Otherwise they are another sequence, which attends across. A
    single query computes the same either way, and decodes.
    """
    if gradient:
        return "train"
    few = shape.q_len < shape.kv_len and shape.q_len <= FEW
    decodes = few and (shape.q_len == 1 or _ends_at_its_own_place(mask, shape))
    return "decode" if decodes else "forward"


def _ends_at_its_own_place(mask: Mask, shape: Shape) -> bool:
    """Whether the last key that each query sees is its own token's, where queries come last."""
    if mask.plain or mask.upper_left:
        return False
    import numpy as np

    seen = np.logical_or.reduce(mask.visible(shape), (0, 1))
    last = shape.kv_len - 1 - seen[:, ::-1].argmax(-1)
    return bool((last == np.arange(shape.kv_len - shape.q_len, shape.kv_len)).all())


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
