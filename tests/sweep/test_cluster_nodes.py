"""A run over two nodes of Ray: the same records as here, whatever becomes of a node."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import attnbench
from attnbench.core.store import read_records
from tests import processes

ROOT = Path(attnbench.__file__).parents[1]
GRID = ["--seq", "32,48", "--heads", "2", "--head-dim", "8", "--phase", "forward,train"]
GRID += ["--budget", "0.02", "--mask", "causal"]
MARK = "ATTNBENCH_TEST_NODE"
VARIANTS = ["einsum", "matmul", "sdpa", "exp.naive", "sdpa.cudnn", "numpy"]


class Cluster:
    """Two nodes, a processor each."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self.head = self._started(
            "--head", "--port", port, "--include-dashboard=false", "--temp-dir", str(folder)
        )
        processes.until(self._answers)
        self.other = self.join()

    def join(self):
        """One more node, started by another command."""
        processes.until(self._alive)
        before = self._alive()
        started = self._started("--address", self.address)
        processes.until(lambda: self._alive() - before, 120)
        return started

    def stop(self):
        for node in (self.other, self.head):
            self.kill(node)

    @staticmethod
    def kill(node):
        """Kill every process of a node at once, as when its machine goes down."""
        for pid in processes.marked(f"{MARK}={node.mark};"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
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
        done = subprocess.run(
            [sys.executable, "-c", code, self.address], capture_output=True, text=True, timeout=120
        )
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return set(last.split()[1:]) if last.startswith("nodes ") else set()

    @staticmethod
    def _started(*words):
        ray = Path(sys.executable).with_name("ray")
        more = ["--num-cpus", "1", "--disable-usage-stats", "--object-store-memory", "100000000"]
        command, mark = [ray, "start", *words, *more, "--block"], uuid.uuid4().hex
        node = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, MARK: f"{mark};"},
        )
        node.mark = mark
        return node


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
    command = [sys.executable, "-m", "attnbench", "run", *variants, *GRID, *words, "--no-report"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--out", str(out)], cwd=ROOT, **pipes)


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
    said = "".join(local.communicate(timeout=300))
    assert local.returncode == 0, said
    spread = run(there, "--engine", "ray", "--address", nodes.address)
    _, err = spread.communicate(timeout=300)
    assert spread.returncode == 0, err
    one, two = records(here), records(there)
    assert {k: what(r) for k, r in one.items()} == {k: what(r) for k, r in two.items()}
    (path,) = there.glob("*/*")
    header = json.loads((path / "run.json").read_text())
    assert set(header["nodes"]) == {r.node for r in two.values() if r.time}
    assert "measured on 2 of kind" in err


@pytest.mark.slow
def test_killing_a_node_while_it_measures_loses_nothing(nodes, tmp_path):
    """The last test of this file: it leaves one node."""
    grid = ["--engine", "ray", "--address", nodes.address, "--budget", "1"]
    spread = run(tmp_path, *grid, variants=["einsum", "matmul", "sdpa", "numpy", "chunked"])
    processes.until(lambda: len(list(tmp_path.glob("*/*/records.jsonl"))) == 1, 120)
    (file,) = tmp_path.glob("*/*/records.jsonl")
    processes.until(lambda: file.read_text().count("\n") >= 3, 120)
    nodes.kill(nodes.other)
    _, err = spread.communicate(timeout=300)
    assert spread.returncode == 0, err
    assert "is lost" in err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert Counter(line["status"] for line in lines) == {"measured": 18, "unsupported": 2}
    assert len({(x["variant"], json.dumps(x["problem"])) for x in lines}) == 20
