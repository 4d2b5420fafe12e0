"""Shared by the three questions: rows of evidence, refusals, and the answers of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnbench.core.machine import Machine, why_not
from attnbench.core.process import Worker, WorkerLost
from attnbench.models import wrong_level
from attnbench.report import tidy
from impls.problem import Problem
from impls.spec import Variant

Row = dict[str, Any]
WORKER = "attnbench.features.quality.worker"


def status_words(row: Mapping[str, Any]) -> str:
    """``timed out: it was still running after 240 s``, and what to do about it."""
    why = "; ".join(filter(None, [row["reason"], row.get("remedy")]))
    return f"{row['status'].replace('_', ' ')}: {why}"


def variant_row(variant: Variant) -> Row:
    """A row of evidence without figures."""
    return {"variant": variant.label, "family": variant.family, "computes": variant.computes}


def plain_numbers(rows: Iterable[tidy.Row]) -> list[list[Any]]:
    """The numbers of a picture: rows of CSV below their names."""
    rows = list(rows)
    names = tidy.names_of(rows)
    return [names, *([row[name] for name in names] for row in rows)]


def sentence(text: str) -> str:
    """The text with a capital letter."""
    return text[0].upper() + text[1:]


def refusal(row: Variant, problems: Sequence[Problem], machine: Machine) -> Row | None:
    """None for a variant that takes one of these problems here, else its status and the reason."""
    if (reason := wrong_level(row)) is not None:
        return {"status": "refused", "reason": reason, "remedy": ""}
    if (missing := why_not(row, machine)) is not None:
        return {"status": "unavailable", "reason": missing.reason, "remedy": missing.remedy}
    reasons = [row.supports(problem) for problem in problems]
    return None if None in reasons else {"status": "refused", "reason": reasons[0], "remedy": ""}


def answers(worker: Worker, question: Row, limit_s: float) -> Iterator[Row]:
    """The stages of an answer; where it ends badly, the last has ``status`` and ``reason``."""
    try:
        yield from worker.messages(question, limit_s)
    except WorkerLost as lost:
        yield {"status": "timed_out" if lost.timed_out else "crashed", "reason": str(lost)}
