"""The places of a Ray cluster: on each node its devices, each held by this run alone.

Ray starts an actor beside each device, and the actor the same worker that a run on one machine has.
The records stream back as answers and are written down here. A run takes the nodes of one kind:
numbers of unlike machines can't be ranked together.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnbench.core.settings import Settings
from attnbench.sweep.engine import START_LIMIT_S, WorkerLost
from attnbench.sweep.places import NoCluster, Place, checked, machine_of
from attnbench.sweep.sweep import Slot, SlotLost

if TYPE_CHECKING:
    from types import ModuleType


REACH_S, PLACE_S, GRACE_S = 5.0, 60.0, 60.0
"""For a head node to answer, for a node to give its device, and for an answer to come back after
the worker's own time is up."""


Node = tuple[str, Any]
"""A place's name, and the actor beside its device."""


class RemoteEngine:
    """Asks the worker of another machine's engine."""

    def __init__(self, ray: ModuleType, place: Any, name: str) -> None:
        self._ray, self._place, self._name = ray, place, name

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`WorkerLost`, or :class:`SlotLost` with its node."""
        patience = limit_s + START_LIMIT_S + GRACE_S  # a worker may have to be started first
        got = self._get(self._place.ask.remote(dict(question), limit_s), patience)
        if "lost" in got:
            raise WorkerLost(*got["lost"], timed_out=got["timed_out"], wrong=got["wrong"])
        answer: dict[str, Any] = got["answer"]
        return answer

    def close(self) -> None:
        """End the worker; of a node that is lost it has ended already."""
        with suppress(SlotLost):
            self._get(self._place.close.remote(), GRACE_S)

    def _get(self, reference: Any, patience_s: float) -> Any:
        try:
            return self._ray.get(reference, timeout=patience_s)
        except self._ray.exceptions.RayError as error:
            raise SlotLost(f"{self._name} is lost ({type(error).__name__})") from None


class Cluster:
    """The nodes of one kind."""

    def __init__(
        self, ray: ModuleType, places: Sequence[Node], facts: Mapping[str, Any], note: str
    ) -> None:
        self._ray, self._places, self._facts, self.note = ray, places, facts, note
        self.machine = machine_of(facts["machine"])
        self.kind: str | None = None

    @contextmanager
    def slots(self, settings: Settings, device: str) -> Iterator[list[Slot]]:
        """A slot for each place, with its device held."""
        slots = []
        for name, place in self._places:
            engine = RemoteEngine(self._ray, place, name)
            try:
                busy = engine._get(place.open.remote(asdict(settings), device), PLACE_S)
            except SlotLost as lost:
                raise NoCluster(f"{lost}; nothing was measured") from None
            if busy:
                raise NoCluster(f"{name}: {busy}")
            slots.append(Slot(engine, device, name, self._facts["kind"], self._facts["machine"]))
        yield slots


@contextmanager
def connected(address: str | None, device: str | None, kind: str | None) -> Iterator[Cluster]:
    """The places of a cluster that is running, for devices of a kind of machine.

    ``device``: cpu or cuda; by default the better one that is there. ``kind``: where there are
    several kinds, which; by default that of most nodes.
    """
    ray = _ray()
    _reach(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns that it will do so
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise NoCluster(_cant(address, error)) from None
    places: list[Node] = []
    try:
        places = _places(ray, device)
        yield Cluster(ray, *_alike(places, _facts(ray, places), kind))
    finally:
        for _, place in places:
            with suppress(Exception):
                ray.kill(place)
        ray.shutdown()


def _ray() -> ModuleType:
    try:
        return import_module("ray")
    except ImportError:
        raise NoCluster(
            "Ray is not installed: pip install 'attnbench[cluster]', here and on every node"
        ) from None


def _reach(address: str | None) -> None:
    """Raise a sentence soon where nothing answers; Ray itself would try for a minute."""
    if address in (None, "auto"):
        return
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise NoCluster(
            f"--address {address!r} is not HOST:PORT of a Ray head node, as 'ray start "
            "--head' prints it"
        )
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(_cant(address, error)) from None


def _cant(address: str | None, error: Exception) -> str:
    where = f"the Ray cluster at {address}" if address else "a Ray cluster from here"
    why = str(error).strip().partition("\n")[0]
    return (
        f"can't reach {where} ({why}): start one with 'ray start --head', join its nodes with 'ray "
        "start --address HOST:PORT', and run this on one of them"
    )


def _places(ray: ModuleType, device: str | None) -> list[Node]:
    """An actor beside each device, alone with it: a GPU, or all of a node's processors."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    wanted = device or ("cuda" if any(_count(n, "GPU") for n in nodes) else "cpu")
    if wanted not in ("cpu", "cuda"):
        raise NoCluster(f"--device {wanted}: of a cluster's nodes give the kind, cpu or cuda")
    places = []
    for node in nodes:
        if wanted == "cuda":
            asked = [{"num_gpus": 1, "num_cpus": 0}] * _count(node, "GPU")
        else:
            asked = [{"num_cpus": _count(node, "CPU")}] * bool(_count(node, "CPU"))
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node["NodeID"], soft=False
        )
        for number, resources in enumerate(asked):
            name = f"node {node['NodeManagerAddress']} ({node['NodeID'][:6]})"
            name += f" GPU {number}" * (len(asked) > 1)
            actor = ray.remote(**resources, scheduling_strategy=strategy, max_restarts=0)(Place)
            places.append((name, actor.remote()))
    if not places:
        raise NoCluster(
            f"no node of the cluster has a {'GPU' if wanted == 'cuda' else 'processor'} to give; "
            "'ray status' shows what they have"
        )
    return places


def _count(node: Mapping[str, Any], what: str) -> int:
    return int(node["Resources"].get(what, 0))


def _facts(ray: ModuleType, places: Sequence[Node]) -> list[dict[str, Any]]:
    """The facts of each node; raises a sentence for one that can't take part."""
    references = [place.facts.remote() for _, place in places]
    ready, _ = ray.wait(references, num_returns=len(references), timeout=PLACE_S)
    facts = []
    for (name, _), reference in zip(places, references, strict=True):
        if reference not in ready:
            raise NoCluster(
                f"{name} has not given its device within {PLACE_S:.0f} s: another job of the "
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


def _alike(
    places: Sequence[Node], found: Sequence[dict[str, Any]], kind: str | None
) -> tuple[list[Node], dict[str, Any], str]:
    """The places of one kind, their facts, and a sentence about the others."""
    kinds = Counter(facts["kind"] for facts in found)
    chosen = kind or kinds.most_common(1)[0][0]
    if chosen not in kinds:
        raise NoCluster(f"no node is of kind {chosen}; there are {', '.join(kinds)}")
    mine = [i for i, facts in enumerate(found) if facts["kind"] == chosen]
    others = "; ".join(f"{n} of kind {k}" for k, n in kinds.items() if k != chosen)
    note = f"measured on {len(mine)} of kind {chosen}"
    if others:
        note += f"; left out, as unlike machines share no ranking: {others} (--kind)"
    return [places[i] for i in mine], found[mine[0]], note
