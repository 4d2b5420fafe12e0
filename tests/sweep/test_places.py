"""Which GPU a worker sees, of two that are made up; which nodes of a cluster take part."""

import socket
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnbench.core import gpu
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.settings import Settings
from attnbench.features.limits import verb as limits
from attnbench.sweep import cluster, places
from attnbench.sweep.cluster import NoCluster, RemoteEngine
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.places import SlotLost
from impls.problem import InvalidProblem
from tests.machines import GPU
from tests.sweep.build import PLAIN, plan

GPUS = tuple(replace(GPU, uuid=f"GPU-{i}") for i in (0, 1))


@pytest.fixture
def held(monkeypatch):
    """Which devices were held, of that machine."""
    machine, held = replace(this_machine(), gpus=GPUS, torch_cuda="13.0"), []

    def uuid_of(device):
        number = int(device.partition(":")[2] or 0)
        return f"GPU-{number}" if number < 2 else gpu.Absent("the driver shows 2 GPUs")

    monkeypatch.setattr(places, "this_machine", lambda: machine)
    monkeypatch.setattr(places, "lock_for", lambda some: held.append([*some]) or nullcontext())
    monkeypatch.setattr(gpu, "uuid_of", uuid_of)
    return held


@pytest.mark.parametrize(
    ("devices", "device", "seen", "only"),
    [
        (["cuda:1"], "cuda", "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-1"}),
        ([], "cpu", "cpu", {}),  # where no GPU is named the problems say which
        (["cuda"], "cuda", "cuda", {}),
        ([], "cuda:1", "cuda:1", {}),
    ],
)
def test_a_gpu_that_is_named_is_the_only_one_its_worker_sees(held, devices, device, seen, only):
    local = places.Local(devices)
    with local.slots(Settings(), device) as (slot,):
        engine = slot.engine
    assert (slot.device, engine._variables or {}, engine._limited) == (seen, only, seen == "cpu")
    assert local.kind == (device.partition(":")[0] if devices else None)
    assert held == [devices or [device]]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cuda:2"], "the driver shows 2 GPUs"),
        (["cpu", "cuda:0"], "unlike devices"),
        (["cuda:0", "cuda:0"], "name each once"),
        (["cuda", "cuda:1"], "name each once"),
    ],
)
def test_what_can_not_be_had_is_a_sentence(held, devices, said):
    with pytest.raises(InvalidProblem, match=said):
        places.Local(devices)


def test_a_problem_for_a_gpu_that_is_not_there_is_refused_before_a_run_is_begun(held):
    machine = replace(places.this_machine(), gpus=(GPUS[0], replace(GPUS[1], memory_bytes=1 << 36)))
    with pytest.raises(InvalidProblem, match="no device cuda:2 found: the driver shows 2 GPUs"):
        plan(device="cuda:2", machine=machine)
    given = SimpleNamespace(max_memory=(1 << 36) + 1, max_time=None)
    with pytest.raises(InvalidProblem, match="more than cuda:1 has"):
        limits._budget(given, PLAIN.with_(device="cuda:1"), machine)


def test_what_is_no_cluster_is_refused_soon_and_the_sentence_says_how_to_start_one(monkeypatch):
    def refused(address):
        with pytest.raises(NoCluster) as caught, cluster.connected(address, None):
            pass
        return str(caught.value)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert "can't reach the Ray cluster at foo" in refused("foo")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        said = refused(f"127.0.0.1:{taken.getsockname()[1]}")
    assert "can't reach the Ray cluster at 127" in said and "'ray start --head" in said
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'attnbench[cluster]'" in refused("auto")


def test_a_node_that_measures_something_else_is_refused():
    other = {**cluster.facts(), "ruler": [PROTOCOL + 1, "another"]}
    errors = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=OSError)
    ray = SimpleNamespace(exceptions=errors, get=lambda *_, **__: other)
    place = SimpleNamespace(facts=SimpleNamespace(remote=lambda: None))
    with pytest.raises(NoCluster, match="node n has another attnbench"):
        cluster._facts(ray, ("node n", place))


def test_a_run_takes_the_kind_of_machine_that_most_nodes_are_and_says_who_is_left_out():
    own = cluster.facts()
    nodes = [((f"n{i}", i), {**own, "kind": kind}) for i, kind in enumerate("abb")]
    some = cluster.Cluster(None, nodes)
    assert [node for node, _ in some._nodes] == [("n1", 1), ("n2", 2)]
    assert some.machine.name == own["machine"]["name"]
    assert "measured on 2 of kind b; left out" in some.note and "1 of kind a" in some.note


def remote(get):
    """An engine on a node, by a Ray whose every answer is that of ``get``."""
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=OSError), get=get)
    far = SimpleNamespace(remote=lambda *_: None)
    return RemoteEngine(ray, SimpleNamespace(ask=far, close=far), "node n")


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_a_worker_that_is_lost_there_is_lost_here_in_the_same_way(flags):
    said = {"lost": ["it died", "last words"], "timed_out": flags[0], "wrong": flags[1]}
    with pytest.raises(WorkerLost) as caught:
        remote(lambda *_, **__: said).ask({"job": {}}, 1.0)
    lost = caught.value
    assert (lost.reason, lost.output) == ("it died", "last words")
    assert (lost.timed_out, lost.wrong) == flags


def test_a_node_that_is_gone_is_lost_with_its_name_and_closing_it_is_no_error():
    def gone(*_, **__):
        raise OSError("the actor died\nand more")

    engine = remote(gone)
    with pytest.raises(SlotLost, match=r"node n is lost \(OSError\)"):
        engine.ask({"job": {}}, 1.0)
    engine.close()
