"""The machine at this moment: clocks, power, temperature, load. What can't be had says why."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from attnbench.machine import Machine
from attnbench.nvml import Absent, board

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def vitals(machine: Machine) -> dict[str, Any]:
    """Of the processor, and of each GPU."""
    return {"cpu": _cpu(), "gpus": [_gpu(gpu.uuid) for gpu in machine.gpus]}


def _cpu() -> dict[str, Any]:
    clocks = [float(x) for x in re.findall(r"cpu MHz\s*:\s*([0-9.]+)", _text("/proc/cpuinfo"))]
    one, five, _ = os.getloadavg()
    return {
        "mhz": max(clocks) if clocks else "the system does not say",
        "governor": _text(GOVERNOR).strip() or "the system does not say: a virtual machine's host "
        "sets the clocks",
        "load_1min": one, "load_5min": five,
    }  # fmt: skip


def _gpu(uuid: str) -> dict[str, Any]:
    found = board(uuid)
    if isinstance(found, Absent):
        return {"uuid": uuid, "absent": found.reason}
    reasons = found.reasons()
    asked: dict[str, Any] = {
        "sm_mhz": found.sm_mhz(), "most_sm_mhz": found.most_sm_mhz(),
        "memory_mhz": found.memory_mhz(), "most_memory_mhz": found.most_memory_mhz(),
        "power_w": found.power_w(), "power_limit_w": found.power_limit_w(),
        "temperature_c": found.temperature_c(), "mig": found.mig(),
        "held_down_by": reasons if isinstance(reasons, Absent) else sorted(reasons),
        "other_processes": found.other_processes(),
    }  # fmt: skip
    return {"uuid": uuid} | {k: _said(v) for k, v in asked.items()}


def _said(value: Any) -> Any:
    return value.reason if isinstance(value, Absent) else value


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
