"""One run on disk: created, resumed, appended to, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench.core import disk
from attnbench.core.disk import HEADER, RECORDS, StoreError, append_whole
from attnbench.core.record import SCHEMA, Record
from attnbench.core.store import StoredRecords, read_header

APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class RunFolder:
    """One run on disk, and the records in it, open for appending by one process at a time."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self.stored = StoredRecords(path, self.name)
        self._keys = set[str]()
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
            path = out / machine / (stamp + (f"-{attempt}" if attempt else ""))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if not out.is_dir():  # a link to nothing
                    raise StoreError(f"{out} is no folder; give another with --out") from None
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
        """An earlier run with its records. Raises StoreError where another process writes to it, or
        it can't be read or written.
        """
        folder = cls(path, read_header(path))
        folder._open()
        try:
            folder.stored = StoredRecords.read(path)
        except StoreError:
            folder.close()
            raise
        folder._keys = {record.key for record in folder.stored.records}
        return folder

    def __contains__(self, key: str) -> bool:
        """Whether a cell has a record."""
        return key in self._keys

    def save_header(self) -> None:
        """Write the header whole, or not at all; raises StoreError where it can't be written."""
        try:
            text = json.dumps(disk.short_in(self.header), indent=1)
            disk.write_whole(self.path / HEADER, (text + "\n").encode())
        except OSError as error:
            raise self._cant_write(error) from None

    def append(self, record: Record) -> None:
        """One record, on disk when this returns; it replaces an earlier one of its measurement.

        Raises :class:`StoreError` where it has no room, and nothing of it is left; and where the
        folder was moved or deleted.
        """
        self.check_in_place()
        with_paths = ("reason", "remedy", "note", "detail")
        record = record.with_(**{name: disk.short(getattr(record, name)) for name in with_paths})
        try:
            append_whole(self._descriptor, record.line().encode() + b"\n")
        except OSError as error:
            raise StoreError(
                f"can't write to {self.path / RECORDS}: {error.strerror}; what was measured before "
                f"is kept: make room, then {self.resumed_by}"
            ) from None
        self.stored.add(record)
        self._keys.add(record.key)

    def check_in_place(self) -> None:
        """Raise :class:`StoreError` where the records are not under the run's path any more."""
        try:
            there = os.path.samestat((self.path / RECORDS).stat(), os.fstat(self._descriptor))
        except OSError:
            there = False
        if not there:
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
        """Lock the run; what a death left of its last line goes, or only lacked its end."""
        try:
            self._descriptor = os.open(self.path / RECORDS, APPENDING, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if size := os.fstat(self._descriptor).st_size:
                start = (self.path / RECORDS).read_bytes().rfind(b"\n") + 1
                tail = os.pread(self._descriptor, size - start, start)
                if tail.endswith(b"}"):
                    append_whole(self._descriptor, b"\n")
                else:
                    os.ftruncate(self._descriptor, start)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreError(
                    f"another process is writing to {self.path}; wait until it ends, or start a "
                    "run of your own"
                ) from None
            raise self._cant_write(error) from None

    def _cant_write(self, error: OSError) -> StoreError:
        return StoreError(
            f"can't write to {self.path}: {error.strerror}; make it writable, or start a new run "
            "elsewhere with --out"
        )
