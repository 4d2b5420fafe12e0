"""Claims, as the evidence keeps them, in words and tables: what is published, ours, the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape

from attnbench.core.evidence import Evidence
from attnbench.core.format import NONE, counted, percent, roughly, three
from attnbench.features.claims import claim
from attnbench.features.claims.claim import Claim, ClaimOutcome, ClaimVerdict, PointStanding
from attnbench.report import tables, tidy
from attnbench.report.tables import BAD, FAINT, GOOD, Column, Styled, Table, columns, console

Row = Mapping[str, Any]
MARK = "*"
"""Beside a limit that is ours."""
FOOTNOTE = f"{MARK} the limit is ours: the source gives no figure for it"
STYLES: dict[str, str] = {
    ClaimVerdict.REPRODUCED: GOOD,
    ClaimVerdict.NOT_REPRODUCED: BAD,
    PointStanding.HOLDS: GOOD,
    PointStanding.FAILS: BAD,
    PointStanding.CANT_TELL: BAD,
}


HEADS = columns(
    *("what must hold", "theirs", "ours", "interval", "verdict"),
    right=["ours"],
    wrap=["what must hold", "theirs"],
)


def points(row: Row) -> Table:
    """The points of a claim: the published figure, ours, its interval, and its standing."""
    lines = []
    for each in row["points"]:
        ours = each.get("ours") or {}
        value, low, high = (ours.get(key) for key in ("value", "low", "high"))
        figure = NONE if value is None else three(value) + _unit(each)
        interval = "" if low is None or high is None else f"[{three(low)}, {three(high)}]"
        remark = "\n".join(filter(None, [interval, ours.get("why", "")]))
        lines.append((each["says"], theirs(each), figure, remark, _styled(each.get("held", ""))))
    return Table(f"{row['name']}: {row['verdict']}", HEADS, lines)


def theirs(point: Row) -> str:
    """``354 ± 10 % TFLOP/s``; ``0.00092, at most 0.0092``"""
    published, tolerance = point["published"], point["tolerance"]
    rule, text, share = claim.ClaimRule(point["rule"]), three(published), abs(published) * tolerance
    limit = published + (share if rule is claim.ClaimRule.AT_MOST else -share)
    if rule is claim.ClaimRule.NEAR:
        words = f"{text} ± {percent(tolerance)}"
    elif rule is claim.ClaimRule.WITHIN:
        words = f"{text} ± {three(tolerance)}" if published else f"0, within {three(tolerance)}"
    else:
        words = f"{text}; {rule} {three(limit)}" if share else f"{rule} {text}"
    return words + MARK * point["threshold_is_ours"] + _unit(point)


def _unit(point: Row) -> str:
    return " TFLOP/s" if point["unit"] == "TFLOP/s" else ""


def counts(rows: Sequence[Row]) -> str:
    """``12 reproduced, 1 not reproduced, 4 not run``"""
    verdicts = [row["verdict"] for row in rows]
    order = dict.fromkeys([*ClaimVerdict, *sorted(verdicts)])
    return ", ".join(f"{n} {verdict}" for verdict in order if (n := verdicts.count(verdict)))


def has_figure(row: Row) -> bool:
    """Has any point of a claim a figure?"""
    return any((each.get("ours") or {}).get("value") is not None for each in row["points"])


def untried(rows: Iterable[Row]) -> Table:
    """The claims without a figure, those alike together, with the reason and the remedy."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not has_figure(row):
            names.setdefault((row["verdict"], _why(row)), []).append(row["name"])
    heads = ("claims", "verdict", "why, and what to do")
    lines = [(", ".join(some), _styled(word), why) for (word, why), some in names.items()]
    return Table("Claims without a figure", columns(*heads, wrap=[heads[0], heads[2]]), lines)


def _why(row: Row) -> str:
    return "; ".join(filter(None, [row["reason"], row["remedy"]]))


def claims_for_page(evidence: Evidence) -> dict[str, Any]:
    """The section of a report: each claim that has a figure, the others in a table."""
    sections = []
    for row in filter(has_figure, evidence.rows):
        of = row["source"]
        sections.append(
            {
                **{key: row[key] for key in ("name", "statement", "setting", "verdict")},
                "source": f"{of['title']}, {of['author']} ({of['where']}); read: {of['read']}",
                "why": _why(row),
                "points": points(row),
            }
        )
    origin = evidence.made
    return {
        "machine": str(origin["machine"]["name"]),
        "made": f"{str(origin['started'])[:10]}, {origin['command']}",
        "counts": counts(evidence.rows),
        "tried": sections,
        "left": untried(evidence.rows),
        "footnote": FOOTNOTE if any(map(_marked, evidence.rows)) else "",
    }


def _marked(row: Row) -> bool:
    """Is a limit of a claim with a figure ours?"""
    return has_figure(row) and any(each["threshold_is_ours"] for each in row["points"])


def list_row(one: Claim) -> tidy.Row:
    """A row of CSV: what is claimed, and what it takes."""
    what = {"claim": one.name, "statement": one.statement, "points": len(one.points)}
    return {**what, "needs": str(one.needs), "minutes": one.minutes}


def csv_rows(row: Row) -> Iterator[tidy.Row]:
    """A row a point of a claim: what was published, our figure, and whether the point holds."""
    for each in row["points"]:
        ours = each.get("ours") or {}
        yield {
            "claim": row["name"],
            "verdict": row["verdict"],
            "point": each["name"],
            "says": each["says"],
            "unit": each["unit"],
            **{name: each[name] for name in ("rule", "published", "tolerance")},
            "threshold_is_ours": each["threshold_is_ours"],
            "ours": ours.get("value"),
            **{f"{end}_ours": ours.get(end) for end in ("low", "high")},
            "held": each.get("held", ""),
            "reason": ours.get("why") or row["reason"],
            "remedy": row["remedy"],
        }


def list_claims(some: Sequence[Claim]) -> None:
    """``--list``: what is claimed, and what it takes."""
    names = ("claim", "what is said", "points", "needs", "min")
    heads = columns(*names, right=("points", "min"), wrap=("what is said", "needs"))
    rows = [(c.name, c.statement, len(c.points), c.needs, f"{c.minutes:.1f}") for c in some]
    tables.show(Table("", heads, rows))


def line(one: ClaimOutcome) -> str:
    """The outcome of a claim that was tried and not reproduced, as a sentence."""
    return f"{one.claim.name}: {one.verdict} ({one.reason}) [{roughly(one.took_s)}]"


def table(rows: Sequence[Row]) -> None:
    """Every point of every claim that was tried; then the others with the reason; the count."""
    for each in [*map(points, filter(has_figure, rows)), untried(rows)]:
        if each.rows:
            tables.show(each)
    out = console()
    if any(map(_marked, rows)):
        out.print(f"\n{FOOTNOTE}", style=FAINT)
    out.print(f"\n{counted(len(rows), 'claim')}: {counts(rows)}")


def _styled(word: str) -> Styled:
    return Styled(word, STYLES.get(word, FAINT))


def details(row: Row) -> None:
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
    tables.show_facts(facts.items())
    out = console()
    for note in row["notes"]:
        out.print(escape(f"! {note}"), style=FAINT)
    for each in row["tables"]:
        heads = [Column(str(name), wrap=True) for name in each["columns"]]
        tables.show(Table(each["title"], heads, [[*map(_text, values)] for values in each["rows"]]))
    out.print()


def _text(value: str | float | None) -> str:
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else three(value)
