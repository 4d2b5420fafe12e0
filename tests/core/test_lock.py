"""One run on each GPU, one writer to each run: the second learns who the first is."""

import errno
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core import lock
from attnbench.core.gpu import Absent
from attnbench.core.lock import DeviceBusy, LockDenied, device_lock, holder, path_of
from attnbench.core.run_folder import RunFolder

HOLD = """
import sys, pathlib
from attnbench.core.lock import device_lock
with device_lock(["GPU-1"], pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
KNOWN = r"process (\d+) \((.+)\), since (\S+)"


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of GPU-1."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


def refusal(where, *uuids):
    with pytest.raises(DeviceBusy) as caught, device_lock(uuids or ["GPU-1"], where):
        pass
    return str(caught.value)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_holder_of_a_gpu_is_named_and_lets_go_when_it_dies(tmp_path, other, how):
    found = re.match(rf"GPU GPU-1 is being measured by {KNOWN}; ", refusal(tmp_path))
    assert int(found[1]) == other.pid and "device_lock" in found[2] and "\n" not in found[2]
    assert timedelta(seconds=-2) < datetime.now(UTC) - datetime.fromisoformat(found[3])
    assert "CUDA_VISIBLE_DEVICES" in refusal(tmp_path)
    with device_lock(["GPU-2"], tmp_path):
        pass
    other.send_signal(how)
    other.wait(timeout=30)
    with device_lock(["GPU-1"], tmp_path):
        pass


def test_it_is_exclusive_within_a_process_and_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), device_lock(["GPU-1"], tmp_path):
        before = os.listdir("/proc/self/fd")  # noqa: PTH208 - only the names matter
        assert f"process {os.getpid()} " in refusal(tmp_path)
        assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
        _ = 1 / 0
    with device_lock(["GPU-1"], tmp_path):
        pass


def test_of_several_gpus_it_takes_all_or_none(tmp_path):
    with device_lock(["GPU-2"], tmp_path):
        assert "GPU-2" in refusal(tmp_path, "GPU-1", "GPU-2", "GPU-1")
        with device_lock(["GPU-1"], tmp_path):
            pass
    with device_lock(["GPU-1", "GPU-2", "GPU-1"], tmp_path):
        pass


def test_every_user_may_lock_the_file_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with device_lock(["GPU-1"], tmp_path):
            assert path_of("GPU-1", tmp_path).stat().st_mode & 0o777 == 0o666
            path_of("GPU-1", tmp_path).chmod(0o444)
            assert "is being measured" in refusal(tmp_path)
    finally:
        os.umask(before)


def test_a_file_that_may_not_be_read_is_a_sentence(tmp_path, monkeypatch):
    def opened(path, how, mode=0o777):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(lock.os, "open", opened)
        text = refusal(tmp_path)
    assert text.startswith("can't tell whether another run is using GPU GPU-1: the lock file ")
    assert "(Permission denied)" in text and "have its owner remove it" in text


def test_where_the_system_has_no_locks_no_holder_is_named(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(LockDenied, match=r"can't tell whether .* \(No locks available\)"):
        device_lock(["GPU-1"], tmp_path).__enter__()


def test_a_link_is_not_followed_and_no_uuid_leads_out_of_the_folder(tmp_path):
    target = tmp_path / "precious"
    path_of("GPU-1", tmp_path).symlink_to(target)
    assert "can't tell whether" in refusal(tmp_path)
    assert not target.exists()
    assert path_of("../../etc/x", tmp_path).parent == tmp_path


def test_a_file_that_is_there_is_never_opened_with_the_flag_that_creates(tmp_path, monkeypatch):
    path_of("GPU-1", tmp_path).touch()
    seen, real = [], os.open
    monkeypatch.setattr(lock.os, "open", lambda p, how, *m: (seen.append(how), real(p, how, *m))[1])
    with device_lock(["GPU-1"], tmp_path):
        pass
    assert all(how & os.O_EXCL for how in seen if how & os.O_CREAT)
    assert any(not how & os.O_CREAT for how in seen)


def test_locks_lie_where_all_users_may_write_or_among_what_is_temporary(tmp_path, monkeypatch):
    closed, shared, temporary = (tmp_path / n for n in ("closed", "shared", "temporary"))
    for place in (closed, shared, temporary):
        place.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(lock, "SHARED", (tmp_path / "missing", closed, shared))
    assert lock.shared_folder() == shared
    monkeypatch.setattr(lock, "SHARED", (closed,))
    assert lock.shared_folder() == temporary


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


def test_the_writer_of_a_run_is_named_and_a_refused_one_keeps_no_file_open(folder, refused):
    before = len(list(Path("/proc/self/fd").iterdir()))
    text = refused(lambda: RunFolder.reopen(folder.path), "is writing to")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    found = re.match(rf"{KNOWN} is writing to (.+); wait until that one ends", text)
    assert (int(found[1]), found[4]) == (os.getpid(), str(folder.path))
    folder.close()
    RunFolder.reopen(folder.path).close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"command": b"python\0-c\0\x1b[2J\n"}, "process 7 (python -c ?[2J)"),
        ({"command": b"x" * 9000}, f"process 7 ({'x' * lock.LONGEST_COMMAND})"),
        ({}, "process 7"),
        ({"pid": 0}, "another process"),
        ({"pid": 8}, "another process"),
        ({"kind": "LEASE"}, "another process"),
        ({"name": "00:00:1"}, "another process"),
        ({"name": "damaged"}, "another process"),
        ({"kind": None}, "another process"),
    ],
    ids=str,
)
def test_a_holder_is_named_as_far_as_the_system_tells(tmp_path, monkeypatch, changes, text):
    monkeypatch.setattr(lock, "PROC", tmp_path / "proc")
    (tmp_path / "proc" / "7").mkdir(parents=True)
    file = tmp_path / "file"
    file.touch()
    at = file.stat()
    own = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    kind, pid, name = changes.get("kind", "FLOCK"), changes.get("pid", 7), changes.get("name", own)
    if kind:
        (tmp_path / "proc" / "locks").write_text(
            f"1: POSIX  ADVISORY  WRITE 3 {name} 0 EOF\n"
            f"2: {kind}  ADVISORY  WRITE {pid} {name} 0 EOF\n"
            f"2: -> {kind}  ADVISORY  WRITE 9 {name} 0 EOF\n"
        )
    if "command" in changes:
        (tmp_path / "proc" / "7" / "cmdline").write_bytes(changes["command"])
    assert holder(file) == text
