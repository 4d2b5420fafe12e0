"""The machine at this moment: a value or a sentence for each thing that was asked."""

from types import SimpleNamespace

import pytest

from attnbench.core import machine as module
from attnbench.core.gpu import Absent
from attnbench.core.machine import this_machine, vitals


class Board:
    """Answers all but its power."""

    def __getattr__(self, name):
        if name == "power_w":
            return lambda: Absent("the driver doesn't say its power: no permission")
        if name == "reasons":
            return lambda: frozenset({"SwPowerCap", "GpuIdle"})
        return lambda: 7


def machine(*uuids):
    return SimpleNamespace(gpus=[SimpleNamespace(uuid=u) for u in uuids])


def test_a_processor_says_its_load_and_its_clock_or_why_not():
    cpu = vitals(this_machine())["cpu"]
    assert cpu["load_1min"] >= 0
    assert isinstance(cpu["mhz"], float) or "does not say" in cpu["mhz"]
    assert cpu["governor"]


@pytest.mark.parametrize("text", ["", "model name : x\n"])
def test_a_system_that_says_nothing_is_said_to(monkeypatch, text):
    monkeypatch.setattr(module, "_text", lambda path: text if "cpuinfo" in str(path) else "")
    cpu = vitals(machine())["cpu"]
    assert cpu["mhz"] == "the system does not say"
    assert cpu["governor"].startswith("the system does not say")


def test_each_gpu_answers_for_itself(monkeypatch):
    boards = {"a": Board(), "b": Absent("the driver knows no GPU b")}
    monkeypatch.setattr(module.nvml, "board", boards.get)
    first, second = vitals(machine("a", "b"))["gpus"]
    assert first["sm_mhz"] == first["power_limit_w"] == 7
    assert first["power_w"] == "the driver doesn't say its power: no permission"
    assert first["held_down_by"] == ["GpuIdle", "SwPowerCap"]
    assert second == {"uuid": "b", "absent": "the driver knows no GPU b"}
