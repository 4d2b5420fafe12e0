"""A process of its own: what it said before it ended badly counts, and how it ended is said."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from attnbench.core.process import Lost
from attnbench.core.settings import Settings
from attnbench.features.quality.process import Apart
from tests.processes import gone

WORKER = """
    import json, os, signal, sys, time, torch
    from impls.asked import CantBeDone
    from attnbench.models.quality import answering

    def answer(asked):
        yield {"threads": os.environ["OMP_NUM_THREADS"], "asked": asked, "pid": os.getpid()}
        if asked["then"] == "die":
            print("last words")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        if asked["then"] == "hang":
            time.sleep(60)
        if asked["then"] == "raise":
            raise ValueError("something is off")
        if asked["then"] == "refuse":
            raise CantBeDone("it takes none of that")
        yield {"second": 2}

    if __name__ == "__main__":
        answering.main(answer)
"""


@pytest.fixture
def apart(tmp_path, monkeypatch):
    (tmp_path / "a_worker.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Apart("a_worker", Settings()) as made:
        yield made


@pytest.fixture
def asks(apart):
    def call(then, limit_s=60.0):
        found = []
        try:
            for stage in apart.stages({"then": then}, limit_s):
                found.append(stage)
        except Lost as lost:
            return found, str(lost)
        return found, None

    return call


def test_stages_come_in_their_order_from_a_pinned_process(asks):
    found, lost = asks("go on")
    assert found[0]["threads"] == "1" and found[0]["asked"] == {"then": "go on"}
    assert found[1:] == [{"second": 2}]
    assert lost is None


def test_what_a_dead_process_had_said_counts_and_its_last_words_are_told(asks):
    found, lost = asks("die")
    assert len(found) == 1
    assert lost == "its process died of SIGSEGV: last words"


def test_what_hangs_is_ended_when_its_time_is_over_and_the_next_is_served(asks):
    asks("go on")
    start = time.monotonic()
    found, lost = asks("hang", limit_s=4.0)
    assert lost == "it was still running after 4 s" and len(found) == 1
    assert time.monotonic() - start < 20
    for then, said in (
        ("raise", {"failed": "ValueError: something is off"}),
        ("refuse", {"refused": "it takes none of that"}),
    ):
        found, lost = asks(then)
        assert found[1:] == [said] and lost is None


def test_who_stops_listening_leaves_nobody_behind(apart):
    heard = apart.stages({"then": "hang"}, 60.0)
    next(heard)
    heard.close()
    assert [*apart.stages({"then": "go on"}, 60.0)][1:] == [{"second": 2}]


def test_who_is_killed_takes_the_forked_along(tmp_path, apart):
    """One that hangs would else stay for ever: it has a session of its own."""
    code = f"""
        from pathlib import Path
        from attnbench.core.settings import Settings
        from attnbench.features.quality.process import Apart
        for stage in Apart("a_worker", Settings()).stages({{"then": "hang"}}, 100.0):
            Path({str(tmp_path / "pid")!r}).write_text(str(stage["pid"]))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    until = time.monotonic() + 60
    while not (pid := tmp_path / "pid").exists() or not pid.read_text():
        assert time.monotonic() < until and parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(int(pid.read_text()))


def test_a_worker_that_can_not_be_loaded_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_worker.py").write_text("import nothing_of_that_name")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Apart("broken_worker", Settings()) as broken, pytest.raises(Lost) as lost:
        list(broken.stages({}, 30.0))
    assert "ended with status 1: ModuleNotFoundError" in str(lost.value)


def test_asking_loads_no_torch():
    code = """
        import sys
        import attnbench.features.quality.pretrained, attnbench.features.quality.real
        import attnbench.features.quality.view, attnbench.features.quality.view
        sys.exit("torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == 0
