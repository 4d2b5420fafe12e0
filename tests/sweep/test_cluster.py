"""A run over the nodes of a cluster: the same records as here, whatever becomes of a node."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
from attnbench.machine import this_machine
from attnbench.record import PROTOCOL
from attnbench.store import read_records
from attnbench.sweep import cluster, place
from attnbench.sweep.cluster import RemoteEngine
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.place import Facts, NoCluster
from attnbench.sweep.slots import SlotLost
from impls.loading import load_file

processes = load_file(Path(__file__).with_name("processes.py"))
ROOT = Path(attnbench.__file__).parents[1]
GRID = ["--seq", "32,48", "--heads", "2", "--head-dim", "8", "--phase", "forward,train",
        "--budget", "0.02", "--mask", "causal"]  # fmt: skip
VARIANTS = ["einsum", "matmul", "sdpa", "exp.naive", "sdpa.cudnn", "numpy"]


# ---- without a cluster ---------------------------------------------------------------------------


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


def test_a_node_like_this_one_may_take_part():
    assert place.checked("n", facts()).kind == this_machine().kind


@pytest.mark.parametrize(("changes", "words"), [
    ({"protocol": PROTOCOL + 1}, f"protocol {PROTOCOL + 1} and this attnbench by {PROTOCOL}"),
    ({"sources": "another"}, "has another attnbench"),
])  # fmt: skip
def test_a_node_that_measures_something_else_is_refused(changes, words):
    with pytest.raises(NoCluster, match=words):
        place.checked("node n", facts(**changes))


def told(*kinds):
    return [("n" + str(i), i) for i in range(len(kinds))], [
        Facts(PROTOCOL, "s", {}, kind) for kind in kinds
    ]


def test_a_run_takes_the_kind_of_machine_that_most_nodes_are_and_says_who_is_left_out():
    places, found, note = cluster._alike(*told("a", "b", "b"), None)
    assert (places, found.kind) == ([("n1", 1), ("n2", 2)], "b")
    assert "measured on 2 of kind b; left out" in note
    assert "1 of kind a (--kind)" in note


def test_a_kind_that_is_asked_for_is_taken_and_one_that_is_not_there_refused():
    assert cluster._alike(*told("a", "b", "b"), "a")[0] == [("n0", 0)]
    assert "left out" not in cluster._alike(*told("a", "a"), None)[2]
    with pytest.raises(NoCluster, match="no node is of kind c; there are a, b"):
        cluster._alike(*told("a", "b"), "c")


def test_a_machine_comes_back_from_what_it_told():
    assert place.machine_of(json.loads(json.dumps(this_machine().to_dict()))) == this_machine()


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


def test_what_a_worker_answers_on_another_machine_comes_back():
    engine = RemoteEngine(Ray({"answer": {"record": 1}}), PLACE, "node n")
    assert engine.ask({"job": {}}, 1.0) == {"record": 1}


@pytest.mark.parametrize("flags", [(True, False), (False, True), (False, False)])
def test_a_worker_that_is_lost_there_is_lost_here_in_the_same_way(flags):
    said = {"lost": ["it died", "last words"], "timed_out": flags[0], "wrong": flags[1]}
    with pytest.raises(WorkerLost) as caught:
        RemoteEngine(Ray(said), PLACE, "node n").ask({"job": {}}, 1.0)
    lost = caught.value
    assert (lost.reason, lost.said, (lost.timed_out, lost.wrong)) == (
        "it died", "last words", flags,
    )  # fmt: skip


def test_a_node_that_is_gone_is_lost_with_its_name_and_closing_it_is_no_error():
    engine = RemoteEngine(Ray(OSError("the actor died\nand more")), PLACE, "node n")
    with pytest.raises(SlotLost, match=r"node n is lost \(OSError\)"):
        engine.ask({"job": {}}, 1.0)
    engine.close()


# ---- two nodes of Ray on this machine ------------------------------------------------------------


class Cluster:
    """Two nodes, a processor each."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self.head = self._started("--head", "--port", port, "--include-dashboard=false",
                                  "--temp-dir", str(folder))  # fmt: skip
        processes.until(self._answers)
        self.other = self.join()

    def join(self, *within):
        """One more node, started by another command."""
        processes.until(self._alive)
        before = self._alive()  # one that was killed may be among them for a while yet
        started = self._started("--address", self.address, within=within)
        processes.until(lambda: self._alive() - before, 120)
        return started

    def stop(self):
        for node in (self.other, self.head):
            self.kill(node)

    @staticmethod
    def kill(node):
        """A node's raylet and all that belongs to it, as when its machine goes down."""
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()

    def _answers(self):
        host, _, port = self.address.rpartition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def _alive(self):
        """The nodes that the cluster takes for alive, by their ids."""
        code = (
            "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, "
            "logging_level='ERROR'); "
            "print('nodes', *(n['NodeID'] for n in ray.nodes() if n['Alive']))"
        )
        done = subprocess.run([sys.executable, "-c", code, self.address], capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return set(last.split()[1:]) if last.startswith("nodes ") else set()

    @staticmethod
    def _started(*words, within=()):
        command = [
            *within,
            Path(sys.executable).with_name("ray"),
            "start",
            *words,
            "--num-cpus",
            "1",
            "--disable-usage-stats",
            "--object-store-memory",
            "100000000",
            "--block",
        ]
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=ROOT,
        )  # fmt: skip


