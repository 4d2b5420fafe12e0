"""One run a GPU: who comes second is told who came first, and nothing is left behind."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
from attnbench.core import lock
from attnbench.core.gpu import Absent
from attnbench.core.lock import DeviceBusy, DeviceLock, LockDenied, path_of

ROOT = Path(attnbench.__file__).parents[1]
HOLD = """
import sys, pathlib
from attnbench.core.lock import DeviceLock
with DeviceLock(["GPU-1"], pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of GPU-1."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


def test_the_second_process_is_told_who_holds_it(tmp_path, holder):
    with pytest.raises(DeviceBusy) as told, DeviceLock(["GPU-1"], tmp_path):
        pass
    said = str(told.value)
    assert said.startswith(f"GPU GPU-1 is being measured by process {holder.pid} (")
    assert "from attnbench.core.lock import DeviceLock" in said or "?" in said
    assert "since 20" in said
    assert "CUDA_VISIBLE_DEVICES" in said


def test_another_gpu_is_free(tmp_path, holder):
    with DeviceLock(["GPU-2"], tmp_path):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_lets_go(tmp_path, holder, how):
    holder.send_signal(how)
    holder.wait(timeout=30)
    with DeviceLock(["GPU-1"], tmp_path):
        pass


def test_within_a_process_it_is_exclusive_too_and_free_again_afterwards(tmp_path):
    busy = pytest.raises(DeviceBusy, match=f"process {os.getpid()} ")
    with DeviceLock(["GPU-1"], tmp_path), busy:
        DeviceLock(["GPU-1"], tmp_path).__enter__()
    with DeviceLock(["GPU-1"], tmp_path):
        pass


def test_who_is_refused_keeps_no_file_open(tmp_path):
    with DeviceLock(["GPU-1"], tmp_path):
        before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names are all that is asked
        for _ in range(3):
            with pytest.raises(DeviceBusy):
                DeviceLock(["GPU-1"], tmp_path).__enter__()
        assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_it_is_let_go_after_an_error_in_the_block(tmp_path):
    with pytest.raises(ZeroDivisionError), DeviceLock(["GPU-1"], tmp_path):
        _ = 1 / 0
    with DeviceLock(["GPU-1"], tmp_path):
        pass


def test_of_several_gpus_it_takes_all_or_none(tmp_path):
    with DeviceLock(["GPU-2"], tmp_path):
        with pytest.raises(DeviceBusy, match="GPU-2"):
            DeviceLock(["GPU-1", "GPU-2", "GPU-1"], tmp_path).__enter__()
        with DeviceLock(["GPU-1"], tmp_path):
            pass
    with DeviceLock(["GPU-1", "GPU-2", "GPU-1"], tmp_path):
        pass


def test_every_user_may_read_and_lock_the_file_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with DeviceLock(["GPU-1"], tmp_path):
            mode = path_of("GPU-1", tmp_path).stat().st_mode & 0o777
    finally:
        os.umask(before)
    assert mode == 0o666


def test_the_file_says_who_holds_it_and_nothing_once_it_is_free(tmp_path):
    path = path_of("GPU-1", tmp_path)
    assert "GPU-1" in path.name
    with DeviceLock(["GPU-1"], tmp_path):
        said = json.loads(path.read_text())
        assert said["pid"] == os.getpid()
        assert set(said) == {"pid", "command", "since"}
    assert path.read_text() == ""


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\udcff"])
def test_a_holder_that_does_not_say_who_it_is_is_busy_all_the_same(tmp_path, garbage):
    with DeviceLock(["GPU-1"], tmp_path):
        path_of("GPU-1", tmp_path).write_text(garbage, errors="surrogateescape")
        with pytest.raises(DeviceBusy, match="another process, which doesn't say who it is"):
            DeviceLock(["GPU-1"], tmp_path).__enter__()


def test_control_characters_of_another_user_do_not_reach_the_terminal(tmp_path):
    with DeviceLock(["GPU-1"], tmp_path):
        said = {"pid": 1, "command": "a\x1b[2Jb" + "c" * 9999, "since": "now"}
        path_of("GPU-1", tmp_path).write_text(json.dumps(said))
        with pytest.raises(DeviceBusy) as told:
            DeviceLock(["GPU-1"], tmp_path).__enter__()
    assert "\x1b" not in str(told.value)
    assert len(str(told.value)) < 1000


# ---- another user's file -------------------------------------------------------------------------


def refusing(monkeypatch, *flags):
    """``os.open`` that may not open with these flags, as under another user."""
    real = os.open

    def opened(path, how, mode=0o777):
        if how & os.O_ACCMODE in flags:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, how, mode)

    monkeypatch.setattr(lock.os, "open", opened)


