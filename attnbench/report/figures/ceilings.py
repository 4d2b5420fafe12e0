"""What each variant gets of what the ceilings allow: where all are at one intensity of work.

Then a roofline is a column of points on each other, and all that it says is how high they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.report.figures import rows, ticks
from attnbench.report.figures.labels import heading
from attnbench.report.figures.looks import Looks
from attnbench.report.figures.palette import FAINT
from attnbench.report.figures.sheet import sheet
from attnbench.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = 0.6
"""Of what is not exact."""
REST = 1.28
"""Inches of all but rows."""
MOST = 20
EXACT = 12
"""Of these, so many that are exact where there are others too."""


@contextmanager
def drawn(shares: Mapping[str, float], looks: Looks, words: Mapping[str, str],
          said: tuple[str, str, str], note: str) -> Iterator[Figure]:  # fmt: skip
    """A bar each, what is exact first and the highest of its kind first.

    ``said``: what is drawn, of what, and what it shows.
    """
    shown = chosen(shares, looks)
    left_out = len(shares) - len(shown)
    height = rows.HIGH * len(shown) + REST
    with sheet(rows.WIDTH, height) as figure:
        low, high = 0.57 / height, 1 - 0.63 / height
        axes = figure.add_axes((rows.LEFT, low, rows.RIGHT - rows.LEFT, high - low))
        rows.frame(axes, len(shown))
        top = max(shares[variant] for variant in shown)
        axes.set_xlim(0, top)
        axes.set_xticks(every := ticks.linear(top), [percent(x) if x else "0" for x in every])
        axes.tick_params(axis="x", labelsize=7)
        for row, variant in enumerate(shown):
            look = looks[variant]
            rows.bar(axes, row, (0, shares[variant]), look, words[variant],
                     1.0 if look.exact else PALE)  # fmt: skip
            rows.name(axes, row, look, percent(shares[variant]))
        exact = sum(looks[variant].exact for variant in shown)
        if 0 < exact < len(shown):
            axes.axhline(exact - 0.5, color=FAINT, linewidth=0.8)
        heading(figure, *said)
        more = f"; {left_out} more in the CSV" * bool(left_out)
        figure.text(0.02, 0.05 / height, note + more, fontsize=6.8, color=FAINT, va="bottom",
                    linespacing=1.3)  # fmt: skip
        yield figure


def chosen(shares: Mapping[str, float], looks: Looks) -> list[str]:
    """As many as there is room for, what is exact first, the highest of its kind first."""
    ranked = sorted(shares, key=lambda v: (-shares[v], v))
    exact = [v for v in ranked if looks[v].exact]
    others = [v for v in ranked if not looks[v].exact]
    exact = exact[: max(EXACT, MOST - len(others))]
    return [*exact, *others[: MOST - len(exact)]]
