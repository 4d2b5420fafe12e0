"""One run on each GPU: the second is told, and the lock goes when its holder does."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core import lock
from attnbench.core.gpu import Absent
from attnbench.core.lock import DeviceBusy, device_lock

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


def test_a_gpu_is_held_by_one_process_until_it_dies(tmp_path):
    words = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        said = refusal(tmp_path)
        assert said.startswith("GPU GPU-1 is being measured by") and "CUDA_VISIBLE_DEVICES" in said
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


@pytest.mark.parametrize(
    ("devices", "taken"), [(["cpu", "cuda:1", "cuda"], {1, 2}), (["cuda:7"], {1, 2, 3}), ([], ())]
)
def test_devices_are_locked_by_the_uuids_of_their_gpus(tmp_path, monkeypatch, devices, taken):
    uuids = {"cuda": "GPU-1", "cuda:1": "GPU-2", "cuda:7": Absent("there is no cuda:7")}
    boards = [SimpleNamespace(uuid=f"GPU-{i}") for i in (1, 2, 3)]
    monkeypatch.setattr(lock.gpu, "uuid_of", uuids.get)
    monkeypatch.setattr(lock.gpu, "boards", lambda: boards)
    monkeypatch.setattr(lock, "SHARED", (tmp_path,))
    with lock.lock_for(devices):
        for number in (1, 2, 3):
            if number in taken:
                refusal(tmp_path, f"GPU-{number}")
            else:
                device_lock([f"GPU-{number}"], tmp_path).__enter__()
