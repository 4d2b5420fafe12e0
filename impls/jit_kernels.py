"""Shared by the kernels written in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def align(step, WIDTH: tl.constexpr):
    """The same step. Of tokens that are a multiple of eight numbers wide ``rows_of`` makes it a
    multiple of eight, and says so here: without that a load would be a number at a time.
    """
    if WIDTH % 8 == 0:
        step = step // 8 * 8
    return step
