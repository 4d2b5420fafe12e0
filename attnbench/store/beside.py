"""What lies beside a machine's runs: what was measured of the machine itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.comparison import LEAST_MARGIN
from attnbench.paths import short_in
from attnbench.record import PROTOCOL
from attnbench.store.disk import (
    MACHINE,
    SELFCHECK,
    from_json,
    make_folder,
    unwritable,
    writable_folder,
    write_whole,
)  # fmt: skip

if TYPE_CHECKING:
    from attnbench.machine import Machine


def check_writable(out: Path, machine: Machine) -> None:
    """Raise a sentence now where nothing could be kept later."""
    folder = out / machine.name
    try:
        writable_folder(folder)
    except OSError as error:
        raise unwritable(f"under {folder}", error) from None


def save_beside(out: Path, machine: str, file: str, facts: Mapping[str, Any]) -> Path:
    """A file beside the machine's runs, whole or not at all; the one before is replaced."""
    path = out / machine / file
    try:
        make_folder(path.parent, exist_ok=True)
        write_whole(path, (json.dumps(short_in(facts), indent=1) + "\n").encode())
    except OSError as error:
        raise unwritable(str(path), error) from None
    return path


def save_machine(out: Path, machine: Machine, facts: Mapping[str, Any]) -> Path:
    """What was measured of the machine itself."""
    return save_beside(out, machine.name, MACHINE, facts)


def stored_floors(out: Path, machine: Machine, threads: int) -> list[dict[str, Any]]:
    """The noise floors measured on this machine as it is now; none where something differs."""
    try:
        facts = from_json((out / machine.name / MACHINE).read_text())
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


def stored_selfcheck(out: Path, machine: str) -> dict[str, Any] | None:
    """The last self-check of a machine; None where there is none that can be read.

    Its ``line`` is what a report says; one of another ``protocol`` says nothing of this ruler.
    """
    with suppress(OSError, ValueError):
        found: dict[str, Any] = from_json((out / machine / SELFCHECK).read_text())
        if isinstance(found, dict) and found.get("protocol") == PROTOCOL:
            return found
    return None


def selfcheck_said(header: Mapping[str, Any]) -> str:
    """What the ruler's self-check had said on the machine of a run when it began."""
    found = header.get("selfcheck")
    if not isinstance(found, Mapping) or not found.get("line"):
        return "ruler self-check: not run here yet; 'attnbench selfcheck' takes some minutes"
    return f"{found['line']} ({str(found.get('date', ''))[:10] or 'no date'})"


def stored_margin(out: Path, machine: Machine, threads: int) -> float:
    """What counts as no difference here: a hundredth, or the largest floor where that is more."""
    floors = stored_floors(out, machine, threads)
    return max(LEAST_MARGIN, *(floor["floor"] for floor in floors), 0.0)
