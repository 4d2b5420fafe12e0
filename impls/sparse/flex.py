"""FlexAttention: the mask as a function, compiled into one fused kernel that skips blocks.

    out = softmax( score(q k^T d^-1/2) ) v    over the pairs that mask(b, h, i, j) allows

The mask becomes two lists for each block of queries: the blocks of keys that hold a visible pair,
and among them those that every row of the block sees whole, where the kernel need not ask. Other
blocks are never read. ALiBi and bias tables are added to the scores inside the kernel, in float32.
Inductor generates C++ on the CPU and Triton on CUDA, anew for each shape, mask and dtype: 4 to 10
seconds, counted as setup. On the CPU torch has no backward for it and no float64.

`flex` takes every mask, with blocks of 128, as torch itself chooses. `window.flex` is for masks
that have a window, with blocks fitted to it: a window of w keys costs at least w + block keys a
row, so small windows want small blocks. `block=0` picks on the CPU the power of two at or below a
quarter of the window, from 16 to 128, and no more than 2048 blocks to a row, since torch keeps a
list of all blocks for each; on CUDA 128, and only multiples of that, which the generated kernels'
tiles divide. arXiv:2412.05496.

`flex.flash` is `flex` with torch's flash backend forced: torch writes the mask in CuTe DSL into the
kernels of flash-attn-4. Hopper alone: on Blackwell those want other blocks than 128 by 128.

Cost: 4 n m d FLOPs a head forward over the blocks visited; no matrix of scores.
"""

from __future__ import annotations

from functools import partial

from impls.graph import Graph
from impls.jit import HOPPER, capability
from impls.problem import Problem
from impls.sparse.flex_kernel import Flex
from impls.spec import Unavailable, Unsupported

BLOCK = 128
"""torch's default block."""
SMALLEST, MOST_BLOCKS = 16, 2048
WIDE = 8
"""Numbers of two bytes that FlashAttention-4 loads at once."""


def build(problem: Problem, graph: Graph | None = None) -> Flex:
    """Compiles at the first call."""
    return Flex(problem, BLOCK, build, graph)


def build_flash(problem: Problem, graph: Graph | None = None) -> Flex:
    """The same on FlashAttention-4."""
    here = capability(problem.device)
    if here // 10 != HOPPER // 10:
        reason = f"flex.flash runs on compute capability 9.x, not on {here // 10}.{here % 10}"
        raise Unavailable(reason, "run it on a Hopper GPU (H100, H200)")
    if problem.head_dim % WIDE or problem.v_head_dim % WIDE:
        raise Unsupported(
            f"flex.flash takes a head_dim and a v_head_dim that are multiples of {WIDE}, not "
            f"{problem.head_dim} and {problem.v_head_dim}"
        )
    return Flex(problem, BLOCK, build_flash, graph, backend="FLASH")


def build_window(problem: Problem, block: int, graph: Graph | None = None) -> Flex:
    """The same with blocks fitted to the window."""
    windows = [part for part in problem.mask.parts if part.kind == "window"]
    if not windows:
        raise Unsupported(
            f"window.flex is for masks that have a window, like window:256,0, and the mask is "
            f"{problem.mask}; flex takes every mask"
        )
    on_cuda = problem.device != "cpu"
    if block < 0 or (on_cuda and block % BLOCK):
        valid = f"a multiple of {BLOCK} on CUDA" if on_cuda else "1 or more"
        raise Unsupported(f"block={block} must be {valid}, or 0 to have it fitted to the window")
    width = sum(windows[0].numbers) + 1
    fitted = block or (BLOCK if on_cuda else _fitted(width, problem.kv_len))
    return Flex(problem, fitted, partial(build_window, block=block), graph)


def _fitted(width: int, length: int) -> int:
    block = SMALLEST
    while block < BLOCK and (8 * block <= width or block * MOST_BLOCKS < length):
        block *= 2
    return block
