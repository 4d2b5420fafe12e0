"""What was found out besides records: claims put to the test, what a variant costs a model.

Each is one file, ``results/<machine>/evidence/<stamp>-<kind>.json``: where and how it was made, and
its rows. A file is written whole at the end; nothing in it is ever changed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.record import PROTOCOL
from attnbench.store.beside import save_beside
from attnbench.store.disk import StoreError, from_json
from attnbench.store.evidence_sound import unsound

if TYPE_CHECKING:
    from attnbench.machine import Machine

FOLDER = "evidence"
KINDS = ("reproduce", "recall", "model", "real")
SCHEMA = 1


@dataclass(frozen=True)
class Evidence:
    """One file of it."""

    kind: str
    made: Mapping[str, Any]
    """The machine, the versions, the command, when, and what the kind needs to be made again."""
    rows: Sequence[Mapping[str, Any]]
    schema: int = SCHEMA

    @property
    def partial(self) -> bool:
        """Whether it was stopped before its end."""
        return bool(self.made.get("stopped"))


def made_here(machine: Machine, **more: Any) -> dict[str, Any]:
    """Where and how evidence is made by this process."""
    return {
        "machine": machine.to_dict(), "protocol": PROTOCOL,
        "command": shlex.join(["attnbench", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"), **more,
    }  # fmt: skip


def save_evidence(out: Path, found: Evidence) -> Path:
    """A file of its own, named by its time and its kind."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{FOLDER}/{stamp}-{found.kind}.json"
    return save_beside(out, found.made["machine"]["name"], name, asdict(found))


def read_evidence(path: Path) -> Evidence:
    """One file; raises a sentence for what is none, or of a newer form."""
    try:
        values = from_json(path.read_text())
        found = Evidence(values["kind"], values["made"], values["rows"], values["schema"])
        whole = found.kind in KINDS and all(isinstance(row, dict) for row in found.rows)
        machine = found.made["machine"]["name"]
    except OSError as error:
        raise StoreError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{path} is no evidence of attnbench, or is damaged") from None
    if not isinstance(found.schema, int) or found.schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {found.schema}, newer than the {SCHEMA} this "
            "attnbench reads: update attnbench"
        )
    if not whole or not isinstance(machine, str):
        raise StoreError(f"{path} is no evidence of attnbench, or is damaged")
    if said := unsound(found.rows):
        raise StoreError(f"{path} is damaged: {said}, which no figure of its kind can be")
    return found


def evidence_of(machine: Path, kind: str) -> Iterator[Path]:
    """The files of one kind in a machine's folder, the newest first."""
    yield from sorted((machine / FOLDER).glob(f"*-{kind}.json"), reverse=True)
