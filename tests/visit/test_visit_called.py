"""A step's command as a real process: heard, cut off, and ended with all that it started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from impls.loading import load_file
from proofs import visit_called
from proofs.visit_called import ROOT, called

processes = load_file(Path(__file__).parents[1] / "processes.py")
gone, handling, until = processes.gone, processes.handling, processes.until


def test_a_process_that_hangs_is_ended_with_all_it_started(monkeypatch):
    monkeypatch.setattr(visit_called, "GRACE_S", 0.3)
    monkeypatch.setattr(visit_called, "KEEP_EVERY_S", 0.4)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    kept = []
    status, said = called([sys.executable, "-c", code], 1.0, lambda: kept.append(1))
    assert status is None
    assert len(kept) >= 2
    assert gone(said.strip())


def test_a_process_that_is_cut_off_may_still_say_what_it_has():
    code = (
        "import time\ntry:\n    print('begun', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('kept')"
    )
    with handling(signal.SIG_IGN, signal.SIGINT):
        assert called([sys.executable, "-c", code], 1.0, list) == (None, "begun\nkept\n")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


VISIT = """
import sys
from proofs import gpu_visit
from proofs.visit_steps import Step
work = '''
import subprocess, sys, time
held = subprocess.Popen(["sleep", "600"])
print("at work", flush=True)
open(sys.argv[1], "w").write(str(held.pid))
time.sleep(600)
'''
command = [sys.executable, "-c", work, sys.argv[1]]
gpu_visit.steps = lambda device: [Step("long", 1, 500, lambda *_: command, "at .*")]
sys.exit(gpu_visit.main(sys.argv[2:]))
"""


def test_a_visit_that_is_stopped_leaves_no_process_and_says_where_it_was(tmp_path):
    pid, room = tmp_path / "pid", tmp_path / "room"
    room.mkdir()
    with handling(signal.SIG_DFL, signal.SIGINT, signal.SIGHUP):
        process = subprocess.Popen(
            [sys.executable, "-c", VISIT, str(pid), "--out", str(tmp_path / "out")],
            env={**os.environ, "TMPDIR": str(room), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    until(lambda: pid.exists() and pid.read_text())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "the same command goes on" in err
    assert out.splitlines()[1].split()[:3] == ["long", "cut", "off"]
    assert "==== long\nat work" in (tmp_path / "out" / "log.txt").read_text()
    assert gone(pid.read_text())
    assert list(room.iterdir()) == []
