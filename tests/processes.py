"""What became of a process, and waiting for it."""

import signal
import time
from contextlib import contextmanager
from pathlib import Path


def alive(pid):
    """Whether the process is there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid, within_s=5.0):
    """Whether a process ends in time."""
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def until(what, how_long=60):
    """Wait for something to be so."""
    end = time.monotonic() + how_long
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def marked(word):
    """The processes that carry a word in their environment, wherever they have gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                said = (entry / "environ").read_bytes()
            except OSError:
                continue
            if word.encode() in said and alive(entry.name):
                found.append(int(entry.name))
    return found


@contextmanager
def handling(handler, *signals):
    """What this process does about signals, and so one that it starts; nohup and & ignore some."""
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, was)
