"""Claims in words and tables: what is published, our figures beside it, and the verdict.

The functions take claims as plain values, as the evidence keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.markup import escape

from attnbench.core.format import NONE, counted, percent, three
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
        yield PointWords(
            each["name"],
            each["says"],
            theirs(each),
            NONE if value is None else number(value) + _unit(each),
            "" if low is None or high is None else f"{number(low)} to {number(high)}",
            each.get("held", ""),
            ours.get("why", ""),
        )


def theirs(point: Mapping[str, Any]) -> str:
    """``354 ± 10 % TFLOP/s``; ``0.00092, at most 0.0092``"""
    published, tolerance = point["published"], point["tolerance"]
    rule, text, share = ClaimRule(point["rule"]), number(published), abs(published) * tolerance
    limit = published + (share if rule is ClaimRule.AT_MOST else -share)
    if rule is ClaimRule.NEAR:
        words = f"{text} ± {percent(tolerance)}"
    elif rule is ClaimRule.WITHIN:
        words = f"{text} ± {number(tolerance)}" if published else f"0, within {number(tolerance)}"
    else:
        words = f"{text}; {rule} {number(limit)}" if share else f"{rule} {text}"
    return words + MARK * point["threshold_is_ours"] + _unit(point)


def _unit(point: Mapping[str, Any]) -> str:
    return f" {point['unit']}" if point["unit"] in SHORT_UNITS else ""


def number(value: float) -> str:
    """Three digits, of a negative number too."""
    return f"-{three(-value)}" if value < 0 else three(value)


def counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """``12 reproduced, 1 not reproduced, 4 not run``"""
    verdicts = [row["verdict"] for row in rows]
    order = dict.fromkeys([*ClaimVerdict, *sorted(verdicts)])
    return ", ".join(f"{n} {verdict}" for verdict in order if (n := verdicts.count(verdict)))


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
    tried: list[tuple[str | Styled, ...]] = []
    left: list[tuple[str, str, str]] = []
    for row in rows:
        if any(point.get("ours") for point in row["points"]):
            tried.append((Styled(row["name"], BOLD), "", "", "", _styled(row["verdict"])))
            tried += [
                (f"  {point.says}", point.theirs, point.ours, point.interval, _styled(point.held))
                for point in points(row)
            ]
        else:
            why = "; ".join(filter(None, [row["reason"], row["remedy"]]))
            left.append((row["name"], row["verdict"], why))
    out = console()
    if tried:
        names = ("claim and points", "theirs", "ours", "interval", "")
        show(Table("", columns(*names, right=("ours",), wrap=names[:2]), tried))
    if tried and left:
        out.print()
    if left:
        both = ("claims without a figure", "why, and what to do")
        rest = [(", ".join(some), _styled(word), why) for (word, why), some in alike(left).items()]
        show(Table("", columns(both[0], "", both[1], wrap=both), rest))
    if any(MARK in str(words) for _, words, *_ in tried):
        out.print(f"\n{FOOTNOTE}", style=FAINT)
    out.print(f"\n{counted(len(rows), 'claim')}: {counts(rows)}")


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


def _styled(word: str) -> Styled:
    return Styled(word, STYLES.get(word, FAINT))
