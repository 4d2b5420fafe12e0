"""A run over two nodes of Ray: the same records as here, whatever becomes of a node."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from attnbench.core.store import read_header, read_records
from tests import processes
from tests.calling import ROOT, only_run

GRID = ["--seq", "32,48", "--heads", "2", "--head-dim", "8", "--phase", "forward,train"]
GRID += ["--budget", "0.1", "--mask", "causal"]
MARK = "ATTNBENCH_TEST_NODE"
VARIANTS = ["einsum", "matmul", "sdpa", "exp.naive", "sdpa.cudnn", "numpy"]


class Cluster:
    """Two nodes, a processor each."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        more = ["--include-dashboard=false", "--temp-dir", folder]
        self.head = self._started("--head", "--port", port, *more)
        processes.until(self._answers)
        self.other = self._started("--address", self.address)
        processes.until(lambda: self._alive() == 2, 120)

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
        """How many nodes the cluster takes for alive."""
        code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); "
        code += "print('alive', sum(n['Alive'] for n in ray.nodes()))"
        command = [sys.executable, "-c", code, self.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return int(last.split()[1]) if last.startswith("alive ") else 0

    @staticmethod
    def _started(*words):
        ray = Path(sys.executable).with_name("ray")
        more = ["--num-cpus", "1", "--disable-usage-stats", "--object-store-memory", "100000000"]
        command, mark = [ray, "start", *words, *more, "--block"], uuid.uuid4().hex
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
        env = {**os.environ, MARK: f"{mark};"}
        node = subprocess.Popen(map(str, command), env=env, start_new_session=True, **nowhere)
        node.mark = mark
        return node


@pytest.fixture(scope="module")
def nodes():
    """The cluster, and nothing left of it afterwards."""
    pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    started = Cluster(folder)
    yield started
    for node in (started.other, started.head):
        started.kill(node)
    shutil.rmtree(folder, ignore_errors=True)


def run(out, *words):
    command = [sys.executable, "-m", "attnbench", "run", *VARIANTS, *GRID, *words, "--no-report"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--out", str(out)], cwd=ROOT, **pipes)


def what(record):
    """All of a record that is not how long something took, nor where."""
    errors = {name: e.relative for name, e in (record.error or {}).items()}
    return record.key, record.status, record.reason, record.computes, errors


@pytest.mark.slow
def test_two_nodes_give_the_records_of_one_machine_though_one_is_killed_meanwhile(nodes, tmp_path):
    local = run(tmp_path / "here")
    said = "".join(local.communicate(timeout=300))
    assert local.returncode == 0, said
    spread = run(tmp_path / "there", "--engine", "ray", "--address", nodes.address)
    files = (tmp_path / "there").glob
    measured = 8  # lines: six cells are left out, and stand at the top
    lines = lambda: (x.read_text().count("\n") for x in files("*/*/*.jsonl"))  # noqa: E731
    processes.until(lambda: any(n >= measured for n in lines()), 120)
    nodes.kill(nodes.other)
    _, err = spread.communicate(timeout=300)
    assert spread.returncode == 0, err
    assert "measured on 2 of kind" in err and "is lost" in err
    here, there = (only_run(tmp_path / name) for name in ("here", "there"))
    found = list(read_records(there))
    assert sorted(map(what, found)) == sorted(map(what, read_records(here)))
    assert set(read_header(there)["nodes"]) == {r.node for r in found if r.time}
