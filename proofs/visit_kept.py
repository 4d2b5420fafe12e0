"""What a visit keeps: a summary, a log, and its results in one archive, in few files.

Everything is written anew after each step, and beside the old file first: a visit that is cut off
anywhere leaves what was done. The next one reads it back.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PIECE_BYTES = 15 << 20
"""What comes back from a machine is often limited file by file."""
MOST_PIECES = 6
LOG_BYTES, STEP_LOG_BYTES = 12 << 20, 1 << 20
SUMMARY, LOG, ARCHIVE = "summary.json", "log.txt", "results.tar.gz"
ONE = {"status": str, "seconds": float, "line": str}
"""What a step's entry holds."""

WITHIN: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Nothing of an archive lands elsewhere; Python 3.11.3 and before can't be told so."""


class NoVisit(Exception):
    """What lies there is not what a visit leaves; a sentence."""


@dataclass(frozen=True)
class Place:
    """What a visit is to: figures of two machines, or devices, can't go on from each other."""

    machine: str
    """Its kind: another word where driver, torch or Python is another."""
    device: str

    def __str__(self) -> str:
        return f"{self.machine} with {self.device}"


class Kept:
    """The folder that a visit is asked to leave, and the results where they grow."""

    def __init__(
        self, folder: Path, results: Path, place: Place, before: Path | None = None
    ) -> None:
        """``before``: where an earlier visit's files lie, if not in the same folder.

        Raises :class:`NoVisit` where nothing can be kept there, or gone on with from there.
        """
        self.folder, self.results, self.place = folder, results, place
        self.steps: dict[str, dict[str, Any]] = {}
        self.said: list[str] = []
        self._log = b""
        results.mkdir(parents=True, exist_ok=True)
        try:
            if before is not None and not (before / SUMMARY).is_file():
                raise NoVisit(f"{before} holds no visit to go on with: it has no {SUMMARY}")
            folder.mkdir(parents=True, exist_ok=True)
            self._read(before or folder)
            if not (folder / SUMMARY).exists() and (other := _others(folder)):
                raise NoVisit(f"{folder} holds other things ({other}); give a folder of its own")
        except ValueError as error:
            raise NoVisit(
                f"{before or folder} holds no visit that can be gone on with ({error}); "
                "give another folder"
            ) from None
        except OSError as error:
            raise NoVisit(f"{folder} can't hold a visit: {error.strerror}") from None

    def _read(self, folder: Path) -> None:
        if (folder / SUMMARY).exists():
            there, self.steps = _summary(json.loads((folder / SUMMARY).read_text()))
            if there != self.place:
                raise NoVisit(
                    f"{folder} holds a visit to {there}, and this is {self.place}: figures of both "
                    "can't be one visit's; give another folder"
                )
        if (folder / LOG).exists():
            self._log = (folder / LOG).read_bytes()
        unpack(folder, self.results)

    def tell(self, step: str, output: str) -> None:
        """What a step said, for the log; of a long one its end."""
        said = output.encode(errors="replace")[-STEP_LOG_BYTES:]
        self._log = (self._log + f"\n==== {step}\n".encode() + said)[-LOG_BYTES:]

    def write(self) -> None:
        """All of it, as it is now; raises :class:`NoVisit` where there is no room for it."""
        try:
            self._write()
        except OSError as error:
            raise NoVisit(f"{self.folder} can't hold a visit: {error.strerror}") from None

    def _write(self) -> None:
        told = {**asdict(self.place), "steps": self.steps, "amiss": self.said}
        self._put(LOG, self._log)
        data = _packed(self.results)
        pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]
        if len(pieces) > MOST_PIECES:
            told["left_out"] = (
                f"the results are {len(data) >> 20} MiB packed, more than "
                f"{MOST_PIECES * PIECE_BYTES >> 20}: none is kept"
            )
            pieces = []
        names = [ARCHIVE + f".{number}" * bool(number) for number in range(len(pieces))]
        for name, piece in zip(names, pieces, strict=True):
            self._put(name, piece)
        for old in set(self.folder.glob(f"{ARCHIVE}*")) - {self.folder / n for n in names}:
            old.unlink()
        self._put(SUMMARY, json.dumps(told, indent=1).encode())

    def _put(self, name: str, data: bytes) -> None:
        new = self.folder / f".{name}"
        new.write_bytes(data)
        new.replace(self.folder / name)


def unpack(folder: Path, results: Path) -> None:
    """The results that a visit has left in its folder, if any; ValueError for damaged ones."""
    pieces = sorted(folder.glob(f"{ARCHIVE}*"))
    if not pieces:
        return
    whole = io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))
    try:
        with tarfile.open(fileobj=whole) as archive:
            archive.extractall(results, **WITHIN)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"its {ARCHIVE} can't be unpacked: {error}") from None


def _summary(told: Any) -> tuple[Place, dict[str, dict[str, Any]]]:
    """What it is of, and its steps; raises ValueError for what no visit wrote."""
    try:
        steps = {name: {**one} for name, one in told["steps"].items()}
        for one in steps.values():
            if {k: type(one[k]) for k in ONE} != ONE:
                raise TypeError
        return Place(told["machine"], told["device"]), steps
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"its {SUMMARY} is damaged") from None


def _others(folder: Path) -> str:
    """What lies there and is none of a visit's files: one of them."""
    ours = (SUMMARY, LOG, ARCHIVE)
    return min(
        (p.name for p in folder.iterdir() if not p.name.lstrip(".").startswith(ours)), default=""
    )


def _packed(results: Path) -> bytes:
    """Runs and evidence, as they are while somebody writes them; pages can be rendered again."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=6) as archive:
        for file in sorted(results.rglob("*")):
            inside = file.relative_to(results)
            if file.is_file() and "report" not in inside.parts:
                with suppress(FileNotFoundError):  # it had a name for a moment alone
                    data = file.read_bytes()
                    about = tarfile.TarInfo(str(inside))
                    about.size, about.mtime = len(data), int(file.stat().st_mtime)
                    archive.addfile(about, io.BytesIO(data))
    return made.getvalue()
