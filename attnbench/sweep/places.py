"""Where cells are measured: this machine's devices, or those of a Ray cluster.

Ray starts an actor beside each device, and the actor the same worker that a run on one machine has.
The records stream back as answers and are written down here. A run takes the nodes of one kind:
numbers of unlike machines can't be ranked together.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.format import roughly
from attnbench.core.lock import DeviceBusy, lock_for
from attnbench.core.machine import Gpu, Machine, this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.settings import Settings
from attnbench.core.stats import drift_margin
from attnbench.sweep.engine import START_LIMIT_S, Engine, LocalEngine, WorkerLost
from attnbench.sweep.plan import here
from attnbench.sweep.start import digest, sources
from impls.errors import CantBeDone
from impls.problem import InvalidProblem

if TYPE_CHECKING:
    from types import ModuleType

LOOKS, WAIT_S = 3, 0.3
"""How often in a row a reading must be off: a short burst of load is over before."""
REACH_S, PLACE_S, GRACE_S = 5.0, 60.0, 60.0
"""For a head node to answer, for a node to give its device, and for an answer to come back after
the worker's own time is up."""


class SlotLost(Exception):
    """The place itself is gone, with its machine; a sentence."""


class NoCluster(CantBeDone):
    """The cluster can't be used as it is; a sentence."""


class Canary:
    """The readings of one device through a run."""

    def __init__(self, read: Callable[[], float], noise: Iterable[Mapping[str, Any]]) -> None:
        """``noise``: this machine's floors, as its header has them."""
        self._read, self._noise = read, list(noise)
        self.readings: list[float] = []
        self.since = time.monotonic()
        """When the latest reading was taken."""
        self.off = 0.0
        """The share by which it was off, signed; 0 where that is noise."""

    def look(self) -> float:
        """Take a reading; the share by which it is off, 0 where that is noise."""
        for number in range(LOOKS):
            if number:
                time.sleep(WAIT_S)
            seconds = self._read()
            usual = statistics.median([*self.readings, seconds])
            self.off = seconds / usual - 1.0
            if abs(self.off) <= drift_margin(self._noise, usual):
                self.off = 0.0
                break
        self.readings.append(seconds)
        self.since = time.monotonic()
        return self.off


@dataclass
class Slot:
    """A device, and the engine that asks its worker."""

    engine: Engine
    device: str = "cpu"
    name: str = "this machine"
    node: str = ""
    """The kind of machine: records of one kind may be ranked together."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The fingerprint of that kind."""
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    canary: Canary | None = None

    def canary_s(self) -> float:
        """A reading, by a new worker where an earlier cell has broken the worker."""
        question = {"canary": self.device}
        with suppress(WorkerLost):
            return float(self.engine.ask(question, START_LIMIT_S)["canary"])
        return float(self.engine.ask(question, START_LIMIT_S)["canary"])


# ---- this machine --------------------------------------------------------------------------------


class Local:
    """This machine, for a run over some of its devices."""

    note = ""

    def __init__(self, devices: Sequence[str] = (), first: Path | None = None) -> None:
        """``devices``: several GPUs; raises InvalidProblem for what is not here. ``first``: a
        folder in which workers look first for what they import.
        """
        self.machine, self._devices, self._first = this_machine(), devices, first
        kinds = sorted({device.split(":")[0] for device in devices})
        self.kind = kinds[0] if kinds else None
        """``cpu`` or ``cuda``, for the problems of the run; None where it is not given."""
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
        devices = self._devices if len(self._devices) > 1 else [*self._devices, device][:1]
        with lock_for(devices), ExitStack() as engines:
            slots = []
            for each in devices:
                own, variables, device_there = self.machine, None, each
                if each in self._devices and ":" in each and (gpu := here(each, own)):
                    own, device_there = replace(own, gpus=(gpu,)), "cuda"
                    variables = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
                engine = LocalEngine(
                    settings, path=self._first, limited=device_there == "cpu", variables=variables
                )
                engines.callback(engine.close)
                name = each if variables else "this machine"
                slots.append(Slot(engine, device_there, name, own.kind, own.to_dict()))
            yield slots


# ---- a cluster -----------------------------------------------------------------------------------

Node = tuple[str, Any]
"""A place's name, and the actor beside its device."""


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


