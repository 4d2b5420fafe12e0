"""The self-check as a table: each deed, how it was caught, what was said."""

from __future__ import annotations

from rich.markup import escape

from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put
from attnbench.selfcheck import SLOW, Outcome, SelfCheck


def table(result: SelfCheck) -> None:
    """All of it; the last line is the sum."""
    made = grid("deed", "caught by", "", "what was said", words=["deed", "what was said"])
    kind = None
    for outcome in result.outcomes:
        if outcome.kind != kind:
            kind = outcome.kind
            made.add_row(f"[bold]{escape(kind)}[/]", "", "", "")
        made.add_row(*_row(outcome))
    put(made)
    console().print(f"\n{result.line}", style=GOOD if result.passed else BAD)


def _row(outcome: Outcome) -> tuple[str, str, str, str]:
    deed, said = f"  {escape(outcome.deed)}", escape(outcome.said or "nothing amiss")
    if outcome.caught is None:
        told = "not told" if outcome.kind == SLOW else "not planted"
        status = outcome.status if outcome.kind == SLOW else "–"
        return deed, f"[{FAINT}]{status}[/]", f"[{FAINT}]{told}[/]", f"[{FAINT}]{said}[/]"
    if outcome.caught:
        return deed, outcome.status, f"[{GOOD}]yes[/]", said
    wanted = escape(f" (it should be {outcome.wanted})") if outcome.wanted else ""
    return deed, outcome.status, f"[bold {BAD}]ESCAPED[/]", said + wanted
