"""Which nodes of a cluster take part, and what is heard from them; nothing here starts any."""

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from attnbench.core.record import PROTOCOL
from attnbench.sweep import cluster
from attnbench.sweep import places as place
from attnbench.sweep.cluster import RemoteEngine
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.places import NoCluster
from attnbench.sweep.sweep import SlotLost


@pytest.mark.parametrize("address", ["foo", ":6379", "host:", "ray://host:10001", "a b", ""])
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(NoCluster, match="is not HOST:PORT"):
        cluster._reach(address)


def test_a_cluster_that_does_not_answer_is_refused_soon_and_the_sentence_says_how_to_start_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(NoCluster, match=r"can't reach .* start one with 'ray start --head'"):
            cluster._reach(f"127.0.0.1:{taken.getsockname()[1]}")
    assert time.monotonic() - start < 2 * cluster.REACH_S


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoCluster, match=r"pip install 'attnbench\[cluster\]'"):
        cluster._ray()


def facts(**changes):
    return {**place.facts(), **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": PROTOCOL + 1}, f"protocol {PROTOCOL + 1} and this attnbench by {PROTOCOL}"),
        ({"sources": "another"}, "by the code another and this attnbench by"),
    ],
)
def test_a_node_that_measures_something_else_is_refused(changes, words):
    with pytest.raises(NoCluster, match=words):
        place.checked("node n", facts(**changes))


def told(*kinds):
    return [("n" + str(i), i) for i in range(len(kinds))], [{"kind": kind} for kind in kinds]


def test_a_run_takes_the_kind_of_machine_that_most_nodes_are_and_says_who_is_left_out():
    places, found, note = cluster._alike(*told("a", "b", "b"), None)
    assert (places, found["kind"]) == ([("n1", 1), ("n2", 2)], "b")
    assert "measured on 2 of kind b; left out" in note
    assert "1 of kind a (--kind)" in note


class Ray:
    """What a remote engine needs of Ray; ``said`` is what every answer is."""

    class exceptions:
        RayError = OSError

    def __init__(self, said):
        self.said, self.killed = said, []

    def get(self, reference, timeout):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def kill(self, place):
        self.killed.append(place)


PLACE = SimpleNamespace(
    ask=SimpleNamespace(remote=lambda *_: None), close=SimpleNamespace(remote=lambda: None)
)


@pytest.mark.parametrize("flags", [(True, False), (False, True), (False, False)])
def test_a_worker_that_is_lost_there_is_lost_here_in_the_same_way(flags):
    said = {"lost": ["it died", "last words"], "timed_out": flags[0], "wrong": flags[1]}
    with pytest.raises(WorkerLost) as caught:
        RemoteEngine(Ray(said), PLACE, "node n").ask({"job": {}}, 1.0)
    lost = caught.value
    assert (lost.reason, lost.output, (lost.timed_out, lost.wrong)) == (
        "it died",
        "last words",
        flags,
    )


def test_a_node_that_is_gone_is_lost_with_its_name_and_closing_it_is_no_error():
    engine = RemoteEngine(Ray(OSError("the actor died\nand more")), PLACE, "node n")
    with pytest.raises(SlotLost, match=r"node n is lost \(OSError\)"):
        engine.ask({"job": {}}, 1.0)
    engine.close()