class RemoteEngine:
    """Asks the worker of another machine's engine."""

    def __init__(self, ray: ModuleType, place: Any, name: str) -> None:
        self._ray, self._place, self._name = ray, place, name

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost`, or :class:`SlotLost` with its node."""
        patience = limit_s + START_LIMIT_S + GRACE_S  # a worker may have to be started first
        got = self.get(self._place.ask.remote(dict(question), limit_s), patience)
        if "lost" in got:
            raise WorkerLost(*got["lost"], timed_out=got["timed_out"], wrong=got["wrong"])
        answer: dict[str, Any] = got["answer"]
        return answer

    def close(self) -> None:
        """End the worker; of a node that is lost it has ended already."""
        with suppress(SlotLost):
            self.get(self._place.close.remote(), GRACE_S)

    def stop(self) -> None:
        """Lose the place, and its worker with it."""
        self._ray.kill(self._place)

    def get(self, reference: Any, patience_s: float) -> Any:
        """What the node gives; raises :class:`SlotLost`."""
        try:
            return self._ray.get(reference, timeout=patience_s)
        except self._ray.exceptions.RayError as error:
            raise SlotLost(f"{self._name} is lost ({type(error).__name__})") from None


class Cluster:
    """The nodes of one kind."""

    kind = None

    def __init__(
        self, ray: ModuleType, places: Sequence[Node], facts: Mapping[str, Any], note: str
    ) -> None:
        self._ray, self._places, self._facts, self.note = ray, places, facts, note
        values = {k: v for k, v in facts["machine"].items() if k != "devices"}
        self.machine = Machine(**values | {"gpus": tuple(Gpu(**gpu) for gpu in values["gpus"])})

    @contextmanager
    def slots(self, settings: Settings, device: str) -> Iterator[list[Slot]]:
        """A slot for each place, with its device held; raises :class:`NoCluster` if one is not."""
        slots = []
        for name, place in self._places:
            engine = RemoteEngine(self._ray, place, name)
            try:
                busy = engine.get(place.open.remote(asdict(settings), device), PLACE_S)
            except SlotLost as lost:
                raise NoCluster(f"{lost}; nothing was measured") from None
            if busy:
                raise NoCluster(f"{name}: {busy}")
            slots.append(Slot(engine, device, name, self._facts["kind"], self._facts["machine"]))
        yield slots


Places = Local | Cluster


@contextmanager
def connected(address: str | None, device: str | None, kind: str | None) -> Iterator[Cluster]:
    """The places of a cluster that is running, for devices of a kind of machine.

    ``device``: cpu or cuda; by default the better one that is there. ``kind``: where there are
    several kinds, which; by default that of most nodes. Raises :class:`NoCluster` where it can't be
    reached, or its nodes can't take part.
    """
    try:
        ray = import_module("ray")
    except ImportError:
        raise NoCluster(
            "Ray is not installed: pip install 'attnbench[cluster]', here and on every node"
        ) from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns that it will do so
    try:
        _reach(address)
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError, OverflowError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray cluster from here"
        why = str(error).strip().partition("\n")[0]
        raise NoCluster(
            f"can't reach {where} ({why}): start one with 'ray start --head', join its nodes with "
            "'ray start --address HOST:PORT', and run this on one of them"
        ) from None
    places: list[Node] = []
    try:
        places = _places(ray, device)
        yield Cluster(ray, *_alike(places, _facts(ray, places), kind))
    finally:
        for _, place in places:
            with suppress(Exception):
                ray.kill(place)
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Raise soon where nothing answers; Ray itself would try for a minute."""
    if address in (None, "auto"):
        return
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise NoCluster(
            f"--address {address!r} is not HOST:PORT of a Ray head node, as 'ray start "
            "--head' prints it"
        )
    socket.create_connection((host, int(port)), REACH_S).close()


def _places(ray: ModuleType, device: str | None) -> list[Node]:
    """An actor beside each device, alone with it: a GPU, or all of a node's processors."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    kind = device or ("cuda" if any(n["Resources"].get("GPU") for n in nodes) else "cpu")
    if kind not in ("cpu", "cuda"):
        raise NoCluster(f"--device {kind}: of a cluster's nodes give the kind, cpu or cuda")
    places = []
    for node in nodes:
        has = node["Resources"]
        requests = [{"num_gpus": 1, "num_cpus": 0}] * int(has.get("GPU", 0))
        if kind == "cpu":
            requests = [{"num_cpus": int(has["CPU"])}] if has.get("CPU") else []
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node["NodeID"], soft=False
        )
        for number, resources in enumerate(requests):
            name = f"node {node['NodeManagerAddress']} ({node['NodeID'][:6]})"
            name += f" GPU {number}" * (len(requests) > 1)
            actor = ray.remote(**resources, scheduling_strategy=strategy, max_restarts=0)(Place)
            places.append((name, actor.remote()))
    if not places:
        raise NoCluster(
            f"no node of the cluster has a {'GPU' if kind == 'cuda' else 'processor'} to give; "
            "'ray status' shows what they have"
        )
    return places


def _facts(ray: ModuleType, places: Sequence[Node]) -> list[dict[str, Any]]:
    """The facts of each node; raises a sentence for one that can't take part."""
    references = [place.facts.remote() for _, place in places]
    ready, _ = ray.wait(references, num_returns=len(references), timeout=PLACE_S)
    facts = []
    for (name, _), reference in zip(places, references, strict=True):
        if reference not in ready:
            raise NoCluster(
                f"{name} has not given its device within {roughly(PLACE_S)}: another job of the "
                "cluster holds it, or it can't start; 'ray status' shows which"
            )
        try:
            facts.append(checked(name, ray.get(reference)))
        except ray.exceptions.RayError as error:
            last = str(error).strip().rpartition("\n")[2][:300]
            raise NoCluster(
                f"{name} can't run attnbench ({last}): install the same attnbench on every node"
            ) from None
    return facts


def checked(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A node's facts; raises :class:`NoCluster` where it has another method or other code."""
    for fact, what in (("protocol", "protocol"), ("sources", "the code")):
        if values[fact] != (own := facts()[fact]):
            raise NoCluster(
                f"{name} measures by {what} {values[fact]} and this attnbench by {own}: such "
                "numbers can't share a run; install the same attnbench there"
            )
    return values


def _alike(
    places: Sequence[Node], facts_of_each: Sequence[dict[str, Any]], kind: str | None
) -> tuple[list[Node], dict[str, Any], str]:
    """The places of one kind, their facts, and a sentence about the others."""
    kinds = Counter(facts["kind"] for facts in facts_of_each)
    kind = kind or kinds.most_common(1)[0][0]
    if kind not in kinds:
        raise NoCluster(f"no node is of kind {kind}; there are {', '.join(kinds)}")
    mine = [i for i, facts in enumerate(facts_of_each) if facts["kind"] == kind]
    others = "; ".join(f"{n} of kind {k}" for k, n in kinds.items() if k != kind)
    note = f"measured on {len(mine)} of kind {kind}"
    if others:
        note += f"; left out, as unlike machines share no ranking: {others} (--kind)"
    return [places[i] for i in mine], facts_of_each[mine[0]], note
