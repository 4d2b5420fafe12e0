"""The claims that were put to the test on the machines of a report: the newest evidence of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.report.claim_words import FOOTNOTE, MARK, Said, alike, counts, points
from attnbench.report.scenes import Ran
from attnbench.store import StoreError
from attnbench.store.evidence import evidence_of, read_evidence

KIND = "reproduce"


@dataclass(frozen=True)
class Told:
    """One claim, in words."""

    name: str
    statement: str
    source: str
    setting: str
    verdict: str
    why: str
    points: Sequence[Said]

    @property
    def tried(self) -> bool:
        """Whether there is a figure of ours."""
        return any(point.ours != "–" for point in self.points)


@dataclass(frozen=True)
class Claims:
    """Those of one machine."""

    machine: str
    made: str
    """When, and by what command."""
    counts: str
    told: Sequence[Told]
    footnote: str
    note: str = ""
    """Of evidence that can't be read."""

    @property
    def tried(self) -> list[Told]:
        """With figures."""
        return [claim for claim in self.told if claim.tried]

    @property
    def left(self) -> list[tuple[str, str, list[str]]]:
        """Without: verdict, reason, and the names of those of which both are so."""
        return [(*said, names) for said, names in alike(
            (claim.name, claim.verdict, claim.why) for claim in self.told if not claim.tried
        ).items()]  # fmt: skip


def claims_of(runs: Sequence[Ran]) -> list[Claims]:
    """Of each machine's folder that has any."""
    folders = dict.fromkeys(run.path.resolve().parent for run in runs)
    return [found for folder in folders if (found := _newest(folder)) is not None]


def _newest(folder: Path) -> Claims | None:
    """The newest that can be read; what can't is said."""
    note = ""
    for path in evidence_of(folder, KIND):
        try:
            found = read_evidence(path)
            told = [_told(row) for row in found.rows]
            said = f"{str(found.made['started'])[:10]}, {found.made['command']}"
            return Claims(str(found.made["machine"]["name"]), said, counts(found.rows), told,
                          _footnote(told), note)  # fmt: skip
        except StoreError as error:
            note = note or str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            note = note or f"{path.name} is not as attnbench writes it ({type(error).__name__})"
    return Claims(folder.name, "", "", [], "", note) if note else None


def _told(row: Mapping[str, Any]) -> Told:
    source = row["source"]
    where = f"{source['title']}, {source['author']} ({source['where']}); read: {source['read']}"
    why = "; ".join(filter(None, [row["reason"], row["remedy"]]))
    return Told(row["name"], row["statement"], where, row["setting"], row["verdict"], why,
                tuple(points(row)))  # fmt: skip


def _footnote(told: Sequence[Told]) -> str:
    marked = any(MARK in point.theirs for claim in told if claim.tried for point in claim.points)
    return FOOTNOTE if marked else ""
