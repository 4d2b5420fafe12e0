"""One run on disk: made, gone on with, appended to, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import tempfile
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench.core import disk
from attnbench.core.disk import HEADER, RECORDS, SPOILED, TORN, StoreError, append_whole
from attnbench.core.lock import holder
from attnbench.core.record import SCHEMA, Record
from attnbench.core.store import Checked, lines_of, numbered, numbered_lines, read_header

APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


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
        """A run to go on with: what a death left behind, if anything, is set aside.

        Raises StoreError where another process writes to it, or it can't be read or written.
        """
        folder = cls(path, read_header(path))
        folder._open()
        try:
            for file in (HEADER, RECORDS):
                disk.remove_drafts(path / file)
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
        folder was taken away, having kept all in another.
        """
        with_paths = ("reason", "remedy", "note", "detail")
        texts = {name: disk.short(getattr(record, name)) for name in with_paths}
        line = record.with_(**texts).line().encode() + b"\n"
        self.check_in_place(line)
        try:
            append_whole(self._descriptor, line)
        except OSError as error:
            raise self._no_room(RECORDS, error) from None

    def supersede(self, keys: Collection[str]) -> int:
        """Take these cells' lines out, for the cells are measured again; how many lines it was.

        They go to ``spoiled.jsonl`` as they are. Raises StoreError where there is no room.
        """
        numbers = lines_of(self.path, keys)
        try:
            self._move(numbers, SPOILED)
        except OSError as error:
            raise self._no_room(SPOILED, error) from None
        return len(numbers)

    def check_in_place(self, line: bytes = b"") -> None:
        """Raise :class:`StoreError` where the records are not under the run's path any more.

        What was measured, and ``line`` besides, is then kept in a folder that the message names.
        """
        if _still_names(self.path / RECORDS, self._descriptor):
            if not (self.path / HEADER).exists():
                self.save_header()
            return
        gone = f"{self.path / RECORDS} was moved or deleted while the run went on"
        try:
            data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0) + line
            beside = self.path.parent if self.path.parent.is_dir() else None
            self.path = Path(tempfile.mkdtemp(prefix=f"{self.path.name}-kept-", dir=beside))
            self.save_header()
            disk.write_whole(self.path / RECORDS, data)
        except OSError as error:
            gone += f", and what was measured can't be kept elsewhere: {error.strerror}"
            raise StoreError(gone) from None
        where = f"What was measured is kept in {self.path}"
        raise StoreError(f"{gone}. {where}: {self.resumed_by} goes on with it")

    def close(self) -> None:
        """Let the next process have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """Have the run alone, or say who has it."""
        path = self.path / RECORDS
        try:
            while self._descriptor < 0:
                self._descriptor = os.open(path, APPENDING, 0o666)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _still_names(path, self._descriptor):
                    self.close()  # it was replaced between the two calls
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
        """Take out what doesn't count: damaged lines, and all but one of those of one cell.

        What a death left unfinished becomes a line, and is damaged like any other; or else only
        its end was missing.
        """
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            append_whole(self._descriptor, b"\n")
        checked = Checked(self.path)
        for _ in checked.records():
            pass
        kinds = ("damaged", "repeated", "unlike")
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
        the records; the lock is kept at every moment.
        """
        if not numbers:
            return
        other = os.open(self.path / file, APPENDING, 0o666)
        try:  # a death may have begun with these lines
            there = os.pread(other, os.fstat(other).st_size, 0)
            os.ftruncate(other, there.rfind(b"\n") + 1)  # the line is still among the records
            before = set(there.splitlines(keepends=True))
            taken = [line for n, line in numbered_lines(self.path) if n in numbers]
            append_whole(other, b"".join(line for line in taken if line not in before))
        finally:
            os.close(other)
        disk.sync_folder(self.path)
        path = self.path / RECORDS
        new, draft = disk.open_draft(path)
        try:
            with open(new, "ab", closefd=False) as out:
                out.writelines(x for n, x in numbered_lines(self.path) if n not in numbers)
            os.fsync(new)
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.replace(path)
        finally:  # whatever stopped it: what is appended goes to the file that has the name
            if _still_names(path, new):
                self.close()
                self._descriptor = new
            else:
                os.close(new)
                draft.unlink(missing_ok=True)
        disk.sync_folder(self.path)

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


def _still_names(path: Path, descriptor: int) -> bool:
    """Whether a name still stands for what was opened under it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
