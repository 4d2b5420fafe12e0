"""The tables of ``check`` and ``selfcheck``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.core.format import counted, first_few, ratio
from attnbench.core.record import NOT_TRIED, Record, Status
from attnbench.features.selfcheck.model import ModelCheck
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


# ---- a model's implementations -------------------------------------------------------------------

FEW_LAYERS, FEW_NAMES = 4, 3


def show_model(check: ModelCheck) -> None:
    """``check --model``: a row an implementation, then a sentence for each that differs."""
    facts = check.facts
    batches, rows = facts["batches"], []
    for name in check.implementations:
        results = [check.row(name, batch) for batch in batches]
        if any(result["status"] != "refused" for result in results):
            errors = [result["error"] for result in results if result["status"] != "refused"]
            worst = "not finite" if None in errors else f"{max(errors):.1e}"
            rows.append((name, *(_cell(result, facts["layers"]) for result in results), worst))
    heads = columns("implementation", *batches, "worst error", right=["worst error"])
    layers = counted(len(facts["layers"]), "attention layer")
    caption = f"{layers}, weights {facts['weights']}"
    show(Table(facts["class"], heads, rows, _notes(check), caption))
    out = console()
    for sentence in model_sentences(check):
        out.print(f"\n{sentence}", markup=False, highlight=False)


def _cell(result: tidy.Row, layers: Sequence[tidy.Row]) -> Styled:
    if result["status"] == "differs":
        return Styled(_layers(result, layers), BAD)
    return Styled("agrees", GOOD) if result["status"] == "agrees" else Styled("–", FAINT)


def _layers(result: tidy.Row, layers: Sequence[tidy.Row]) -> str:
    """``layer 5``, ``layers 2, 5``, ``all 12 layers``."""
    numbers = [str(each["layer"]) for each in result["layers"]]
    if len(numbers) == len(layers) > 1:
        return f"all {len(numbers)} layers"
    return f"layer{'s' if len(numbers) > 1 else ''} {first_few(numbers, FEW_LAYERS)}"


def _notes(check: ModelCheck) -> list[str]:
    """What is left out, and why."""
    notes = list(check.facts["notes"])
    if check.stopped:
        notes.append(
            f"stopped before its end, after {counted(len(check.implementations), 'implementation')}"
        )
    for word, field in (("not tried", "reason"), ("forward alone", "no_gradients")):
        some = [row for row in check.results if row.get(field)]
        by_name: dict[str, list[tidy.Row]] = {}
        for row in some:
            by_name.setdefault(row["implementation"], []).append(row)
        for name, rows in by_name.items():
            all_of_them = len(rows) == len(check.facts["batches"])
            batches = "" if all_of_them else f", {', '.join(row['batch'] for row in rows)}"
            notes.append(f"{word}: {name}{batches}: {rows[0][field]}")
    return notes


def model_sentences(check: ModelCheck) -> Iterator[str]:
    """For each batch and way to differ: who differs, where, by how much, why, and who is right."""
    layers = check.facts["layers"]
    for batch in check.facts["batches"]:
        right = first_few(check.having("agrees", batch), FEW_NAMES)
        ways: dict[tuple[str, str, str], list[tidy.Row]] = {}
        for row in (check.row(name, batch) for name in check.having("differs", batch)):
            first = row["layers"][0]
            way = (_layers(row, layers), first["what"], first["reason"])
            ways.setdefault(way, []).append(row)
        for (where, what, reason), rows in ways.items():
            first, several = rows[0]["layers"][0], len(rows[0]["layers"]) > 1
            of = "" if where.startswith("all") else f" of {len(layers)}"
            who = first_few([row["implementation"] for row in rows], FEW_NAMES)
            error = "not finite" if first["error"] is None else f"off by {first['error']:.2g}"
            yield (
                f"{who}, {batch}: {where}{of} differ{'' if several else 's'} from float64: the "
                f"{what} of {first['name']} is {error}, where {first['allowed']:.2g} is allowed"
                f"{'; ' if reason else ''}{reason}. Right: {right or 'none'}."
            )


def model_rows(check: ModelCheck) -> Iterator[tidy.Row]:
    """A row of CSV for each implementation and batch; the first layer that differs."""
    for result in check.results:
        first: tidy.Row = next(iter(result.get("layers", [])), {})
        numbers = [each["layer"] for each in result.get("layers", [])]
        yield {
            "implementation": result["implementation"],
            "batch": result["batch"],
            "status": result["status"],
            "error": result.get("error"),
            "error_over_allowed": result.get("of_allowed"),
            "gradients": result["status"] != "refused" and not result["no_gradients"],
            "layers": "; ".join(map(str, numbers)),
            "first": first.get("name", ""),
            "differs_in": first.get("what", ""),
            "reason": first.get("reason", "") or result["reason"],
        }