def test_a_file_that_may_only_be_read_is_locked_all_the_same(tmp_path, monkeypatch):
    path_of("GPU-1", tmp_path).touch()
    real = os.open

    def opened(path, how, mode=0o777):
        if how & os.O_CREAT and Path(path).exists():
            raise FileExistsError
        if how & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, how, mode)

    monkeypatch.setattr(lock.os, "open", opened)
    with DeviceLock(["GPU-1"], tmp_path), pytest.raises(DeviceBusy, match="doesn't say who"):
        DeviceLock(["GPU-1"], tmp_path).__enter__()


def test_a_file_that_may_not_even_be_read_is_a_sentence(tmp_path, monkeypatch):
    refusing(monkeypatch, os.O_RDWR, os.O_RDONLY)
    with pytest.raises(LockDenied) as told:
        DeviceLock(["GPU-1"], tmp_path).__enter__()
    said = str(told.value)
    assert said.startswith("can't tell whether another run is using GPU GPU-1: the lock file ")
    assert "(Permission denied)" in said
    assert "have its owner remove it" in said


def test_where_the_system_has_no_locks_nobody_is_said_to_hold_one(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(LockDenied, match=r"can't tell whether .* \(No locks available\)"):
        DeviceLock(["GPU-1"], tmp_path).__enter__()


def test_a_link_in_the_shared_folder_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    path_of("GPU-1", tmp_path).symlink_to(target)
    with pytest.raises(LockDenied):
        DeviceLock(["GPU-1"], tmp_path).__enter__()
    assert target.read_text() == "kept"


def test_a_file_opened_elsewhere_never_creates_over_anothers(tmp_path, monkeypatch):
    path_of("GPU-1", tmp_path).touch()
    seen, real = [], os.open
    monkeypatch.setattr(lock.os, "open", lambda p, how, *m: (seen.append(how), real(p, how, *m))[1])
    with DeviceLock(["GPU-1"], tmp_path):
        pass
    assert all(how & os.O_EXCL for how in seen if how & os.O_CREAT)
    assert any(not how & os.O_CREAT for how in seen)


# ---- where ---------------------------------------------------------------------------------------


def test_locks_lie_where_all_users_may_write_or_among_what_is_temporary(tmp_path, monkeypatch):
    closed, shared, temporary = (tmp_path / n for n in ("closed", "shared", "temporary"))
    for place in (closed, shared, temporary):
        place.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(lock, "SHARED", (tmp_path / "missing", closed, shared))
    assert lock.folder() == shared
    monkeypatch.setattr(lock, "SHARED", (closed,))
    assert lock.folder() == temporary


def test_devices_are_locked_by_the_uuids_of_their_gpus(monkeypatch):
    uuids = {"cuda": "GPU-1", "cuda:1": "GPU-2", "cuda:7": Absent("there is no cuda:7")}
    monkeypatch.setattr(lock.gpu, "uuid_of", uuids.get)
    boards = [SimpleNamespace(uuid=f"GPU-{i}") for i in (1, 2, 3)]
    monkeypatch.setattr(lock.gpu, "boards", lambda: boards)
    assert lock.lock_for(["cpu", "cuda:1", "cuda"])._uuids == ["GPU-1", "GPU-2"]
    assert lock.lock_for(["cuda:7"])._uuids == ["GPU-1", "GPU-2", "GPU-3"]
    with lock.lock_for(["cpu"]):
        pass


def test_a_uuid_can_not_lead_out_of_the_folder(tmp_path):
    assert path_of("../../etc/x", tmp_path).parent == tmp_path
