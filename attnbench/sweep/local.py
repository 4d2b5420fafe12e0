"""The places of this machine: the device that a run asks for, or several GPUs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from attnbench import nvml
from attnbench.lock import lock_for
from attnbench.machine import Gpu, Machine, this_machine
from attnbench.measure.settings import Settings
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import here
from attnbench.sweep.slots import Slot
from impls.problem import InvalidProblem


class Local:
    """This machine, for a run over some of its devices."""

    def __init__(self, devices: Sequence[str] = (), first: Path | None = None) -> None:
        """``devices``: several GPUs; raises a sentence for what is not here. ``first``: a folder
        in which workers look first for what they import.
        """
        self.machine, self.note, self._devices = this_machine(), "", devices
        self._first = first
        self.kind = _kind(devices, self.machine) if devices else None
        """``cpu`` or ``cuda``, for the problems of the run; None where nothing is said."""

    @contextmanager
    def slots(self, settings: Settings, device: str) -> Iterator[list[Slot]]:
        """A place for each device, held for this run alone. ``device``: that of the problems."""
        devices = self._devices if len(self._devices) > 1 else [*self._devices, device][:1]
        with lock_for(devices), ExitStack() as engines:
            slots = [self._slot(settings, each) for each in devices]
            for slot in slots:
                engines.callback(slot.engine.close)
            yield slots

    def _slot(self, settings: Settings, device: str) -> Slot:
        """A worker for a GPU that the run names sees no other one: to it, that is ``cuda``."""
        machine = self.machine
        if device not in self._devices or ":" not in device:
            engine = LocalEngine(settings, path=self._first, limited=device == "cpu")
            return Slot(engine, device, "this machine", machine.kind, machine.to_dict())
        gpu = _gpu(device, machine)
        own, variables = replace(machine, gpus=(gpu,)), {"CUDA_VISIBLE_DEVICES": gpu.uuid}
        engine = LocalEngine(settings, path=self._first, limited=False, variables=variables)
        return Slot(engine, "cuda", device, own.kind, own.to_dict())


def _kind(devices: Sequence[str], machine: Machine) -> str:
    named = f"--devices {','.join(devices)}"
    kinds = {device.split(":")[0] for device in devices}
    if len(kinds) != 1:
        raise InvalidProblem(
            f"{named}: records of unlike devices can't share a run; give devices of one kind, as "
            "cuda:0,cuda:1"
        )
    for device in devices:
        here(device, machine)
        if ":" in device:
            _gpu(device, machine)
    if len(devices) > 1 and (
        len(set(devices)) < len(devices) or not all(":" in d for d in devices)
    ):
        raise InvalidProblem(
            f"{named}: one worker at a time measures on each; name each once, with its number"
        )
    return kinds.pop()


def _gpu(device: str, machine: Machine) -> Gpu:
    uuid = nvml.uuid_of(device)
    for gpu in machine.gpus:
        if gpu.uuid == uuid:
            return gpu
    why = f": {uuid.reason}" if isinstance(uuid, nvml.Absent) else ""
    raise InvalidProblem(f"--devices: device {device} is not here{why}")
