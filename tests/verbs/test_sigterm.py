"""SIGTERM while a verb is at work: what it has is kept, and nobody is left behind."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from attnbench.verbs.sigterm import as_ctrl_c


def test_sigterm_is_ctrl_c_once_and_then_what_it_was():
    before = signal.getsignal(signal.SIGTERM)
    with as_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while it keeps what it has
    assert signal.getsignal(signal.SIGTERM) is before


def processes_of(words):
    """Those whose command line holds these words."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found |= {file.parent.name} if words in file.read_bytes() else set()
    return found


@pytest.mark.slow
def test_recall_that_is_told_to_end_keeps_what_was_trained(tmp_path):
    before = processes_of(b"attnbench.models.quality.recall.child")
    words = ["quality", "recall", "--preset", "cpu-quick", "--steps", "60", "--seeds", "50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "attnbench", *words, "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
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
    assert processes_of(b"attnbench.models.quality.recall.child") <= before
