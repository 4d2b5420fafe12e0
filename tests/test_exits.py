"""How a process ended: by a status of its own, by a signal with a name, and by one without."""

import signal
import subprocess
import sys

import pytest

from attnbench.core.process import ended

NAMELESS = signal.SIGRTMIN + 1


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("sys.exit(0)", "ended with status 0"),
        ("sys.exit(7)", "ended with status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "died of SIGKILL"),
        (f"os.kill(os.getpid(), {NAMELESS})", f"died of signal {NAMELESS}"),
    ],
)
def test_a_process_ended_as_it_did(deed, said):
    code = f"import os, signal, sys; {deed}"
    assert ended(subprocess.run([sys.executable, "-c", code], check=False).returncode) == said
