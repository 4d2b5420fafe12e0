"""What is amiss with this machine's GPUs before anything is measured: sentences. Without torch.

None of these stops a run: what can be measured is, and whoever reads the figures is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnbench import nvml
from attnbench.machine import Gpu, Machine
from attnbench.nvml import Absent, Board

NEEDED_DRIVER = {13: 580, 12: 525, 11: 450}
"""By the CUDA that torch was built for, the oldest driver: the release notes of the CUDA Toolkit,
table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility"."""
MUCH_TAKEN = 0.05
"""The share of a GPU's memory that others may hold without a word."""


def amiss(machine: Machine) -> list[str]:
    """All of it: of the machine, then of each GPU; none where nothing is."""
    return list(_machine(machine)) + [said for gpu in machine.gpus for said in _gpu(gpu)]


def idle(machine: Machine) -> str:
    """A sentence where torch can't use the GPU that there is, so that the CPU is taken; or none."""
    if not machine.gpus or machine.torch_cuda is not None:
        return ""
    return (
        "the torch installed here has no CUDA, so the GPU stays idle; install a CUDA build of torch"
    )


def _machine(machine: Machine) -> Iterator[str]:
    found = nvml.library()
    if not machine.gpus:
        why = found.reason if isinstance(found, Absent) else "its driver shows none"
        yield f"there is no GPU to measure on: {why}"
    elif said := idle(machine):
        yield said
    elif machine.torch_cuda is not None:
        yield from _driver(machine.gpus[0].driver, machine.torch_cuda)


def _driver(driver: str, cuda: str) -> Iterator[str]:
    major, has = cuda.partition(".")[0], driver.partition(".")[0]
    needed = NEEDED_DRIVER.get(int(major)) if major.isdigit() else None
    if needed and has.isdigit() and int(has) < needed:
        yield (
            f"the driver {driver} is too old for torch's CUDA {cuda}, which needs {needed} or "
            "later: update the driver, or install a torch built for an older CUDA"
        )


def _gpu(gpu: Gpu) -> Iterator[str]:
    board = nvml.board(gpu.uuid)
    if isinstance(board, Absent):
        yield f"{gpu.name} can't be asked how it is: {board.reason}"
        return
    if board.mig() is True:
        yield (
            f"{gpu.name} is cut into instances (MIG): what is measured is of one of them, and no "
            "figure of the whole GPU"
        )
    yield from _taken(gpu, board)


def _taken(gpu: Gpu, board: Board) -> Iterator[str]:
    """By whom, and how much of its memory: nothing of this run has begun yet."""
    others, used = board.processes(), board.used_bytes()
    if isinstance(others, int) and others:
        many = f"{others} processes compute" if others > 1 else "a process computes"
        yield f"{many} on {gpu.name} already: times will be of both; end it, or take another GPU"
    if isinstance(used, int) and used > MUCH_TAKEN * gpu.memory_bytes:
        free, whole = (gpu.memory_bytes - used) / 2**30, gpu.memory_bytes / 2**30
        yield (
            f"of {gpu.name}'s {whole:.0f} GiB only {free:.0f} GiB are free: what needs more will "
            "be out of memory"
        )
