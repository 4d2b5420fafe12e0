"""What lies beside a machine's runs: its own facts, and the evidence of verbs that keep some."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from attnbench.core import disk
from attnbench.core.disk import MACHINE, SELFCHECK, StoreError, from_json, unwritable
from attnbench.core.record import PROTOCOL
from attnbench.core.settings import allocator_of
from attnbench.core.stats import LEAST_MARGIN

if TYPE_CHECKING:
    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings


def check_writable(out: Path, machine: Machine) -> None:
    """Raise StoreError now where nothing could be kept later."""
    folder = out / machine.name
    try:
        disk.writable_folder(folder)
    except OSError as error:
        raise unwritable(f"under {folder}", error) from None


def save_beside(out: Path, machine: str, file: str, facts: Mapping[str, Any]) -> Path:
    """A file beside the machine's runs, whole or not at all; the one before is replaced. Raises
    StoreError where it can't be written.
    """
    path = out / machine / file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_whole(path, (json.dumps(disk.short_in(facts), indent=1) + "\n").encode())
    except OSError as error:
        raise unwritable(str(path), error) from None
    return path


def stored_floors(out: Path, machine: Machine, settings: Settings) -> list[dict[str, Any]]:
    """The noise floors measured on this machine as it is now; none where something differs."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        facts = from_json((out / machine.name / MACHINE).read_text())
        was = facts["machine"]
        then = facts["protocol"], was["versions"], was["cpu"], facts["settings"]["threads"]
        same = then == (PROTOCOL, machine.versions, machine.cpu, settings.threads)
        if same and allocator_of(facts) == settings.allocator:
            return [{name: float(f[name]) for name in ("call_s", "floor")} for f in facts["noise"]]
    return []


def floor_first(when: str) -> str:
    """The line of a command that has to measure a floor, as none is stored."""
    return (
        f"no noise floor is stored for this machine, so it is measured {when}; "
        "'attnbench env' measures it once"
    )


def stored_margin(out: Path, machine: Machine, settings: Settings) -> float:
    """What counts as no difference here: a hundredth, or the largest floor where that is more."""
    floors = stored_floors(out, machine, settings)
    return max(LEAST_MARGIN, *(floor["floor"] for floor in floors), 0.0)


def stored_selfcheck(out: Path, machine: str) -> dict[str, Any] | None:
    """The last self-check of a machine; None where there is none that can be read.

    Its ``line`` is what a report says; one of another ``protocol`` says nothing of this ruler.
    """
    with suppress(OSError, ValueError):
        facts: dict[str, Any] = from_json((out / machine / SELFCHECK).read_text())
        if isinstance(facts, dict) and facts.get("protocol") == PROTOCOL:
            return facts
    return None


FOLDER = "evidence"
Kind = Literal["reproduce", "recall", "model", "real", "lm", "caches"]
SCHEMA = 1
STAMP = "%Y%m%d-%H%M%S-%f"
"""Of a name: to the microsecond, for two processes may end within a second."""


class Evidence(msgspec.Struct, frozen=True):
    """One file of it."""

    kind: Kind
    made: Mapping[str, Any]
    """The machine, the versions, the command, when, and what the kind needs to be made again."""
    rows: Sequence[dict[str, Any]]
    schema: int = SCHEMA

    @property
    def partial(self) -> bool:
        """Whether it was stopped before its end."""
        return bool(self.made.get("stopped"))


def made_here(machine: Machine, **more: Any) -> dict[str, Any]:
    """Where and how evidence is made by this process."""
    return {
        "machine": machine.facts(),
        "protocol": PROTOCOL,
        "command": shlex.join(["attnbench", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }


def evidence_name(kind: str) -> str:
    """A name for a file that begins now."""
    return f"{FOLDER}/{datetime.now(UTC):{STAMP}}-{kind}.json"


def save_evidence(out: Path, evidence: Evidence, name: str = "") -> Path:
    """A file of its own, named by its time and its kind if no name is given; raises as
    :func:`save_beside`.
    """
    facts, name = msgspec.to_builtins(evidence), name or evidence_name(evidence.kind)
    return save_beside(out, evidence.made["machine"]["name"], name, facts)


def evidence_of(machine: Path, kind: str) -> Iterator[Path]:
    """The files of one kind in a machine's folder, the newest first."""
    yield from sorted((machine / FOLDER).glob(f"*-{kind}.json"), reverse=True)


def newest_evidence(
    folder: Path, kind: str, show: Callable[[Evidence], dict[str, Any]]
) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """The newest file of a kind with what it shows, or with why it can't be shown; one that was
    stopped only where there is no whole one.
    """
    stopped: list[tuple[Path, dict[str, Any] | str]] = []
    for file in evidence_of(folder, kind):
        try:
            evidence = read_evidence(file)
            shown: dict[str, Any] | str = show(evidence)
        except StoreError as error:
            yield file, str(error)
            return
        except Exception as error:  # something in it is not what it should be
            yield file, f"{file.name} can't be shown ({type(error).__name__}: {error})"
            return
        if not evidence.partial:
            yield file, shown
            return
        stopped.append((file, shown))
    yield from stopped[:1]


def read_evidence(path: Path) -> Evidence:
    """One file; raises StoreError for what is none, is damaged, or is of a newer form."""
    try:
        evidence = msgspec.json.decode(path.read_bytes(), type=Evidence)
    except OSError as error:
        raise StoreError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise StoreError(f"{path} is not an evidence file, or is damaged") from None
    if evidence.schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {evidence.schema}, newer than the {SCHEMA} this "
            "attnbench reads: update attnbench"
        )
    return evidence
