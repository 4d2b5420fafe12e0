"""What evidence of quality shows: conclusions, tables and lines, printed or for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.markup import escape

from attnbench.features.quality import model_view, recall_results
from attnbench.features.quality.model_results import NAMED
from attnbench.report.tables import FAINT, Table, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


class EvidenceText(NamedTuple):
    """All that is said of a file of evidence."""

    conclusions: Sequence[str]
    tables: Sequence[Table]
    lines: Sequence[str]
    """What has no figures and why, and what the words of the tables mean."""


def shown(found: Evidence, named: int = NAMED) -> EvidenceText:
    """``named``: of variants that tie, so many are named."""
    if found.kind == "recall":
        by_setting = recall_results.recall_conclusions(found).items()
        several = len(by_setting) > 1
        some = [f"in {slug}: " * several + line for slug, each in by_setting for line in each]
        tables, lines = recall_results.recall_tables(found), recall_results.recall_lines(found)
    elif found.kind == "model":
        some = model_view.model_conclusions(found)
        tables, lines = model_view.model_tables(found, named), model_view.model_lines(found)
    else:
        some, tables, lines = [], model_view.real_tables(found), model_view.real_lines(found)
    return EvidenceText([f"{line[0].upper()}{line[1:]}." for line in some], tables, lines)


def show(found: Evidence) -> None:
    """Print it."""
    conclusions, tables, lines = shown(found)
    out = console()
    for table in tables:
        show_table(table)
    out.print()
    for line in conclusions:
        out.print(escape(line))
    for line in lines:
        out.print(escape(line), style=FAINT)
