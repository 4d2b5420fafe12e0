"""One run on disk: made, gone on with, appended to, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import tempfile
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from attnbench.core.disk import (
    HEADER,
    RECORDS,
    SPOILED,
    TORN,
    StoreError,
    append_whole,
    make_folder,
    open_draft,
    remove_drafts,
    short,
    short_in,
    sync_folder,
    unwritable,
    write_some,
    write_whole,
)
from attnbench.core.lock import holder
from attnbench.core.record import SCHEMA, Record
from attnbench.core.store import Checked, lines_of, numbered, read_header, whole_length

APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE_BYTES = 1 << 19
"""So much is copied at a time."""


class RunFolder:
    """One run on disk, open for appending by one process at a time."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self.set_aside = ""
        """What a death had left behind when the run was reopened: a sentence, or nothing."""
        self._records: int | None = None

    @property
    def name(self) -> str:
        """The run's name, as records carry it."""
        return self.path.name

    @property
    def resumed_by(self) -> str:
        """The command that goes on with it."""
        tables = [
            word
            for table in self.header.get("tables", ())
            for word in ("--table", short(str(table)))
        ]
        return shlex.join(["attnbench", "run", "--resume", str(self.path), *tables])

    @classmethod
    def create(cls, out: Path, machine: str, header: dict[str, Any]) -> RunFolder:
        """A new run under ``out/machine``, named by the moment."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            path = out / machine / (stamp + f"-{attempt}" * bool(attempt))
            try:
                make_folder(path)
            except FileExistsError:
                if out.exists() and not out.is_dir():
                    raise StoreError(f"{out} is a file; --out takes a folder") from None
                continue
            except OSError as error:
                raise unwritable(f"results under {out}", error) from None
            break
        else:
            raise StoreError(f"there are 100 runs of this second under {out}")
        folder = cls(path, {"run": path.name, "schema": SCHEMA, **header})
        folder.save_header()
        folder._open()
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """A run to go on with: what a death left behind, if anything, is set aside."""
        folder = cls(path, read_header(path))
        folder._open()
        try:
            for file in (HEADER, RECORDS):
                remove_drafts(path / file)
            folder._set_torn_lines_aside()
            folder._set_lines_aside()
        except OSError as error:
            folder.close()
            raise _cant_write(path, error) from None
        except StoreError:
            folder.close()
            raise
        return folder

    def save_header(self) -> None:
        """Write the header whole, or not at all."""
        try:
            text = json.dumps(short_in(self.header), indent=1)
            write_whole(self.path / HEADER, (text + "\n").encode())
        except OSError as error:
            raise _cant_write(self.path, error) from None

    def append(self, record: Record) -> None:
        """One record, on disk when this returns; where it has no room, nothing of it is left.

        Raises :class:`StoreError` where the folder was taken away, having kept all in another.
        """
        assert self._records is not None
        shortened = record.with_(
            reason=short(record.reason),
            remedy=short(record.remedy),
            note=short(record.note),
            detail=short(record.detail),
        )
        line = shortened.line().encode() + b"\n"
        self.insist(line)
        try:
            append_whole(self._records, line)
        except OSError as error:
            raise self._no_room(RECORDS, error) from None

    def supersede(self, keys: Collection[str]) -> int:
        """Take these cells' lines out, for the cells are measured again; how many lines it was.

        They go to ``spoiled.jsonl`` as they are. A death at any moment leaves each line in at
        least one of the two files, and no cell twice among the records. However long the run is,
        a piece of it at a time is held.
        """
        taken = list(lines_of(self.path, keys))
        if taken:
            try:
                self._keep_as_spoiled([line for _, line in taken])
                self._put_in_place({start: len(line) for start, line in taken})
            except OSError as error:
                raise self._no_room(SPOILED, error) from None
        return len(taken)

    def insist(self, line: bytes = b"") -> None:
        """Raise :class:`StoreError` where the records are not under the run's path any more.

        What was measured, and ``line`` besides, is then kept in a folder that the message names.
        """
        assert self._records is not None
        if not _is(self.path / RECORDS, self._records):
            raise StoreError(self._kept_elsewhere(line))
        if not (self.path / HEADER).exists():
            self.save_header()

    def _kept_elsewhere(self, line: bytes) -> str:
        assert self._records is not None
        gone = f"{self.path / RECORDS} was moved or deleted while the run went on"
        try:
            now = Path(f"/proc/self/fd/{self._records}").readlink()
            if now.name == RECORDS and (now.parent / HEADER).exists() and _is(now, self._records):
                append_whole(self._records, line)
            else:
                now = self._rescued(line)
        except OSError as error:
            return f"{gone}, and what was measured can't be kept elsewhere: {error.strerror}"
        self.path = now.parent
        where = f"What was measured is kept in {now.parent}"
        return f"{gone}. {where}: {self.resumed_by} goes on with it"

    def _rescued(self, line: bytes) -> Path:
        """The records in a new folder beside the run's, or among the temporary ones."""
        assert self._records is not None
        data = os.pread(self._records, os.fstat(self._records).st_size, 0) + line
        beside = self.path.parent if self.path.parent.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix=f"{self.path.name}-kept-", dir=beside))
        self.path = folder
        self.save_header()
        write_whole(folder / RECORDS, data)
        return folder / RECORDS

    def close(self) -> None:
        """Let the next process have it."""
        if self._records is not None:
            os.close(self._records)
            self._records = None

    def _open(self) -> None:
        """Have the run alone, or say who has it."""
        path = self.path / RECORDS
        try:
            while self._records is None:
                self._records = os.open(path, APPENDING, 0o666)
                fcntl.flock(self._records, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is(path, self._records):
                    self.close()  # it was replaced between the two calls
            sync_folder(self.path)
        except BlockingIOError:
            self.close()
            raise StoreError(
                f"{holder(path)} is writing to {self.path}; wait until that one ends, or start a "
                "run of your own"
            ) from None
        except OSError as error:
            self.close()
            raise _cant_write(self.path, error) from None

    def _set_torn_lines_aside(self) -> None:
        path = self.path / RECORDS
        data = path.read_bytes()
        whole = whole_length(data)
        if whole == len(data):
            return
        torn = data[whole:] if data.endswith(b"\n") else data[whole:] + b"\n"
        _append_to(self.path / TORN, torn)
        assert self._records is not None
        os.ftruncate(self._records, whole)
        os.fsync(self._records)
        lines = torn.count(b"\n")
        what = "the last line" if lines == 1 else f"what the last {lines} lines hold"
        self.set_aside = (
            f"{what} of {path} was left unfinished when the run died: it is set aside in {TORN}, "
            "and what is missing is measured again"
        )

    def _set_lines_aside(self) -> None:
        """Take out what doesn't count: damaged lines, and all but one of those of one cell."""
        checked = Checked(self.path)
        for _ in checked.records():
            pass
        numbers = sorted({*checked.damaged, *checked.again, *checked.unlike})
        if not numbers:
            return
        without, start = dict[int, int](), 0
        with (self.path / RECORDS).open("rb") as data:
            for number, line in enumerate(data, 1):
                if number in numbers:
                    without[start] = len(line)
                    _append_to(self.path / TORN, line)
                start += len(line)
        self._put_in_place(without)
        said = (
            f"{numbered(numbers)} of {self.path / RECORDS} can't be read, or another line is of "
            f"the same cell: set aside in {TORN}, and what is missing is measured again"
        )
        self.set_aside = "; ".join(filter(None, [self.set_aside, said]))

    def _keep_as_spoiled(self, lines: Sequence[bytes]) -> None:
        """At the end of the file of what was spoiled, but for what a death left there before."""
        path, new, whole = self.path / SPOILED, dict.fromkeys(lines), 0
        if path.exists():
            with path.open("rb") as there:
                for line in there:
                    if line.endswith(b"\n"):
                        whole += len(line)
                        new.pop(line, None)
            if whole < path.stat().st_size:
                os.truncate(path, whole)  # the line is still among the records
        _append_to(path, b"".join(new))

    def _put_in_place(self, without: Mapping[int, int]) -> None:
        """The lines but for some, by where they start and how long they are.

        The lock is kept at every moment.
        """
        path = self.path / RECORDS
        new, draft = open_draft(path)
        try:
            with path.open("rb") as there:
                for start, length in sorted(without.items()):
                    _copy(there, new, start - there.tell())
                    there.seek(length, os.SEEK_CUR)
                _copy(there, new, path.stat().st_size - there.tell())
            os.fsync(new)
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.replace(path)
        finally:  # whatever stopped it: what is appended goes to the file that has the name
            if _is(path, new):
                self.close()
                self._records = new
            else:
                os.close(new)
                draft.unlink(missing_ok=True)
        sync_folder(self.path)

    def _no_room(self, file: str, error: OSError) -> StoreError:
        return StoreError(
            f"can't write to {self.path / file}: {error.strerror}; what was measured before is "
            f"kept: make room, then {self.resumed_by}"
        )


def _append_to(path: Path, data: bytes) -> None:
    """At the end of a file that may not be there yet."""
    descriptor = os.open(path, APPENDING, 0o666)
    try:
        append_whole(descriptor, data)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def _copy(source: BinaryIO, target: int, length: int) -> None:
    """So many bytes, a piece at a time."""
    while length > 0 and (piece := source.read(min(length, PIECE_BYTES))):
        write_some(target, piece)
        length -= len(piece)


def _is(path: Path, descriptor: int) -> bool:
    """Whether a name still stands for what was opened under it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _cant_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"can't write to {path}: {error.strerror}; make it writable, or start a new run elsewhere "
        "with --out"
    )
