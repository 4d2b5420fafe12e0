"""Energy counters: NVML's of a whole board, and the processor's own (RAPL) of its packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from attnbench import nvml
from attnbench.measure.gpu import cuda_gpu
from attnbench.nvml import Absent, Board
from attnbench.record import Energy

POWERCAP = Path("/sys/class/powercap")


class Counter(Protocol):
    """Joules that a device has drawn. Where a reading fails, ``OSError``."""

    key: str
    """Which device: its idle draw is measured once."""
    method: str
    """What it is and what it covers, for the record."""
    warm_s: float
    """How long a load must have run before its draw is what it stays."""

    def joules(self) -> float:
        """Since some moment that stays the same."""

    def watts(self) -> float | None:
        """What the device says that it draws now; None where it doesn't."""

    def wait(self) -> None:
        """Until the device has done what it was given."""


class NvmlCounter:
    """The board's own counter: its processor, its memory and all else that it feeds."""

    method = "nvml counter: the whole board"
    warm_s = 1.0

    def __init__(self, board: Board, wait: Callable[[], None]) -> None:
        self._board, self.key, self._wait = board, board.uuid, wait

    def joules(self) -> float:
        """Since the driver was loaded."""
        found = self._board.energy_j()
        if isinstance(found, Absent):
            raise OSError(found.reason)
        return found

    def watts(self) -> float | None:
        """At this instant, where the board can say that."""
        found = self._board.power_w()
        return None if isinstance(found, Absent) else found

    def wait(self) -> None:
        """For the whole device."""
        self._wait()


class RaplCounter:
    """The processor's packages, summed. Their counters are short and begin again at zero."""

    key = "cpu"
    warm_s = 0.2

    def __init__(self, packages: list[Path]) -> None:
        self._packages = packages
        names = ", ".join((p / "name").read_text().strip() for p in packages)
        self.method = f"rapl counter: {names}"
        self._range = [_number(p / "max_energy_range_uj") for p in packages]
        self._last = [_number(p / "energy_uj") for p in packages]
        self._sum_uj = 0

    def joules(self) -> float:
        """Since this was made, so long as nobody waits longer than a counter takes around."""
        for i, package in enumerate(self._packages):
            now = _number(package / "energy_uj")
            went = now - self._last[i]
            self._sum_uj += went if went >= 0 else went + self._range[i]
            self._last[i] = now
        return self._sum_uj * 1e-6

    def watts(self) -> float | None:
        """It has no such reading."""
        return None

    def wait(self) -> None:
        """A call on the processor has ended when it returns."""


def counter_for(device: str) -> Counter | Energy:
    """The counter of a device, or an :class:`Energy` that says why there is none."""
    return _rapl(POWERCAP) if device == "cpu" else _nvml(device)


def _nvml(device: str) -> Counter | Energy:
    gpu = cuda_gpu(device)
    board = nvml.board(gpu.uuid)
    return (
        Energy(why=board.reason) if isinstance(board, Absent) else of_board(board, gpu.synchronize)
    )


def of_board(board: Board, wait: Callable[[], None]) -> Counter | Energy:
    """The board's counter, if what it counts is ours alone."""
    mig, others, energy = board.mig(), board.other_processes(), board.energy_j()
    if mig is True:
        return Energy(
            why="the GPU is cut into instances (MIG), and its counter knows only the whole"
        )
    if isinstance(others, int) and others:
        them = "1 other process computes" if others == 1 else f"{others} other processes compute"
        return Energy(why=f"{them} on the GPU, and its counter can't tell them apart")
    if isinstance(energy, Absent):
        return Energy(why=energy.reason)
    return NvmlCounter(board, wait)


def _rapl(folder: Path) -> Counter | Energy:
    packages = []
    for place in sorted(folder.glob("intel-rapl:*")):  # AMD's processors are there too
        try:
            if (place / "name").read_text().startswith("package-"):
                packages.append(place)
        except OSError:
            continue
    if not packages:
        return Energy(why=f"this machine shows no energy counter of its processor in {folder}")
    try:
        return RaplCounter(packages)
    except PermissionError:
        how = f"sudo chmod a+r {folder}/intel-rapl:*/energy_uj"
        return Energy(why=f"the processor's energy counter is for root alone; allow it with {how}")
    except (OSError, ValueError) as error:
        return Energy(why=f"the processor's energy counter can't be read: {error}")


def _number(file: Path) -> int:
    return int(file.read_text())
