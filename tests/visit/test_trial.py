"""Every command of a visit's four calls, run on a CPU with short sequences; and real steps that are
killed or stopped in the middle.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.store import read_records
from proofs.gpu_visit import ROOT, VisitFolder
from proofs.visit_steps import Room, steps
from tests.processes import alive, until

pytestmark = pytest.mark.slow
NCU = """#!/bin/sh
# as ncu would: options first, then a program, which is run; figures at the end
while [ "$1" = --profile-from-start ] || [ "$1" = --metrics ]; do shift 2; done
"$@" && echo "lts__t_bytes.sum.pct_of_peak_sustained_elapsed % 41.5"
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Starts a call of a visit; with a profiler's place on the path."""
    tools = tmp_path_factory.mktemp("tools")
    (tools / "ncu").write_text(NCU)
    (tools / "ncu").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    started = []

    def start(out, *words):
        command = [sys.executable, "proofs/gpu_visit.py", "--device", "cpu", "--out", str(out)]
        path = out.parent / f"{out.name}-{len(started)}.txt"
        with path.open("w") as log:
            process = subprocess.Popen(
                [*command, *words], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        process.said = path.read_text
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def both(trial, tmp_path_factory):
    """Two visits at once: calls 1 and 3 of one, calls 2 and 4 of the other, which is stopped as
    soon as its last step, the self-check, has begun.
    """
    room = tmp_path_factory.mktemp("visits")
    names = {call: [s.name for s in steps() if call in s.calls] for call in (1, 2, 3, 4)}
    chains = [trial(room / "odd", "--steps", ",".join(names[1] + names[3]))]
    even = trial(room / "even", "--steps", ",".join(names[2]))
    assert even.wait(600) in (0, 1), even.said()
    last = trial(room / "even", "--call", "4")
    until(lambda: "selfcheck:" in last.said() or last.poll() is not None, 600)
    last.send_signal(signal.SIGTERM)
    assert last.wait(60) == 130, last.said()
    assert chains[0].wait(600) in (0, 1), chains[0].said()
    return room


@pytest.mark.parametrize("step", [each.name for each in steps()])
def test_the_command_of_a_step_works(both, step):
    summaries = [json.loads((both / name / "summary.json").read_text()) for name in ("odd", "even")]
    found = {name: one for summary in summaries for name, one in summary["steps"].items()}
    status, line = found[step]["status"], found[step]["line"]
    if step == "selfcheck":
        assert status == "cut off"
    elif step == "energies":
        assert "energy: " in line  # a virtual machine counts no joules, and says so
    else:
        assert status in ("done", "finding"), line
    expected = {
        "l2": "41.5",
        "apart": "half are at most",
        "claim": "reproduced",
        "tests": "skipped",
    }
    assert expected.get(step, "") in line


def test_what_a_visit_left_is_few_files_that_the_next_one_reads(both, tmp_path):
    assert len(list((both / "even").iterdir())) <= 8
    kept = VisitFolder(tmp_path / "new", tmp_path / "room", "cpu", before=both / "even")
    runs = {name: Room("cpu", kept.results, name).run_of(name) for name in ("quick", "again")}
    # a cell that a busy machine disturbed may have been measured again
    keys = [{record.key for record in read_records(run)} for run in runs.values()]
    assert keys[0] == keys[1] and len(keys[0]) > 5, "the same measurements"


def child_of(pid):
    """The process that a visit runs as its step."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid and alive(entry.name):
                return int(entry.name)
    return None


def test_a_step_that_is_killed_goes_on_where_it_was(trial, tmp_path):
    out = tmp_path / "out"
    first = trial(out, "--steps", "h200")
    until(lambda: "h200:" in first.said())
    until(lambda: child_of(first.pid))
    step = child_of(first.pid)
    files = Path("/proc", str(step), "fd")
    until(lambda: any(fd.readlink().name == "records.jsonl" for fd in files.iterdir()))
    os.kill(step, signal.SIGKILL)
    assert first.wait(60) == 2, first.said()
    assert "signal 9 ended it" in first.said()
    second = trial(out, "--steps", "h200")
    assert second.wait(120) == 0, second.said()
    kept = VisitFolder(out, tmp_path / "room", "cpu")
    runs = list((kept.results / "h200").glob("*/*/run.json"))
    assert len(runs) == 1, "the run that was killed went on"
    keys = [record.key for record in read_records(runs[0].parent)]
    assert len(keys) == len(set(keys)) == json.loads(runs[0].read_text())["cells"]
