"""A step's command as a real process: heard, cut off, and ended with all that it started."""

import signal
import sys

import pytest

from proofs import visit_called
from proofs.visit_called import Stopped, called
from tests.processes import gone, handling


def test_a_process_that_hangs_or_is_interrupted_is_ended_with_all_it_started(monkeypatch):
    monkeypatch.setattr(visit_called, "GRACE_S", 0.3)
    monkeypatch.setattr(visit_called, "KEEP_EVERY_S", 0.4)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    kept = []

    def keep():
        kept.append(1)
        if len(kept) == 4:
            raise KeyboardInterrupt

    status, said = called([sys.executable, "-c", code], 1.0, keep)
    assert status is None
    assert len(kept) >= 2
    assert gone(said.strip())
    with pytest.raises(Stopped) as stopped:
        called([sys.executable, "-c", code], 60.0, keep)
    assert gone(stopped.value.said.strip())


def test_a_process_that_is_cut_off_may_still_say_what_it_has():
    code = (
        "import time\ntry:\n    print('begun', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('kept')"
    )
    with handling(signal.SIG_IGN, signal.SIGINT):
        assert called([sys.executable, "-c", code], 1.0, list) == (None, "begun\nkept\n")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
