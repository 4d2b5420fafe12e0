"""The nodes of a Ray cluster, as places where cells are measured.

Ray starts an actor beside each device, and the actor the same worker that a run on one machine has.
The records stream back as answers and are written down here. A run takes the nodes of the kind that
most are: numbers of unlike machines can't be ranked together.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnbench.core.format import roughly
from attnbench.core.lock import DeviceBusy, lock_for
from attnbench.core.machine import Gpu, Machine, this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.settings import Settings
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine, WorkerLost
from attnbench.sweep.places import Slot, SlotLost
from attnbench.sweep.start import digest, sources
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from types import ModuleType

REACH_S, PLACE_S, GRACE_S = 5.0, 60.0, 60.0
"""For a head node to answer, for a node to give its device, and for an answer to come back after
the worker's own time is up."""
Node = tuple[str, Any]
"""A place's name, and the actor beside its device."""


class NoCluster(CantBeDone):
    """The cluster can't be used as it is; a sentence."""


def facts() -> dict[str, Any]:
    """Those of the machine that this runs on: its method, its code, its fingerprint and kind."""
    code = digest(file for files in sources().values() for file in files)
    machine = this_machine()
    return {"ruler": [PROTOCOL, code], "machine": machine.facts(), "kind": machine.kind}


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
        answer = self.get(self._place.ask.remote(dict(question), limit_s), patience)
        if lost := answer.pop("lost", None):
            raise WorkerLost(*lost, **answer)
        return dict(answer["answer"])

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
    """The nodes of the kind that most are."""

    kind: str | None = None

    def __init__(self, ray: ModuleType, nodes: Sequence[tuple[Node, dict[str, Any]]]) -> None:
        kinds = Counter(facts["kind"] for _, facts in nodes)
        (kind, count), *others = kinds.most_common()
        self._ray, self._nodes = ray, [each for each in nodes if each[1]["kind"] == kind]
        self.note = f"measured on {count} of kind {kind}"
        if others:
            left_out = "; ".join(f"{n} of kind {k}" for k, n in others)
            self.note += f"; left out, as unlike machines share no ranking: {left_out}"
        values = {k: v for k, v in self._nodes[0][1]["machine"].items() if k != "devices"}
        self.machine = Machine(**values | {"gpus": tuple(Gpu(**gpu) for gpu in values["gpus"])})

    @contextmanager
    def slots(self, settings: Settings, device: str) -> Iterator[list[Slot]]:
        """A slot for each place, with its device held; raises :class:`NoCluster` if one is not."""
        slots = []
        for (name, place), facts in self._nodes:
            engine = RemoteEngine(self._ray, place, name)
            try:
                busy = engine.get(place.open.remote(asdict(settings), device), PLACE_S)
            except SlotLost as lost:
                raise NoCluster(f"{lost}; nothing was measured") from None
            if busy:
                raise NoCluster(f"{name}: {busy}")
            slots.append(Slot(engine, device, facts["kind"], facts["machine"]))
        yield slots


@contextmanager
def connected(address: str | None, device: str | None) -> Iterator[Cluster]:
    """The places of a cluster that is running.

    ``device``: cpu or cuda; by default the better one that is there. Raises :class:`NoCluster`
    where it can't be reached, or its nodes can't take part.
    """
    try:
        ray = import_module("ray")
    except ImportError:
        raise NoCluster(
            "Ray is not installed: pip install 'attnbench[cluster]', here and on every node"
        ) from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns that it will do so
    try:
        if address:  # Ray itself would try for a minute
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), REACH_S).close()
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
        places += _places(ray, device)
        yield Cluster(ray, [(node, _facts(ray, node)) for node in places])
    finally:
        for _, place in places:
            with suppress(Exception):
                ray.kill(place)
        ray.shutdown()


def _places(ray: ModuleType, device: str | None) -> Iterator[Node]:
    """An actor beside each device, alone with it: a GPU, or all of a node's processors."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    kind = device or ("cuda" if any(n["Resources"].get("GPU") for n in nodes) else "cpu")
    if kind not in ("cpu", "cuda"):
        raise NoCluster(f"--device {kind}: of a cluster's nodes give the kind, cpu or cuda")
    count = 0
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
            name += f" GPU {number}" if len(requests) > 1 else ""
            actor = ray.remote(**resources, scheduling_strategy=strategy, max_restarts=0)(Place)
            yield name, actor.remote()
            count += 1
    if not count:
        raise NoCluster(
            f"no node of the cluster has a {'GPU' if kind == 'cuda' else 'processor'} to give; "
            "'ray status' shows what they have"
        )


def _facts(ray: ModuleType, node: Node) -> dict[str, Any]:
    """The facts of a node; raises :class:`NoCluster` for one that can't take part."""
    name, place = node
    try:
        values: dict[str, Any] = ray.get(place.facts.remote(), timeout=PLACE_S)
    except ray.exceptions.GetTimeoutError:
        raise NoCluster(
            f"{name} has not given its device within {roughly(PLACE_S)}: another job of the "
            "cluster holds it, or it can't start; 'ray status' shows which"
        ) from None
    except ray.exceptions.RayError as error:
        last = str(error).strip().rpartition("\n")[2][:300]
        raise NoCluster(
            f"{name} can't run attnbench ({last}): install the same attnbench on every node"
        ) from None
    if values["ruler"] != facts()["ruler"]:
        raise NoCluster(
            f"{name} has another attnbench, and such numbers can't share a run; install the same "
            "attnbench there"
        )
    return values
