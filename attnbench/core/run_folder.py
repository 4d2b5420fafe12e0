"""One run on disk: created, resumed, appended to, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench.core import disk
from attnbench.core.disk import HEADER, RECORDS, SPOILED, TORN, StoreError, append_whole
from attnbench.core.lock import holder
from attnbench.core.record import SCHEMA, Record
from attnbench.core.store import Checked, numbered, numbered_lines, read_header

APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class RunFolder:
    """One run on disk, open for appending by one process at a time."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self.set_aside = ""
        """What was taken out when the run was reopened: a sentence, or nothing."""
        self._descriptor = -1

    @property
    def name(self) -> str:
        """The run's name, as records carry it, whatever its folder is called by now."""
        return str(self.header.get("run") or self.path.name)

    @property
    def resumed_by(self) -> str:
        """The command that goes on with it."""
        words = ["attnbench", "run", "--resume", str(self.path), *disk.table_words(self.header)]
        return shlex.join(words)

    @classmethod
    def create(cls, out: Path, machine: str, header: dict[str, Any]) -> RunFolder:
        """A new run under ``out/machine``, named by the moment; raises StoreError where it can't be
        made.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            path = out / machine / (stamp + f"-{attempt}" * bool(attempt))
            try:
                disk.make_folder(path)
            except FileExistsError:
                if out.exists() and not out.is_dir():
                    raise StoreError(f"{out} is a file; --out takes a folder") from None
                continue
            except OSError as error:
                raise disk.unwritable(f"results under {out}", error) from None
            folder = cls(path, {"run": path.name, "schema": SCHEMA, **header})
            folder.save_header()
            folder._open()
            return folder
        raise StoreError(f"there are 100 runs of this second under {out}")

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """An earlier run: what a death left behind, if anything, is set aside.

        Raises StoreError where another process writes to it, or it can't be read or written.
        """
        folder = cls(path, read_header(path))
        folder._open()
        try:
            folder._set_aside()
        except OSError as error:
            folder.close()
            raise folder._cant_write(error) from None
        except StoreError:
            folder.close()
            raise
        return folder

    def save_header(self) -> None:
        """Write the header whole, or not at all; raises StoreError where it can't be written."""
        try:
            text = json.dumps(disk.short_in(self.header), indent=1)
            disk.write_whole(self.path / HEADER, (text + "\n").encode())
        except OSError as error:
            raise self._cant_write(error) from None

    def append(self, record: Record) -> None:
        """One record, on disk when this returns.

        Raises :class:`StoreError` where it has no room, and nothing of it is left; and where the
        folder was moved or deleted.
        """
        self.check_in_place()
        with_paths = ("reason", "remedy", "note", "detail")
        texts = {name: disk.short(getattr(record, name)) for name in with_paths}
        line = record.with_(**texts).line().encode() + b"\n"
        try:
            append_whole(self._descriptor, line)
        except OSError as error:
            raise self._no_room(RECORDS, error) from None

    def supersede(self, keys: Collection[str]) -> int:
        """Take these cells' lines out, for the cells are measured again; how many lines it was.

        They go to ``spoiled.jsonl`` as they are. Raises StoreError where there is no room.
        """
        numbers = [line for line, record in Checked(self.path).records() if record.key in keys]
        try:
            self._move(numbers, SPOILED)
        except OSError as error:
            raise self._no_room(SPOILED, error) from None
        return len(numbers)

    def check_in_place(self) -> None:
        """Raise :class:`StoreError` where the records are not under the run's path any more."""
        if not _still_names(self.path / RECORDS, self._descriptor):
            raise StoreError(
                f"{self.path / RECORDS} was moved or deleted while the run went on; if it was "
                "moved, 'attnbench run --resume' with its new folder goes on with it"
            )

    def close(self) -> None:
        """Let the next process have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """Lock the run, or name the holder."""
        path = self.path / RECORDS
        try:
            self._descriptor = os.open(path, APPENDING, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            disk.sync_folder(self.path)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreError(
                    f"{holder(path)} is writing to {self.path}; wait until that one ends, or start "
                    "a run of your own"
                ) from None
            raise self._cant_write(error) from None

    def _set_aside(self) -> None:
        """Take out damaged lines, and all but the first record of a measurement.

        What a death left unfinished becomes a line, and is damaged like any other; or else only
        its end was missing.
        """
        _end_line(self._descriptor)
        checked = Checked(self.path)
        for _ in checked.records():
            pass
        kinds = ("damaged", "repeated")
        if numbers := {number for kind in kinds for number in checked.faults[kind]}:
            self._move(numbers, TORN)
            self.set_aside = (
                f"{numbered(numbers)} of {self.path / RECORDS} was left unfinished when the run "
                f"died, is damaged, or is of the same measurement as another: set aside in "
                f"{TORN}, and what is missing is measured again"
            )

    def _move(self, numbers: Collection[int], file: str) -> None:
        """Take lines out of the records and put them at the end of another file.

        A death at any moment leaves each line in at least one of the two, and no cell twice among
        the records.
        """
        if not numbers:
            return
        path = self.path / RECORDS
        lines = [(number in numbers, line) for number, line in numbered_lines(self.path)]
        other = os.open(self.path / file, APPENDING, 0o666)
        try:
            _end_line(other)
            append_whole(other, b"".join(line for moves, line in lines if moves))
        finally:
            os.close(other)
        try:
            disk.write_whole(path, b"".join(line for moves, line in lines if not moves))
        finally:  # what is appended goes to the file that has the name, whatever stopped it
            self.close()
            self._open()

    def _no_room(self, file: str, error: OSError) -> StoreError:
        return StoreError(
            f"can't write to {self.path / file}: {error.strerror}; what was measured before is "
            f"kept: make room, then {self.resumed_by}"
        )

    def _cant_write(self, error: OSError) -> StoreError:
        return StoreError(
            f"can't write to {self.path}: {error.strerror}; make it writable, or start a new run "
            "elsewhere with --out"
        )


def _end_line(descriptor: int) -> None:
    """End the last line of a file, which a death may have cut off."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        append_whole(descriptor, b"\n")


def _still_names(path: Path, descriptor: int) -> bool:
    """Whether a name still stands for what was opened under it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
