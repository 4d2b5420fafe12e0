"""Where cells are measured: a device with the engine that asks its worker; this machine's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from attnbench.core.lock import lock_for
from attnbench.core.machine import Machine, this_machine
from attnbench.core.settings import Settings
from attnbench.core.stats import drift_margin
from attnbench.sweep.engine import START_LIMIT_S, Engine, LocalEngine, WorkerLost
from attnbench.sweep.plan import here
from impls.problem import InvalidProblem

LOOKS, WAIT_S = 3, 0.3
"""How often in a row a reading must be off: a short burst of load is over before."""


class SlotLost(Exception):
    """The place itself is gone, with its machine; a sentence."""


@dataclass
class Slot:
    """A device, the engine that asks its worker, and the readings of its canary."""

    engine: Engine
    device: str = "cpu"
    node: str = ""
    """The kind of machine: records of one kind may be ranked together."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The fingerprint of that kind."""
    readings: list[float] = field(default_factory=list)
    off: float = 0.0
    """The share by which the latest reading was off, signed; 0 where that is noise."""
    _since: float = 0.0

    def look(self, noise: Iterable[Mapping[str, Any]]) -> float:
        """Take a reading; the share by which it is off, 0 where that is noise.

        ``noise``: this machine's floors, as its header has them.
        """
        for number in range(LOOKS):
            if number:
                time.sleep(WAIT_S)
            seconds = self._canary_s()
            usual = statistics.median([*self.readings, seconds])
            self.off = seconds / usual - 1.0
            if abs(self.off) <= drift_margin(list(noise), usual):
                self.off = 0.0
                break
        self.readings.append(seconds)
        self._since = time.monotonic()
        return self.off

    def looked_s(self) -> float:
        """Seconds since the latest reading."""
        return time.monotonic() - self._since

    def _canary_s(self) -> float:
        """A reading, by a new worker where an earlier cell has broken the worker."""
        question = {"canary": self.device}
        with suppress(WorkerLost):
            return float(self.engine.ask(question, START_LIMIT_S)["canary"])
        return float(self.engine.ask(question, START_LIMIT_S)["canary"])


class Places(Protocol):
    """Devices of this machine, or of a cluster."""

    machine: Machine
    kind: str | None
    """``cpu`` or ``cuda``, for the problems of the run; None where it is not given."""
    note: str

    def slots(self, settings: Settings, device: str) -> AbstractContextManager[list[Slot]]:
        """A place for each device, held for this run alone. ``device``: that of the problems."""


class Local:
    """This machine, for a run over some of its devices."""

    note = ""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        """``devices``: several GPUs; raises InvalidProblem for what is not here."""
        self.machine, self._devices = this_machine(), devices
        kinds = sorted({device.split(":")[0] for device in devices})
        self.kind = kinds[0] if kinds else None
        option = f"--devices {','.join(devices)}"
        if len(kinds) > 1:
            raise InvalidProblem(
                f"{option}: records of unlike devices can't share a run; give devices of one kind, "
                "as cuda:0,cuda:1"
            )
        for device in devices:
            here(device, self.machine)
            if len(devices) > 1 and (devices.count(device) > 1 or ":" not in device):
                raise InvalidProblem(
                    f"{option}: one worker at a time measures on each; name each once, with its "
                    "number"
                )

    @contextmanager
    def slots(self, settings: Settings, device: str) -> Iterator[list[Slot]]:
        """A place for each device, held for this run alone. ``device``: that of the problems.

        A worker for a GPU that the run names sees no other one, so that it is its ``cuda``. Raises
        DeviceBusy where another run holds one.
        """
        devices = self._devices or [device]
        with lock_for(devices), ExitStack() as engines:
            slots = []
            for each in devices:
                own, variables, device_there = self.machine, None, each
                if each in self._devices and ":" in each and (gpu := here(each, own)):
                    own, device_there = replace(own, gpus=(gpu,)), "cuda"
                    variables = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
                limited = device_there == "cpu"
                engine = LocalEngine(settings, limited=limited, variables=variables)
                engines.callback(engine.close)
                slots.append(Slot(engine, device_there, own.kind, own.facts()))
            yield slots
