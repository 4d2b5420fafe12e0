"""A signal to end, while a verb is at work: what it has is kept, and nobody is left behind."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from attnbench.command.terminal import as_ctrl_c
from impls.loading import load_file

processes = load_file(Path(__file__).parents[1] / "processes.py")


def unheard(one):
    """Whether a signal changes nothing here."""
    try:
        os.kill(os.getpid(), one)
    except KeyboardInterrupt:
        return False
    return True


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("other", [signal.SIGTERM, signal.SIGHUP])
def test_it_is_ctrl_c_once_and_then_what_it_was(one, other):
    with processes.handling(signal.SIG_DFL, signal.SIGTERM, signal.SIGHUP):
        with as_ctrl_c():
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), one)
            assert unheard(other)  # while it keeps what it has
        assert signal.getsignal(one) == signal.SIG_DFL


def test_what_nohup_has_switched_off_stays_so():
    with processes.handling(signal.SIG_IGN, signal.SIGHUP):
        with as_ctrl_c():
            assert unheard(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def processes_of(words):
    """Those whose command line holds these words."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found |= {file.parent.name} if words in file.read_bytes() else set()
    return found


@pytest.mark.slow
def test_recall_that_is_told_to_end_keeps_what_was_trained(tmp_path):
    before = processes_of(b"attnbench.features.quality.recall")
    words = ["quality", "recall", "--preset", "cpu-quick", "--steps", "60", "--seeds", "50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "attnbench", *words, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.startswith("[2/100"):
            break
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 100 trainings" in said and "Traceback" not in said
    (file,) = tmp_path.glob("*/evidence/*-recall.json")
    found = json.loads(file.read_text())
    assert found["made"]["stopped"] and found["made"]["trainings"] == 100
    assert 2 <= len(found["rows"]) < 100
    assert processes_of(b"attnbench.features.quality.recall") <= before
