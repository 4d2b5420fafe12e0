"""A worker as a process: whose it is, what it may take, and that nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import impls
from attnbench.core import process as child
from attnbench.core.machine import this_machine
from attnbench.core.process import LAST_WORDS, Child, free_memory
from attnbench.core.record import Status
from attnbench.core.settings import Settings
from attnbench.sweep import asking
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from tests import processes

GRID = Preset(
    "one small problem", seq=("16",), heads=(1,), head_dim=(8,), phase=("forward",), budget=0.01
)

LEAVING = """
import os, subprocess, sys, time
from impls.dense.einsum import build as honest
from impls.spec import Variant

def sleeper(*how, **more):
    code = "import time; time.sleep(600)"
    return subprocess.Popen([*how, sys.executable, "-S", "-c", code], **more)

def behind(problem):
    sleeper()
    return honest(problem)

def daemon(problem):
    sleeper("setsid", start_new_session=True)
    return honest(problem)

def orphan(problem):
    if os.fork() == 0:
        os.setsid()
        sleeper("nohup", start_new_session=True, env={})
        os._exit(0)
    return honest(problem)

def bomb(problem):
    while True:
        os.fork()

def many(problem):
    for _ in range(600):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)

def floods(problem):
    part = b"x" * (1 << 20)
    for _ in range(300):
        os.write(2, part)
    os.write(2, b"the end of it")
    os._exit(3)

def greedy(problem):
    return lambda q, k, v: q.new_zeros(1 << 34)

def row(name, build):
    return Variant(name=name, title=name, family="leaving", computes="softmax", build=build)

ROWS = [row(f"l.{n}", f":{n}") for n in (
    "behind", "daemon", "orphan", "bomb", "many", "floods", "greedy",
)]
"""


@pytest.fixture(scope="module")
def leaving(tmp_path_factory):
    """Cells by name, of variants that leave processes behind, or take too much."""
    table = tmp_path_factory.mktemp("leaving") / "leaving.py"
    table.write_text(LEAVING)
    plan = make_plan(impls.table([table]), [], GRID, this_machine())
    return {cell.variant.label: cell for cell in plan.cells}


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of everything started here."""
    word = f"ATTNBENCH_TEST_{os.getpid()}_{os.urandom(4).hex()}"
    monkeypatch.setenv(word, "1")
    return word


def measured(cell, engine, limit_s=60):
    return asking.measure(cell, {"seed": 0, "budget_s": 0.01}, engine, limit_s=limit_s)


def test_closing_an_engine_ends_its_worker_and_it_can_be_closed_again():
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names are all that is asked
    engine = LocalEngine(Settings())
    engine._child = engine._start()
    worker, keeper = engine.worker, engine._child.keeper.pid
    assert processes.alive(worker)
    assert worker != keeper
    engine.close()
    engine.close()
    assert not processes.alive(worker)
    assert not processes.alive(keeper)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_worker_has_a_session_of_its_own_that_ctrl_c_does_not_reach():
    with LocalEngine(Settings()) as engine:
        engine._child = engine._start()
        processes.until(lambda: os.getsid(engine.worker) == engine.worker)
        assert os.getsid(engine._child.keeper.pid) not in (os.getsid(0), engine.worker)


@pytest.mark.parametrize("who", ["worker", "keeper"])
def test_a_worker_that_is_killed_from_outside_is_lost_with_the_signal_named(who):
    engine = LocalEngine(Settings())
    engine._child = engine._start()
    worker = engine.worker
    os.kill(worker if who == "worker" else engine._child.keeper.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost) as caught:
        engine._exchange({"apply": {}}, 30)
    assert caught.value.reason == "the worker died of SIGKILL"
    assert not caught.value.timed_out
    processes.until(lambda: not processes.alive(worker))


@pytest.mark.parametrize("name", ["l.behind", "l.daemon", "l.orphan"])
def test_what_a_variant_started_ends_with_its_worker_wherever_it_went(leaving, mark, name):
    with LocalEngine(Settings()) as engine:
        measured(leaving[name], engine)
        keeper = engine._child.keeper.pid if engine._child else None
    assert keeper is None or not processes.alive(keeper)
    processes.until(lambda: not processes.marked(mark), 10)
    left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _sleeps(p)]
    assert left == []


def _sleeps(process):
    """Whether it is a process that a variant here started, though it may hide its environment."""
    try:
        return b"import time; time.sleep(600)" in (process / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l.bomb", "l.many"])
def test_more_processes_than_any_compiler_starts_end_the_cell(leaving, mark, name):
    with LocalEngine(Settings()) as engine:
        record = measured(leaving[name], engine)
    assert record.status is Status.CRASHED
    assert "it had started more than 512 processes" in record.reason
    processes.until(lambda: not processes.marked(mark), 30)


def test_of_a_flood_of_words_the_end_is_kept_and_the_cell_is_over(leaving):
    with LocalEngine(Settings()) as engine:
        record = measured(leaving["l.floods"], engine)
        assert record.reason == "the worker ended with status 3"
        assert record.detail.endswith("the end of it")
        assert len(record.detail) <= LAST_WORDS


def test_what_asks_for_more_memory_than_there_is_is_told_so_and_no_one_else_is(leaving):
    with LocalEngine(Settings()) as engine:
        record = measured(leaving["l.greedy"], engine)
        worker = engine.worker
        assert record.status is Status.OUT_OF_MEMORY, record.reason
        assert measured(leaving["l.greedy"], engine).status is Status.OUT_OF_MEMORY
        assert engine.worker == worker  # which lives


def test_a_worker_may_hold_so_much_and_goes_first_when_the_machine_has_no_more():
    started = Child(Settings(), None, 1 << 33)
    status = Path(f"/proc/{started.pid}")
    processes.until(lambda: (status / "oom_score_adj").read_text().strip() == "1000")
    processes.until(lambda: f"{1 << 33}" in (status / "limits").read_text())
    started.end()
    started.close()
    assert free_memory() < this_machine().memory_bytes


def test_a_control_group_that_holds_less_than_the_machine_is_what_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{3 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 30}\n")
    monkeypatch.setattr(child, "GROUP", tmp_path)
    assert free_memory() == int(child.SHARE * (2 << 30))
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 2 << 30


DYING = """
import os, signal, sys
from attnbench.core.settings import Settings
from attnbench.sweep.engine import LocalEngine
engine = LocalEngine(Settings())
engine._child = engine._start()
print(engine.worker, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_and_its_keeper_end_when_the_engine_s_process_is_killed(mark):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DYING)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        worker = int(parent.stdout.readline())
        assert processes.alive(worker)
        assert len(processes.marked(mark)) >= 3
        parent.communicate("go on\n")
    processes.until(lambda: not processes.marked(mark), 10)


@pytest.mark.parametrize("refusal", ["raise OSError(1, 'no')", "raise AttributeError('none')"])
def test_how_a_worker_ended_is_known_where_no_pidfd_can_be_had(refusal):
    code = f"""
        import os, time
        from attnbench.core import process as keeper
        def refused(process): {refusal}
        os.pidfd_open = refused
        life, held = os.pipe()
        worker = os.fork()
        if worker == 0:
            time.sleep(0.2)
            os._exit(7)
        began = time.monotonic()
        print(keeper._watch(worker, life), time.monotonic() - began < 0.8)
        os.close(held)
        print(keeper._watch(os.fork() or time.sleep(5), life))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert ran.stdout.splitlines() == ["status 7 True", "status -9"]
