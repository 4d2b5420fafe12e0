"""What a verb does with streams that nobody reads or that are full, and with a signal to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.command.terminal import CannotWrite, as_ctrl_c, kept_open
from tests import processes
from tests.calling import attnbench_

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device always full")


@needs_full
def test_a_full_disk_is_a_sentence():
    with Path("/dev/full").open("w") as full:
        done = attnbench_("--version", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == "attnbench: can't write to the output: No space left on device\n"


@needs_full
def test_it_is_told_once(monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with kept_open():
            print("data")
            with pytest.raises(CannotWrite, match="No space left"):
                sys.stdout.flush()
            print("dropped", flush=True)


def test_a_reader_that_has_left_is_no_finding():
    reading, writing = os.pipe()
    os.close(reading)
    done = attnbench_("list", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_that_was_closed_before_the_program_began_keeps_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with kept_open():
        print("data", flush=True)


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
