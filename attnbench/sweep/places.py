"""Where cells are measured: this machine's devices, or a cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.core import gpu as nvml
from attnbench.core.lock import DeviceBusy, lock_for
from attnbench.core.machine import Gpu, Machine, this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.settings import Settings
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import here
from attnbench.sweep.start import digest, sources
from attnbench.sweep.sweep import Slot
from impls.asked import CantBeDone
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
        """``cpu`` or ``cuda``, for the problems of the run; None where it is not given."""

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
        """A worker for a GPU that the run names sees no other one, so that it is its ``cuda``."""
        machine = self.machine
        if device not in self._devices or ":" not in device:
            engine = LocalEngine(settings, path=self._first, limited=device == "cpu")
            return Slot(engine, device, "this machine", machine.kind, machine.to_dict())
        gpu = _gpu(device, machine)
        own, variables = replace(machine, gpus=(gpu,)), {"CUDA_VISIBLE_DEVICES": gpu.uuid}
        engine = LocalEngine(settings, path=self._first, limited=False, variables=variables)
        return Slot(engine, "cuda", device, own.kind, own.to_dict())


def _kind(devices: Sequence[str], machine: Machine) -> str:
    named, several = f"--devices {','.join(devices)}", len(devices) > 1
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
        if several and (devices.count(device) > 1 or ":" not in device):
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


class NoCluster(CantBeDone):
    """The cluster can't be used as it is; a sentence."""


def facts() -> dict[str, Any]:
    """Those of the machine that this runs on: its method, its code, its fingerprint and kind."""
    code = digest(file for files in sources().values() for file in files)
    machine, own = this_machine(), {"protocol": PROTOCOL, "sources": code}
    return {**own, "machine": machine.to_dict(), "kind": machine.kind}


class Place:
    """On a node, as Ray's actor: a device, and the engine that asks its worker."""

    def __init__(self) -> None:
        self._held, self._engine = ExitStack(), LocalEngine(Settings())

    def facts(self) -> dict[str, Any]:
        """Of this node."""
        return facts()

    def open(self, settings: Mapping[str, Any], device: str) -> str:
        """Hold the device; returns nothing, or the sentence that names its holder."""
        try:
            self._held.enter_context(lock_for([device]))
        except DeviceBusy as busy:
            return str(busy)
        self._engine = LocalEngine(Settings(**settings), limited=device == "cpu")
        return ""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer, or how it was lost."""
        try:
            return {"answer": self._engine.ask(question, limit_s)}
        except WorkerLost as lost:
            kinds = {"timed_out": lost.timed_out, "wrong": lost.wrong}
            return {"lost": [lost.reason, lost.output], **kinds}

    def close(self) -> None:
        """End the worker."""
        self._engine.close()


def machine_of(values: Mapping[str, Any]) -> Machine:
    """Back from :meth:`Machine.to_dict`."""
    fields = {k: v for k, v in values.items() if k != "devices"}
    return Machine(**{**fields, "gpus": tuple(Gpu(**gpu) for gpu in values["gpus"])})


def checked(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A node's facts; raises a sentence where it has another method or other code."""
    for fact, what in (("protocol", "protocol"), ("sources", "the code")):
        if values[fact] != (own := facts()[fact]):
            raise NoCluster(
                f"{name} measures by {what} {values[fact]} and this attnbench by {own}: such "
                "numbers can't share a run; install the same attnbench there"
            )
    return values
