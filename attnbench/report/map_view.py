"""An attention map: rows look at columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from attnbench.report.tables import BAD, grid, put


def show(words: Sequence[str], weights: Sequence[Sequence[float | None]]) -> None:
    """Rows look at columns; the darker, the more."""
    made = grid("", *words, right=words)
    for word, row in zip(words, weights, strict=True):
        top = max((abs(w) for w in row if w is not None), default=0.0) or 1.0
        made.add_row(f"[bold]{escape(word)}[/]", *(_shade(w, top) for w in row))
    put(made)


def _shade(weight: float | None, top: float) -> str:
    if weight is None:
        return f"[{BAD}]nan[/]"
    level = round(16 * abs(weight) / top)
    ground = 255 - level
    ink = "black" if ground > 243 else "white"
    return f"[{ink} on color({max(232, ground)})] {weight:5.2f} [/]"
