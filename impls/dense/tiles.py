"""Launches of triton.flash for ``attnbench tune`` to try: those that a GPU could have room for.

A launch stays where the tiles that a program holds fit the shared memory of a Hopper, 227 KiB, and
its sums and scores leave each thread some of its 255 registers. What the GPU at hand has no room
for, Triton refuses when it compiles it. Float32 is multiplied without tensor cores: large tiles of
it take minutes to compile, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from impls.problem import Problem

SHARED_BYTES = 227 << 10
REGISTERS = 192
"""Registers of a thread for the sums and the scores."""
WARP_ROWS = 16
"""Rows of a tile that tensor cores multiply."""
Launch = tuple[int, int, int, int]
"""Queries and keys of a tile, warps, stages."""


def forward(problem: Problem) -> list[Launch]:
    """Launches of the forward kernel: queries stay, keys and values come."""
    if problem.phase == "backward":
        return []
    fit = _fit(problem, own_tiles=1, sums=1, scores=1)
    return list(fit)


def keys(problem: Problem) -> list[str]:
    """Launches for dk and dv: keys and values stay, queries and upstream gradients come."""
    fit = _fit(problem, own_tiles=2, sums=2, scores=2) if problem.gradients else ()
    return [f"{comes}x{stays}x{warps}x{stages}" for stays, comes, warps, stages in fit]


def queries(problem: Problem) -> list[str]:
    """Launches for dq: queries and upstream gradients stay, keys and values come."""
    fit = _fit(problem, own_tiles=2, sums=1, scores=2) if problem.gradients else ()
    return [f"{stays}x{comes}x{warps}x{stages}" for stays, comes, warps, stages in fit]


def _fit(problem: Problem, *, own_tiles: int, sums: int, scores: int) -> Iterator[Launch]:
    """Rows that stay and rows that come, warps and stages: ``own_tiles`` of those that stay lie in
    shared memory, and two of those that come in each stage; ``sums`` as wide as a head and
    ``scores`` are in registers.
    """
    half, width = problem.item_bytes == 2, max(problem.head_dim, 16)
    sizes, depths = ((32, 64, 128), (2, 3)) if half else ((16, 32), (1, 2))
    for stays, comes, warps, stages in product(sizes, sizes, (4, 8), depths):
        if half and stays < WARP_ROWS * warps:
            continue
        shared = (own_tiles * stays + 2 * stages * comes) * width * problem.item_bytes
        numbers = sums * stays * width + scores * stays * comes
        if shared <= SHARED_BYTES and numbers <= REGISTERS * 32 * warps:
            yield stays, comes, warps, stages
