"""The numerical settings of a measurement: set, never inherited, and recorded.

What must stand before torch is loaded is in :func:`environment`, for what starts the process;
the rest is set by :func:`apply` inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

PLAIN, KEPT = "plain", "kept"
ALLOCATORS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {},
    KEPT: {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_TOP_PAD_": str(1 << 26),
    },
}
"""The ways to treat freed pages on a CPU: as the C library does in any program, or all are kept;
with the variables by which glibc does so. A score matrix that is returned at every call and faulted
in again is half of a dense variant's time."""
LARGE = (32 << 20) - (64 << 10)
"""glibc takes pieces of more than 32 MiB from the system and gives them back at once; of smaller
ones it keeps as much as twice the largest that was freed before."""


@dataclass(frozen=True)
class Settings:
    """What a worker is told."""

    threads: int = 1
    allocator: str = PLAIN
    """One of :data:`ALLOCATORS`."""
    tf32: bool = False
    """Float32 products keep float32; attention in TF32 would be another dtype."""
    reduced_precision_reduction: bool = True
    """torch's default for half-precision products on CUDA."""
    warm_profiler: bool = True
    """Not where a GPU's kernels are to be profiled: a process's first profile must ask for them."""

    def facts(self) -> dict[str, Any]:
        """For the run's header."""
        return {**asdict(self), "environment": environment(self.threads, self.allocator)}


def environment(threads: int, allocator: str = PLAIN) -> dict[str, str]:
    """Variables that count only before the process starts.

    Waiting threads sleep: on a shared machine a spinning one takes the core from the one at work.
    torch's deterministic mode raises on CUDA unless cuBLAS's workspace has a size that was set: 8
    pieces of 4,096 KiB.
    """
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "passive",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **ALLOCATORS[allocator],
    }


def allocator_of(header: Mapping[str, Any]) -> str:
    """The allocator of a run, from its header; one that names none is plain."""
    return str((header.get("settings") or {}).get("allocator", PLAIN))


def apply(settings: Settings) -> None:
    """Set what is set inside the process."""
    import torch

    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = settings.tf32
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = settings.reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = settings.reduced_precision_reduction
    if settings.allocator == PLAIN:  # as after a program's first large tensor, whatever came before
        torch.empty(LARGE, dtype=torch.uint8)
