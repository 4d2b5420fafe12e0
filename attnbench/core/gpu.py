"""What the driver reports about a GPU: clocks, slow-downs, power, energy, other processes.

A GPU is found by its UUID: ``CUDA_VISIBLE_DEVICES`` gives other numbers to the same boards. Every
question returns a value, or an :class:`Absent` with the reason; none raises. Without torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

REASONS = {
    "GpuIdle": 0x1,
    "ApplicationsClocksSetting": 0x2,
    "SwPowerCap": 0x4,
    "HwSlowdown": 0x8,
    "SyncBoost": 0x10,
    "SwThermal": 0x20,
    "HwThermal": 0x40,
    "HwPowerBrake": 0x80,
    "DisplayClockSetting": 0x100,
}
"""Why clocks may be below their highest, and the bit that says so."""
SLOWDOWNS = frozenset({"HwSlowdown", "HwThermal", "HwPowerBrake", "SwThermal"})
"""What is measured under these is thrown away: the device was not itself."""
POWER_CAP = "SwPowerCap"
"""A long attention may well draw all that the board allows: this is flagged, and kept."""

SM = 1
"""NVML_CLOCK_SM."""
PREFIXES = ("", "GPU-", "MIG-")
"""torch says a UUID without what NVML puts before it."""


@dataclass(frozen=True)
class Absent:
    """No answer, and why: a sentence."""

    reason: str


@cache
def library() -> Any:
    """The initialised ``pynvml``, or an :class:`Absent`. It stays open as long as the process."""
    try:
        import pynvml
    except ImportError:
        return Absent("the NVIDIA driver can't be asked: nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(f"the NVIDIA driver can't be asked: {error}")
    return pynvml


def _question(what: str, read: Callable[[Any, Any], T]) -> Callable[[Board], T | Absent]:
    """A method of a board: what ``read(pynvml, handle)`` returns, or why there is no answer."""

    def ask(board: Board) -> T | Absent:
        try:
            return read(board.nvml, board.handle)
        except (board.nvml.NVMLError, AttributeError) as error:  # or a pynvml that is too old
            return Absent(f"the driver doesn't say {what}: {error}")

    return ask


def _reasons(nvml: Any, handle: Any) -> frozenset[str]:
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return frozenset(name for name, bit in REASONS.items() if bits & bit)


def _mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError_NotSupported:
        return False  # a board that can't be cut isn't


class Board:
    """One GPU as its driver sees it. Each method returns a value, or why there is none."""

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self.nvml, self.handle, self.uuid = nvml, handle, uuid

    name = _question("its name", lambda n, h: _text(n.nvmlDeviceGetName(h)))
    capability = _question(
        "its capability",
        lambda n, h: float(".".join(map(str, n.nvmlDeviceGetCudaComputeCapability(h)))),
    )
    """Compute capability, as 9.0."""
    memory_bytes = _question("its memory", lambda n, h: int(n.nvmlDeviceGetMemoryInfo(h).total))
    used_bytes = _question("its memory", lambda n, h: int(n.nvmlDeviceGetMemoryInfo(h).used))
    sm_mhz = _question("its SM clock", lambda n, h: int(n.nvmlDeviceGetClockInfo(h, SM)))
    most_sm_mhz = _question(
        "its highest SM clock", lambda n, h: int(n.nvmlDeviceGetMaxClockInfo(h, SM))
    )
    reasons = _question("what holds its clocks down", _reasons)
    power_w = _question("its power", lambda n, h: n.nvmlDeviceGetPowerUsage(h) * 1e-3)
    """The mean of the last second."""
    power_limit_w = _question(
        "its power limit", lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) * 1e-3
    )
    energy_j = _question("its energy", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) * 1e-3)
    """Drawn since the driver was loaded."""
    temperature_c = _question("its temperature", lambda n, h: int(n.nvmlDeviceGetTemperature(h, 0)))
    processes = _question(
        "who computes on it",
        lambda n, h: len({p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)}),
    )
    _cut = _question("whether it is cut into instances", _mig)

    def mig(self) -> bool | Absent:
        """Whether it is cut into instances."""
        return True if self.uuid.startswith("MIG-") else self._cut()

    def other_processes(self) -> int | Absent:
        """How many processes compute on it besides this one, which is taken to be one of them.

        In a container the driver lists processes by numbers of the host, so that this one can't
        be found among them.
        """
        count = self.processes()
        return count if isinstance(count, Absent) else max(0, count - 1)


def board(uuid: str) -> Board | Absent:
    """The GPU with this UUID, with or without NVML's ``GPU-`` before it."""
    nvml = library()
    if isinstance(nvml, Absent):
        return nvml
    for prefix in PREFIXES:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except nvml.NVMLError as error:
            why = error
        else:
            return Board(nvml, handle, _uuid(nvml, handle))
    return Absent(f"the driver knows no GPU {uuid}: {why}")


def boards() -> list[Board]:
    """All GPUs of the machine, in the driver's order; none where it can't be asked."""
    nvml = library()
    if isinstance(nvml, Absent):
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        return [Board(nvml, h, _uuid(nvml, h)) for h in handles]
    except nvml.NVMLError:
        return []


def driver() -> str:
    """The driver's version; empty where it can't be asked."""
    nvml = library()
    try:
        return "" if isinstance(nvml, Absent) else _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return ""


def uuid_of(device: str, environment: Mapping[str, str] = os.environ) -> str | Absent:
    """The UUID of torch's ``cuda`` or ``cuda:1``, without torch.

    CUDA numbers what ``CUDA_VISIBLE_DEVICES`` names, in its order. Numbers there, and all numbers
    where it is not set, count the fastest first unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``:
    where the boards are not alike, nobody but CUDA knows that order.
    """
    all_boards = boards()
    if not all_boards:
        nvml = library()
        return nvml if isinstance(nvml, Absent) else Absent("the driver shows no GPU")
    number = int(device.partition(":")[2] or 0)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(len(all_boards))] if visible is None else visible.split(",")
    if number >= len(names):
        return Absent(f"there is no {device}: CUDA_VISIBLE_DEVICES shows {len(names)}")
    name = names[number].strip()
    if not name.isdecimal():
        uuids = [b.uuid for b in all_boards if name and b.uuid.startswith(name)]
        return uuids[0] if len(uuids) == 1 else Absent(f"the driver knows no single GPU {name!r}")
    alike = len({b.name() for b in all_boards}) == 1
    if not alike and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return Absent(
            "the GPUs are not alike, so their order is CUDA's own; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    if int(name) >= len(all_boards):
        return Absent(f"there is no GPU {name}: the driver shows {len(all_boards)}")
    return all_boards[int(name)].uuid


def _uuid(nvml: Any, handle: Any) -> str:
    """As the driver writes it, however it was asked for."""
    return _text(nvml.nvmlDeviceGetUUID(handle))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
