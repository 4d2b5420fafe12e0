"""The tables of ``check`` and ``selfcheck``."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.core.format import first_few, ratio
from attnbench.core.record import NOT_TRIED, Record, Status
from attnbench.features.selfcheck.selfcheck import PlantOutcome, SelfCheck
from attnbench.report import tidy
from attnbench.report.tables import BAD, BOLD, FAINT, GOOD, Styled, Table, columns, console, show
from impls.problem import Problem


def table(result: SelfCheck) -> None:
    """All of it; the last line is the sum."""
    rows: list[tuple[str | Styled, ...]] = []
    kind = None
    for outcome in result.outcomes:
        if outcome.kind != kind:
            kind = outcome.kind
            rows.append((Styled(kind, BOLD), "", "", ""))
        rows.append(_row(outcome))
    names = ("injected fault", "caught by", "", "what was said")
    show(Table("", columns(*names, wrap=[names[0], names[-1]]), rows))
    console().print(f"\n{result.line}", style=GOOD if result.passed else BAD)


def _row(outcome: PlantOutcome) -> tuple[str | Styled, ...]:
    deed, message = f"  {outcome.deed}", outcome.said or "nothing"
    if outcome.caught is None:
        return deed, *(Styled(text, FAINT) for text in ("–", "not injected", message))
    if outcome.caught:
        return deed, outcome.status, Styled("yes", GOOD), message
    expected = f" (it should be {outcome.wanted})" if outcome.wanted else ""
    return deed, outcome.status, Styled("ESCAPED", f"bold {BAD}"), message + expected


def show_check(records: Sequence[Record]) -> None:
    """``check``: the table."""
    rows: list[tuple[str | Styled, ...]] = []
    by_variant: dict[str, list[Record]] = {}
    for record in records:
        by_variant.setdefault(record.variant, []).append(record)
    for name, some in by_variant.items():
        tries = [r for r in some if r.status not in NOT_TRIED]
        right = [r for r in tries if r.status is Status.MEASURED]
        bad = [r for r in tries if r.status is not Status.MEASURED]
        ratios = [e.ratio for r in right for e in (r.error or {}).values() if e.ratio is not None]
        worst = f"{ratio(max(ratios))} plain" if ratios else ""
        count = f"{len(right)} of {len(tries)}" if tries else "–"
        style = BAD if bad else GOOD if tries else FAINT
        why = "; ".join(dict.fromkeys(r.reason for r in some if r not in tries))
        bits = _bits(right)
        rows.append((name, Styled(count, style), worst, bits, "" if tries else why))
        reasons: dict[tuple[str, str], list[Record]] = {}
        for record in bad:
            reasons.setdefault((record.status, record.reason), []).append(record)
        for (status, reason), alike in reasons.items():
            where = first_few([_where(record.problem) for record in alike], 1)
            rows.append(("", Styled(status, BAD), "", "", f"{where}: {reason}"))
    names = ("variant", "right", "worst error", "same bits", "")
    show(Table("", columns(*names, wrap=["same bits", ""]), rows))


def check_row(record: Record) -> tidy.Row:
    """A row of CSV: whether a variant is right on a problem, by how much it is off, and why not."""
    ratios = [e.ratio for e in (record.error or {}).values() if e.ratio is not None]
    names, same = ("repeats", "batch", "place"), record.determinism
    bits = {f"same_bits_{name}": getattr(same, name, None) for name in names}
    return {
        "variant": record.variant,
        "computes": record.computes,
        **tidy.of_problem(record.problem),
        "status": record.status.words,
        "error": record.worst_error,
        "error_over_plain": max(ratios, default=None),
        **bits,
        "reason": record.reason,
        "remedy": record.remedy,
    }


def _bits(records: Sequence[Record]) -> str:
    """Whether the same values gave the same bits, wherever that was tried."""
    results = [r.determinism for r in records if r.determinism is not None]
    facts = [(d.repeats, d.batch, d.place) for d in results]
    if not facts:
        return ""
    words = ("over repeats", "across batches", "across places")
    parts = []
    for word, column in zip(words, zip(*facts, strict=True), strict=True):
        if False in column:
            parts.append(f"not {word}")
        elif True not in column:
            parts.append(f"{word} not tried")
    return ", ".join(parts) or "yes"


def _where(problem: Problem) -> str:
    words = [str(problem.mask), problem.phase, problem.dtype]
    words += [problem.level] * (problem.level != "core")
    words += [problem.inputs] * (problem.inputs != "normal")
    return " ".join(words)
