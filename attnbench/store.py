"""``results/`` on disk, and as a DataFrame.

A run is a folder ``results/<machine>/<run>/`` of two files: ``run.json``, the header, and
``records.jsonl``, one record a line, flushed and synced as each cell ends. A line that a death cut
off is set aside when the folder is read, and its cell is measured again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnbench.record import PROTOCOL, SCHEMA, InvalidRecord, Record
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.machine import Machine

HEADER, RECORDS, MACHINE = "run.json", "records.jsonl", "env.json"


class StoreError(CantBeDone):
    """Something about the results folder; a sentence with what to do."""


class RunFolder:
    """One run on disk, open for appending by one process at a time."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self._lines: IO[str] | None = None

    @property
    def name(self) -> str:
        """The run's name, as records carry it."""
        return self.path.name

    @classmethod
    def create(cls, out: Path, machine: str, header: dict[str, Any]) -> RunFolder:
        """A new run under ``out/machine``, named by the moment."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            path = out / machine / (stamp + f"-{attempt}" * bool(attempt))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if out.exists() and not out.is_dir():
                    raise StoreError(f"{out} is a file; --out takes a folder") from None
                continue
            except OSError as error:
                raise _unwritable(f"results under {out}", error) from None
            break
        else:
            raise StoreError(f"there are 100 runs of this second under {out}")
        folder = cls(path, {"run": path.name, "schema": SCHEMA, **header})
        folder.save_header()
        folder._open()
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """A run to go on with: its torn line, if any, cut off and set aside."""
        folder = cls(path, read_header(path))
        folder._open()
        folder._set_torn_line_aside()
        return folder

    def save_header(self) -> None:
        """Write the header whole, or not at all."""
        try:
            _write_whole(self.path / HEADER, self.header)
        except OSError as error:
            raise StoreError(f"can't write to {self.path}: {error.strerror}") from None

    def append(self, record: Record) -> None:
        """One record, on disk when this returns."""
        assert self._lines is not None
        try:
            self._lines.write(record.line() + "\n")
            self._lines.flush()
            os.fsync(self._lines.fileno())
        except OSError as error:
            raise StoreError(
                f"can't write to {self.path / RECORDS}: {error.strerror}; what was measured "
                f"before is kept: make room, then attnbench run --resume {self.path}"
            ) from None

    def close(self) -> None:
        """Let the next process have it."""
        if self._lines is not None:
            with suppress(OSError):  # a line that did not fit is still in the buffer
                self._lines.close()
            self._lines = None

    def _open(self) -> None:
        try:
            self._lines = (self.path / RECORDS).open("a")
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreError(f"another process is writing to {self.path}; wait for it") from None
        except OSError as error:
            raise StoreError(f"can't write to {self.path}: {error.strerror}") from None

    def _set_torn_line_aside(self) -> None:
        path = self.path / RECORDS
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with (self.path / "torn.txt").open("ab") as aside:
                aside.write(data[whole:] + b"\n")
            os.truncate(path, whole)


def read_header(path: Path) -> dict[str, Any]:
    """A run's header; refuses what is no run, or of a newer form."""
    if not path.is_dir():
        raise StoreError(f"there is no run folder {path}; runs lie in results/<machine>/<run>")
    try:
        header: dict[str, Any] = json.loads((path / HEADER).read_text())
        schema = header["schema"]
    except FileNotFoundError:
        raise StoreError(f"{path} holds no {HEADER}: it is not a run; start a new one") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{path / HEADER} is damaged; start a new run") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {schema}, newer than the {SCHEMA} this attnbench "
            "reads: update attnbench, or start a new run"
        )
    return header


def read_records(path: Path) -> Iterator[Record]:
    """A run's records in the order in which they were measured; a torn last line is left out."""
    file = path / RECORDS
    if not file.exists():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Record.from_dict(json.loads(line))
            except (InvalidRecord, ValueError) as error:
                raise StoreError(f"{file}, line {number}: {error}") from None


def check_writable(out: Path, machine: Machine) -> None:
    """Raise a sentence now where nothing could be kept later."""
    folder = out / machine.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(None, "permission denied")
    except OSError as error:
        raise _unwritable(f"under {folder}", error) from None


def save_beside(out: Path, machine: str, file: str, facts: Mapping[str, Any]) -> Path:
    """A file beside the machine's runs, whole or not at all; the one before is replaced."""
    path = out / machine / file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, facts)
    except OSError as error:
        raise _unwritable(str(path), error) from None
    return path


def save_machine(out: Path, machine: Machine, facts: Mapping[str, Any]) -> Path:
    """What was measured of the machine itself."""
    return save_beside(out, machine.name, MACHINE, facts)


def _write_whole(path: Path, facts: Mapping[str, Any]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(facts, indent=1) + "\n")
    draft.replace(path)


def _unwritable(what: str, error: OSError) -> StoreError:
    return StoreError(f"can't write {what}: {error.strerror}; give another folder with --out")


def stored_floors(out: Path, machine: Machine, threads: int) -> list[dict[str, Any]]:
    """The noise floors measured on this machine as it is now; none where something differs."""
    try:
        facts = json.loads((out / machine.name / MACHINE).read_text())
        same = (
            facts["protocol"] == PROTOCOL
            and facts["machine"]["versions"] == machine.versions
            and facts["machine"]["cpu"] == machine.cpu
            and facts["settings"]["threads"] == threads
        )
        floors = [{"call_s": float(f["call_s"]), "floor": float(f["floor"])}
                  for f in facts["noise"]]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return floors if same else []


def find_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """The run folders that are, or lie below, the paths given."""
    for path in paths:
        if not path.exists():
            raise StoreError(f"there is no {path}; runs lie in results/<machine>/<run>")
        if (path / HEADER).exists():
            yield path
        else:
            yield from sorted(p.parent for p in path.rglob(HEADER))


def load(paths: Iterable[str | Path] = ("results",)) -> pd.DataFrame:
    """Records as a DataFrame, a row each: ``time.median_s``, ``problem.q_len`` …, ``machine``."""
    import pandas as pd

    rows = []
    for path in find_runs(Path(p) for p in paths):
        machine = read_header(path).get("machine", {}).get("name", path.parent.name)
        for record in read_records(path):
            rows.append({**record.to_dict(), "machine": machine})
    return pd.json_normalize(rows)