@pytest.fixture(scope="module")
def nodes():
    """The cluster, and nothing left of it afterwards."""
    pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    started = Cluster(folder)
    yield started
    started.stop()
    shutil.rmtree(folder, ignore_errors=True)


def run(out, *words, variants=VARIANTS):
    return subprocess.Popen(
        [sys.executable, "-m", "attnbench", "run", *variants, *GRID, "--out", str(out),
         "--no-report", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def records(out):
    (path,) = out.glob("*/*")
    return {r.key: r for r in read_records(path)}


def what(record):
    """All of a record that is not how long something took."""
    errors = {name: e.relative for name, e in (record.error or {}).items()}
    return record.status, record.reason, record.problem, record.computes, record.node, errors


@pytest.mark.slow
def test_two_nodes_give_the_records_of_one_machine(nodes, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    local = run(here)
    local.communicate(timeout=300)
    spread = run(there, "--engine", "ray", "--address", nodes.address)
    _, err = spread.communicate(timeout=300)
    assert local.returncode == spread.returncode == 0, err
    one, two = records(here), records(there)
    assert {k: what(r) for k, r in one.items()} == {k: what(r) for k, r in two.items()}
    (path,) = there.glob("*/*")
    header = json.loads((path / "run.json").read_text())
    assert set(header["nodes"]) == {r.node for r in two.values() if r.time}
    assert "measured on 2 of kind" in err


@pytest.mark.slow
def test_killing_a_node_while_it_measures_loses_nothing(nodes, tmp_path):
    grid = ["--engine", "ray", "--address", nodes.address, "--budget", "0.3"]
    spread = run(tmp_path, *grid, variants=["einsum", "matmul", "sdpa", "numpy", "chunked"])
    processes.until(lambda: len(list(tmp_path.glob("*/*/records.jsonl"))) == 1, 120)
    (file,) = tmp_path.glob("*/*/records.jsonl")
    processes.until(lambda: file.read_text().count("\n") >= 3, 120)
    nodes.kill(nodes.other)
    _, err = spread.communicate(timeout=300)
    assert spread.returncode == 0, err
    assert "is lost" in err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert Counter(line["status"] for line in lines) == {
        "measured": 18, "unsupported": 2,
    }  # fmt: skip
    assert len({(x["variant"], json.dumps(x["problem"])) for x in lines}) == 20
    nodes.other = nodes.join()


@pytest.mark.slow
def test_a_node_whose_ruler_is_another_is_refused_and_nothing_is_started(nodes, tmp_path):
    copy = shutil.copytree(ROOT / "attnbench", tmp_path / "copy")
    record = copy / "record.py"
    record.write_text(record.read_text().replace(f"PROTOCOL = {PROTOCOL}", "PROTOCOL = 99"))
    inside = ["unshare", "-m", "sh", "-c"]  # where another attnbench lies in the place of this one
    if subprocess.run([*inside, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    third = nodes.join(*inside, f'mount --bind {copy} {ROOT}/attnbench && exec "$@"', "sh")
    out = tmp_path / "out"
    try:
        _, err = (refused := run(out, "--engine", "ray", "--address", nodes.address)).communicate()
    finally:
        nodes.kill(third)
    assert refused.returncode == 2, err
    assert "protocol 99" in err
    assert "Traceback" not in err
    assert not out.exists()
