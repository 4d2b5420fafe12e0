"""Claims in tables: what is said, what we found beside it, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from attnbench.core.format import NONE
from attnbench.features.claims.claim import Claim, ClaimOutcome, ClaimVerdict, PointStanding
from attnbench.features.claims.words import (
    FOOTNOTE,
    MARK,
    PointWords,
    alike,
    counts,
    number,
    points,
)
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

STYLES = {
    ClaimVerdict.REPRODUCED: GOOD,
    ClaimVerdict.NOT_REPRODUCED: BAD,
    ClaimVerdict.NOT_RUN: FAINT,
    ClaimVerdict.NEEDS_OTHER_HARDWARE: FAINT,
    PointStanding.HOLDS: GOOD,
    PointStanding.FAILS: BAD,
    PointStanding.CANT_TELL: BAD,
    PointStanding.NO_FIGURE: FAINT,
}


def listed(some: Sequence[Claim]) -> None:
    """``--list``: what is claimed, and what it takes."""
    made = grid(
        "claim",
        "what is said",
        "points",
        "needs",
        "min",
        right=("points", "min"),
        words=("what is said", "needs"),
    )
    for claim in some:
        made.add_row(
            claim.name,
            escape(claim.statement),
            str(len(claim.points)),
            escape(str(claim.needs)),
            f"{claim.minutes:.1f}",
        )
    put(made)


def line(one: ClaimOutcome) -> str:
    """One claim as a sentence, as soon as it is known."""
    said = f"{one.claim.name}: {one.verdict}"
    why = f" ({one.reason})" if one.reason else ""
    took = f" [{one.took_s:.0f} s]" if one.took_s else ""
    return f"{said}{why}{took}"


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Every point of every claim that was tried, then the others with the reason; the count."""
    tried = [row for row in rows if _tried(row)]
    if tried:
        made = grid(
            "claim and points",
            "theirs",
            "ours",
            "interval",
            "",
            right=("ours",),
            words=("claim and points", "theirs"),
        )
        for row in tried:
            made.add_row(f"[bold]{escape(row['name'])}[/]", "", "", "", _styled(row["verdict"]))
            for point in points(row):
                made.add_row(f"  {escape(point.says)}", *_figures(point), _styled(point.held))
        put(made)
    left = [row for row in rows if not _tried(row)]
    if tried and left:
        console().print()
    if left:
        both = ("claims without a figure", "why, and what to do")
        made = grid(both[0], "", both[1], words=both)
        said_of = ((row["name"], row["verdict"], _why(row)) for row in left)
        for (verdict, said), names in alike(said_of).items():
            made.add_row(escape(", ".join(names)), _styled(verdict), escape(said))
        put(made)
    _foot(rows)


def details(row: Mapping[str, Any]) -> None:
    """One claim: what is said and by whom, the setting, the figures behind it, the command."""
    made = grid("", "", words=[""])
    source = row["source"]
    facts = {
        "claim": row["name"],
        "said": row["statement"],
        "by": f"{source['title']}: {source['author']}",
        "where": source["where"],
        "read": source["read"],
        "setting": row["setting"],
        "verdict": row["verdict"],
        "why": row["reason"],
        "remedy": row["remedy"],
        "again": f"attnbench reproduce {row['name']}",
    }
    for what, said in facts.items():
        if said:
            made.add_row(what, escape(said))
    put(made)
    out = console()
    for note in row["notes"]:
        out.print(escape(f"! {note}"), style=FAINT)
    for each in row["tables"]:
        _behind(each)
    out.print()


def _behind(each: Mapping[str, Any]) -> None:
    """Figures behind the points."""
    console().print(f"\n[bold]{escape(each['title'])}[/]")
    columns = [str(column) for column in each["columns"]]
    made = grid(*columns, words=columns)
    for cells in each["rows"]:
        made.add_row(*(_cell(cell) for cell in cells))
    put(made)


def _cell(value: str | float | None) -> str:
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    return escape(value) if isinstance(value, str) else number(value)


def _tried(row: Mapping[str, Any]) -> bool:
    return any(point.get("ours") for point in row["points"])


def _why(row: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, [row["reason"], row["remedy"]]))


def _figures(point: PointWords) -> tuple[str, str, str]:
    return escape(point.theirs), escape(point.ours), escape(point.interval)


def _styled(word: str) -> str:
    style = next((style for known, style in STYLES.items() if known == word), FAINT)
    return f"[{style}]{escape(word)}[/]"


def _foot(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    if any(MARK in point.theirs for row in rows if _tried(row) for point in points(row)):
        out.print(f"\n{FOOTNOTE}", style=FAINT)
    out.print(f"\n{len(rows)} claim{'s' * (len(rows) != 1)}: {counts(rows)}")
