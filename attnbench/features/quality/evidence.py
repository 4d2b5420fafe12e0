"""What a verb does with evidence: keep it, draw it, show it; or show an earlier file again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.command.terminal import say

if TYPE_CHECKING:
    import argparse

    from attnbench.core.evidence import Evidence
    from attnbench.core.machine import Machine


BAD = {"wrong", "failed", "crashed", "timed_out"}
Show = Callable[["Evidence"], None]


def keep(
    given: argparse.Namespace,
    machine: Machine,
    kind: str,
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    show: Show,
) -> None:
    """A file of evidence, its picture beside it where there is one, and the tables."""
    from attnbench.core.evidence import Evidence, made_here, save_evidence
    from attnbench.features.quality import pictures

    found = Evidence(kind, made_here(machine, **facts), rows)
    file = save_evidence(Path(given.out), found)
    drawn = pictures.beside(found, file) if kind == "model" else None
    _show(given, file, found, show)
    say(f"kept in {file}" + f"; drawn in {drawn}" * (drawn is not None))


def again(given: argparse.Namespace, kind: str, show: Show) -> int:
    """What an earlier call kept, shown once more."""
    from attnbench.core.disk import StoreError
    from attnbench.core.evidence import read_evidence

    file = Path(given.source)
    found = read_evidence(file)
    if found.kind != kind:
        raise StoreError(
            f"{file} holds evidence of the kind {found.kind}, and this shows {kind}; each kind is "
            "shown by the form that made it"
        )
    try:
        _show(given, file, found, show)
    except (KeyError, TypeError, ValueError) as error:  # of an earlier form, or edited
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(
            f"{file} can't be shown: something in it is not what it should be ({said})"
        ) from None
    return status(found.rows)


def status(rows: Sequence[Mapping[str, Any]]) -> int:
    """1 where a variant is not what it says, or did not survive; 2 where none could be tried."""
    found = {row["status"] for row in rows}
    if found & BAD:
        return 1
    if "measured" not in found:
        say("attnbench: nothing was measured, for the reasons said")
        return 2
    return 0


def _show(given: argparse.Namespace, file: Path, found: Evidence, show: Show) -> None:
    if given.json:
        print(file.read_text(), end="")
    else:
        show(found)
    if found.partial:
        say("stopped before its end: this is a part of what was asked")
