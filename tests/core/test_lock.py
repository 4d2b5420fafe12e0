"""One run on each GPU, one writer to each run: the second learns who the first is."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core import lock
from attnbench.core.gpu import Absent
from attnbench.core.lock import DeviceBusy, device_lock, holder

HOLD = """
import sys, pathlib
from attnbench.core.lock import device_lock
with device_lock(["GPU-1"], pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def refusal(where, *uuids):
    with pytest.raises(DeviceBusy) as caught, device_lock(uuids or ["GPU-1"], where):
        pass
    return str(caught.value)


def held():
    """The descriptors of this process."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())[:-1]


def test_the_holder_of_a_gpu_is_named_and_lets_go_when_it_dies(tmp_path):
    words = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        said = refusal(tmp_path)
        found = re.match(r"GPU GPU-1 is being measured by process (\d+) \((.+)\); ", said)
        assert int(found[1]) == other.pid and "device_lock" in found[2] and "\n" not in found[2]
        assert "CUDA_VISIBLE_DEVICES" in said
        with device_lock(["GPU-2"], tmp_path):
            pass
        other.kill()
    with device_lock(["GPU-1"], tmp_path):
        pass


def test_it_takes_all_or_none_and_is_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), device_lock(["GPU-2"], tmp_path):
        before = held()
        assert "GPU-2" in refusal(tmp_path, "GPU-1", "GPU-2", "GPU-1")
        assert held() == before
        with device_lock(["GPU-1"], tmp_path):
            pass
        _ = 1 / 0
    with device_lock(["GPU-1", "GPU-2", "GPU-1"], tmp_path):
        pass


def test_devices_are_locked_by_the_uuids_of_their_gpus(tmp_path, monkeypatch):
    uuids = {"cuda": "GPU-1", "cuda:1": "GPU-2", "cuda:7": Absent("there is no cuda:7")}
    boards = [SimpleNamespace(uuid=f"GPU-{i}") for i in (1, 2, 3)]
    monkeypatch.setattr(lock.gpu, "uuid_of", uuids.get)
    monkeypatch.setattr(lock.gpu, "boards", lambda: boards)
    monkeypatch.setattr(lock, "shared_folder", lambda: tmp_path)
    for devices, taken in ((["cpu", "cuda:1", "cuda"], {1, 2}), (["cuda:7"], {1, 2, 3}), ([], {})):
        with lock.lock_for(devices):
            for number in (1, 2, 3):
                if number in taken:
                    refusal(tmp_path, f"GPU-{number}")
                else:
                    device_lock([f"GPU-{number}"], tmp_path).__enter__()


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        (b"python\0-c\0x\0", "", "process 7 (python -c x)"),
        (b"", "", "process 7"),
        (None, "", "another process"),
        (b"python", "00:00:1", "another process"),
        (b"python", None, "another process"),
    ],
    ids=range(5),
)
def test_a_holder_is_named_as_far_as_the_system_tells(tmp_path, monkeypatch, command, name, text):
    monkeypatch.setattr(lock, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    at = (tmp_path / "7").stat()
    own = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    if name is not None:
        rows = ("1: POSIX  ADVISORY  WRITE 3", "2: FLOCK  ADVISORY  WRITE 7", "2: -> FLOCK  A  W 9")
        (tmp_path / "locks").write_text("".join(f"{row} {name or own} 0 EOF\n" for row in rows))
    if command is not None:
        (tmp_path / "7" / "cmdline").write_bytes(command)
    assert holder(tmp_path / "7") == text
