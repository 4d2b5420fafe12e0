"""What stands beside a device on a node of a cluster: an engine, and what the node tells."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import attnbench
import impls
from attnbench.lock import DeviceBusy, lock_for
from attnbench.machine import Gpu, Machine, this_machine
from attnbench.measure.settings import Settings
from attnbench.record import PROTOCOL
from attnbench.sweep.engine import LocalEngine, WorkerLost
from impls.asked import CantBeDone


class NoCluster(CantBeDone):
    """The cluster can't be used as it is; a sentence."""


@dataclass(frozen=True)
class Facts:
    """What a node says of itself before anything is measured on it."""

    protocol: int
    sources: str
    """A word that is another where the code is."""
    machine: dict[str, Any]
    kind: str


def facts() -> dict[str, Any]:
    """Those of the machine that this runs on."""
    machine = this_machine()
    return asdict(Facts(PROTOCOL, sources(), machine.to_dict(), machine.kind))


@cache
def sources() -> str:
    """A word for the ruler's code and the table's."""
    found = hashlib.sha256()
    for package in (attnbench, impls):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            found.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return found.hexdigest()[:12]


class Place:
    """On a node, as Ray's actor: a device, and the engine that asks its worker."""

    def __init__(self) -> None:
        self._held, self._engine = ExitStack(), LocalEngine(Settings())

    def facts(self) -> dict[str, Any]:
        """Of this node."""
        return facts()

    def open(self, settings: Mapping[str, Any], device: str) -> str:
        """Hold the device; empty, or who holds it already."""
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
            return {"lost": [lost.reason, lost.said], **kinds}

    def close(self) -> None:
        """End the worker."""
        self._engine.close()


def machine_of(told: Mapping[str, Any]) -> Machine:
    """A machine as another told it."""
    values = {k: v for k, v in told.items() if k != "devices"}
    return Machine(**{**values, "gpus": tuple(Gpu(**gpu) for gpu in told["gpus"])})


def checked(name: str, told: Mapping[str, Any]) -> Facts:
    """What a node told; raises a sentence where it measures otherwise, or something else."""
    if told["protocol"] != PROTOCOL:
        raise NoCluster(
            f"{name} measures by protocol {told['protocol']} and this attnbench by {PROTOCOL}: "
            "numbers of unlike protocols can't share a run; install the same attnbench there"
        )
    if told["sources"] != sources():
        raise NoCluster(
            f"{name} has another attnbench (sources {told['sources']}, here {sources()}): what "
            "would be measured is not the same; install the same there"
        )
    return Facts(**told)
