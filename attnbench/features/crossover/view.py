"""Where one overtakes the other: a line a look, a table of the looks, the answer under it."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from attnbench.core.format import figures, ms
from attnbench.features.crossover.answer import CrossoverAnswer
from attnbench.features.crossover.search import A, B, LengthRatio
from attnbench.report.tables import BAD, FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table


def line(look: LengthRatio, a: str, b: str, left_s: float) -> str:
    """One length as a sentence."""
    said = f"{look.status}: {look.why}"
    if look.comparison is not None:
        said = look.comparison.sentence(a, b)
    return f"[{left_s:.0f} s left] {look.length:,}: {said}"


def show(answer: CrossoverAnswer) -> None:
    """The looks by length, then the answer, then what else must be known."""
    right = (
        answer.what,
        f"{answer.a} ms",
        f"{answer.b} ms",
        "ratio",
        "99 % interval",
        "pairs",
        "margin",
    )
    names = {A: Styled(answer.a, GOOD), B: Styled(answer.b, GOOD)}
    rows: list[tuple[Any, ...]] = []
    for look in answer.all_looks:
        c, where = look.comparison, f"{look.length:,}"
        if c is None:
            rows.append((where, Styled(look.status, BAD), *[None] * 6))
            continue
        rows.append(
            (
                where,
                names.get(look.leader, Styled("neither", FAINT)),
                ms(look.a_s),
                ms(look.b_s),
                f"{c.ratio:.3f}",
                f"{c.low:.3f}–{c.high:.3f}",
                c.n,
                f"{figures(100 * c.margin)} %",
            )
        )
    heads = columns(answer.what, "faster", *right[1:], right=right, wrap=("faster",))
    show_table(Table("", heads, rows))
    out = console()
    out.print(escape(f"{answer.sentence()}."))
    for note in answer.notes():
        out.print(escape(f"! {note}"), style=FAINT)
