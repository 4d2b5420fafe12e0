"""Claims in words and tables: what is published, our figures beside it, and the verdict.

The functions take claims as plain values, as the evidence keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.markup import escape

from attnbench.core.format import NONE, percent, three
from attnbench.features.claims.claim import (
    Claim,
    ClaimOutcome,
    ClaimRule,
    ClaimVerdict,
    PointStanding,
)
from attnbench.report.tables import (
    BAD,
    BOLD,
    FAINT,
    GOOD,
    Column,
    Styled,
    Table,
    columns,
    console,
    show,
    show_facts,
)

MARK = "*"
"""Beside a limit that is ours."""
FOOTNOTE = f"{MARK} the limit is ours: the source gives no figure for it"
SHORT_UNITS = ("TFLOP/s",)
"""Units that stand beside each number; what the point says holds the others."""
STYLES: dict[str, str] = {
    ClaimVerdict.REPRODUCED: GOOD,
    ClaimVerdict.NOT_REPRODUCED: BAD,
    PointStanding.HOLDS: GOOD,
    PointStanding.FAILS: BAD,
    PointStanding.CANT_TELL: BAD,
}


class PointWords(NamedTuple):
    """One point, in words."""

    name: str
    says: str
    theirs: str
    """What was published, and the region that the rule makes of it."""
    ours: str
    interval: str
    held: str
    why: str
    """Why there is no figure."""


def points(row: Mapping[str, Any]) -> Iterator[PointWords]:
    """The points of a claim."""
    for each in row["points"]:
        ours = each.get("ours") or {}
        value, low, high = (ours.get(key) for key in ("value", "low", "high"))
        unit = f" {each['unit']}" if each["unit"] in SHORT_UNITS else ""
        yield PointWords(
            each["name"],
            each["says"],
            theirs(each),
            NONE if value is None else number(value) + unit,
            "" if low is None or high is None else f"{number(low)} to {number(high)}",
            each.get("held", ""),
            ours.get("why", ""),
        )


def theirs(point: Mapping[str, Any]) -> str:
    """``354 ± 10 % TFLOP/s``; ``0.00092, at most 0.0092``"""
    published, tolerance = point["published"], point["tolerance"]
    rule, text, share = ClaimRule(point["rule"]), number(published), abs(published) * tolerance
    match rule:
        case ClaimRule.NEAR:
            words = f"{text} ± {percent(tolerance)}"
        case ClaimRule.WITHIN:
            words = f"{text} ± {number(tolerance)}"
            if not published:
                words = f"0, within {number(tolerance)}"
        case ClaimRule.AT_MOST | ClaimRule.AT_LEAST:
            limit = published + (share if rule is ClaimRule.AT_MOST else -share)
            words = f"{text}; {rule} {number(limit)}" if share else f"{rule} {text}"
    mark = MARK if point["threshold_is_ours"] else ""
    unit = f" {point['unit']}" if point["unit"] in SHORT_UNITS else ""
    return words + mark + unit


def number(value: float) -> str:
    """Three digits, of a negative number too."""
    return f"-{three(-value)}" if value < 0 else three(value)


def counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """``12 reproduced, 1 not reproduced, 4 not run``"""
    order = ["reproduced", "not reproduced", "not run", "needs other hardware"]
    verdicts = [row["verdict"] for row in rows]
    known = [verdict for verdict in order if verdict in verdicts]
    others = sorted(set(verdicts) - set(order))
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in [*known, *others])


def alike(some: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], list[str]]:
    """Of triples of name, verdict and reason: the names by verdict and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, verdict, reason in some:
        found.setdefault((verdict, reason), []).append(name)
    return found


def list_claims(some: Sequence[Claim]) -> None:
    """``--list``: what is claimed, and what it takes."""
    names = ("claim", "what is said", "points", "needs", "min")
    heads = columns(*names, right=("points", "min"), wrap=("what is said", "needs"))
    rows = [(c.name, c.statement, len(c.points), c.needs, f"{c.minutes:.1f}") for c in some]
    show(Table("", heads, rows))


def line(one: ClaimOutcome) -> str:
    """One outcome as a sentence."""
    why = f" ({one.reason})" if one.reason else ""
    took = f" [{one.took_s:.0f} s]" if one.took_s else ""
    return f"{one.claim.name}: {one.verdict}{why}{took}"


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Every point of every claim that was tried; then the others with the reason; the count."""
    tried = [row for row in rows if any(point.get("ours") for point in row["points"])]
    left = [row for row in rows if row not in tried]
    marked = False
    if tried:
        names = ("claim and points", "theirs", "ours", "interval", "")
        lines: list[tuple[str | Styled, ...]] = []
        for row in tried:
            lines.append((Styled(row["name"], BOLD), "", "", "", _styled(row["verdict"])))
            for point in points(row):
                figures = (point.theirs, point.ours, point.interval)
                lines.append((f"  {point.says}", *figures, _styled(point.held)))
                marked = marked or MARK in point.theirs
        show(Table("", columns(*names, right=("ours",), wrap=names[:2]), lines))
    out = console()
    if tried and left:
        out.print()
    if left:
        both = ("claims without a figure", "why, and what to do")
        reasons = alike((row["name"], row["verdict"], _why(row)) for row in left)
        rest = [
            (", ".join(some), _styled(verdict), why) for (verdict, why), some in reasons.items()
        ]
        show(Table("", columns(both[0], "", both[1], wrap=both), rest))
    if marked:
        out.print(f"\n{FOOTNOTE}", style=FAINT)
    out.print(f"\n{len(rows)} claim{'' if len(rows) == 1 else 's'}: {counts(rows)}")


def details(row: Mapping[str, Any]) -> None:
    """One claim: what is said and by whom, the setting, the figures behind it, the command."""
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
    show_facts(facts.items())
    out = console()
    for note in row["notes"]:
        out.print(escape(f"! {note}"), style=FAINT)
    for each in row["tables"]:
        heads = [Column(str(name), wrap=True, text=_text) for name in each["columns"]]
        show(Table(each["title"], heads, each["rows"]))
    out.print()


def _text(value: str | float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else number(value)


def _why(row: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, [row["reason"], row["remedy"]]))


def _styled(word: str) -> Styled:
    return Styled(word, STYLES.get(word, FAINT))
