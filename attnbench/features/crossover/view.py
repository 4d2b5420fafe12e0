"""Where one overtakes the other: a line a look, a table of the looks, the answer under it."""

from __future__ import annotations

from rich.markup import escape

from attnbench.core.format import NONE, figures, ms
from attnbench.features.crossover.answer import CrossoverAnswer
from attnbench.features.crossover.search import A, B, LengthRatio
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put


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
    made = grid(answer.what, "faster", *right[1:], right=right, words=("faster",))
    names = {A: f"[{GOOD}]{escape(answer.a)}[/]", B: f"[{GOOD}]{escape(answer.b)}[/]"}
    looks = answer.all_looks
    for look in looks:
        c, where = look.comparison, f"{look.length:,}"
        if c is None:
            made.add_row(where, f"[{BAD}]{look.status}[/]", *[NONE] * 6)
            continue
        made.add_row(
            where,
            names.get(look.leader, f"[{FAINT}]neither[/]"),
            ms(look.a_s),
            ms(look.b_s),
            f"{c.ratio:.3f}",
            f"{c.low:.3f}–{c.high:.3f}",
            str(c.n),
            f"{figures(100 * c.margin)} %",
        )
    if looks:
        put(made)
    out = console()
    out.print(escape(f"{answer.sentence()}."))
    for note in answer.notes():
        out.print(escape(f"! {note}"), style=FAINT)
