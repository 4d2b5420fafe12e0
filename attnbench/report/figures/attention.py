"""Attention maps of one sentence, side by side: which word looks at which.

The cells of a shade are one path, so that forty maps are small; shades are of the family's colour
on the background, so that they follow a theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from attnbench.report.figures import sheet as labels
from attnbench.report.figures.sheet import (
    FAINT,
    GRID,
    INK,
    OTHER,
    PAPER,
    Drawn,
    finish,
    save,
    sheet,
)
from attnbench.report.figures.style import Looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, MARGIN, BETWEEN = 7.0, 0.1, 0.16
"""Inches: the width of the figure, its margins, the space between two maps."""
COLUMNS = 5
MOST = 25
HEAD, TOP, KEY = 0.33, 0.45, 0.34
"""Inches: above each row of maps, above all, and for the key below."""
SHADES = 8
WORD, LETTERS = 40.0, 7.0
FEWEST = 1e-3
KINDS = {
    "softmax": "exact",
    "softmax on its own pattern": "softmax, own pattern",
    "approximates softmax": "near softmax",
    "its own operator": "own operator",
}


class Map(msgspec.Struct, frozen=True):
    """What one variant's words look at."""

    variant: str
    computes: str
    mask: str
    alike: list[str]
    weights: list[list[float | None]]


class Maps(msgspec.Struct, frozen=True):
    """The maps of a run."""

    words: list[str]
    maps: list[Map]
    sentence: str = ""


def read(file: Path) -> tuple[Maps | None, str]:
    """The maps that a run kept; None and a sentence where there are none or they are damaged."""
    if not file.is_file():
        return None, "this run kept no attention maps"
    try:
        maps = msgspec.json.decode(file.read_bytes(), type=Maps)
    except (OSError, ValueError, RecursionError):
        return None, f"{file.name} is damaged, so no map is shown"
    many = [len(maps.words)] * (len(maps.words) + 1)
    if any([len(m.weights), *map(len, m.weights)] != many for m in maps.maps):
        return None, f"{file.name} is damaged, so no map is shown"
    return maps, ""


def draw(maps: Maps, looks: Looks, number: int = 0) -> Drawn | None:
    """All maps of one run, the exact one first; None where there is none. ``number``: the run's."""
    places = {variant: look.number for variant, look in looks.items()}
    shown = sorted(
        maps.maps,
        key=lambda m: (m.computes != "softmax", places.get(m.variant, len(looks)), m.variant),
    )
    shown, left_out = shown[:MOST], len(shown[MOST:])
    words = [labels.shorten(word, WORD, LETTERS) for word in maps.words]
    if not shown or not words:
        return None
    columns = min(COLUMNS, len(shown))
    beside = max(labels.width(word, LETTERS) for word in words) / 72 + 0.06
    side = (WIDTH - 2 * MARGIN - beside - BETWEEN * (COLUMNS - 1)) / COLUMNS
    height = TOP + -(-len(shown) // columns) * (HEAD + side) + beside + KEY
    title = "Attention maps of one sentence: each row is a word, and what it looks at"
    with sheet(WIDTH, height) as figure:
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        labels.heading(figure, title, f"“{maps.sentence or ' '.join(maps.words)}”")
        xs, ys, told = list[float](), list[float](), []
        for place, each in enumerate(shown):
            row, column = divmod(place, columns)
            left = MARGIN + beside + column * (side + BETWEEN)
            top = TOP + HEAD + row * (HEAD + side)
            weights = np.array(each.weights, dtype=float)
            _map(axes, each, looks, (left, top, side), weights)
            last = np.nan_to_num(weights[-1], nan=-math.inf)
            told.append(
                f"{each.variant}: {maps.words[-1]} looks most at {maps.words[last.argmax()]}"
            )
            for step in range(1, len(words)):
                at = step * side / len(words)
                xs += [left, left + side, math.nan, left + at, left + at, math.nan]
                ys += [top + at, top + at, math.nan, top, top + side, math.nan]
            _words(axes, words, left, top, side, column == 0, place + columns >= len(shown))
        # white lines between the cells of all maps, as one path
        axes.plot(xs, ys, color=PAPER, linewidth=0.6, solid_capstyle="butt")
        _key(axes, np.array([each.weights for each in shown], dtype=float), height, left_out)
        said = f"The sentence: {' '.join(maps.words)}. {'; '.join(told)}"
        rows = _rows(shown, maps.words)
        return finish(figure, "attention", f"attention-{number}", title, said, rows)


def draw_alone(
    words: Sequence[str], weights: Sequence[Sequence[float | None]], title: str, file: Path
) -> None:
    """Write one map, with a scale of its weights, as a .png or .svg."""
    side = 1.6 + 0.42 * len(words)
    with sheet(side, side, "constrained") as figure:
        axes = figure.subplots()
        image = axes.imshow(np.array(weights, float), cmap="cividis")
        axes.set_xticks(range(len(words)), words, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(words)), words)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.grid(visible=False)
        axes.set_ylabel("this word")
        axes.set_xlabel(f"looks at · {title}")
        figure.colorbar(image, shrink=0.7)
        save(figure, [file])


def _map(
    axes: Axes, each: Map, looks: Looks, place: tuple[float, float, float], weights: Any
) -> None:
    from matplotlib.patches import Rectangle

    left, top, side = place
    look, cell = looks.get(each.variant), side / len(weights)
    colour = look.colour if look else OTHER
    under = KINDS.get(each.computes, each.computes)
    under += f", as are {len(each.alike)} more" if each.alike else ""
    under += ", no mask" if each.mask == "none" else ""
    head, more = (
        labels.shorten(each.variant, side * 72, 8, "bold"),
        {"va": "center_baseline"},
    )
    axes.text(left, top - 0.19, head, fontsize=8, fontweight="bold", **more)  # type: ignore[arg-type]
    under = labels.shorten(under, side * 72, 6.8)
    axes.text(left, top - 0.07, under, fontsize=6.8, color=FAINT, **more)  # type: ignore[arg-type]
    edge: dict[str, Any] = {"facecolor": "none", "edgecolor": GRID, "linewidth": 0.6}
    axes.add_patch(Rectangle((left, top), side, side, **edge))
    for (negative, shade), cells in sorted(_cells(weights).items()):
        ends = [(left + c * cell, left + (c + 1) * cell, math.nan) for _, c in cells]
        ys = [(y, y, math.nan) for y in (top + (r + 0.5) * cell for r, _ in cells)]
        axes.plot(
            np.ravel(ends),
            np.ravel(ys),
            color=INK if negative else colour,
            alpha=round((shade + 1) / SHADES, 3),
            linewidth=cell * 72 * (0.3 if negative else 1),
            solid_capstyle="butt",
        )
    rows, columns = np.nonzero(~np.isfinite(weights))
    if len(rows):
        mark: dict[str, Any] = {"marker": "x", "markersize": cell * 30, "markeredgewidth": 0.7}
        at = left + (columns + 0.5) * cell, top + (rows + 0.5) * cell
        axes.plot(*at, color=INK, linestyle="", **mark)


def _cells(weights: Any) -> dict[tuple[bool, int], list[tuple[int, int]]]:
    """Row and column of cells by sign and shade.

    The shade is by the root of the weight, so that a tenth can be seen.
    """
    found: dict[tuple[bool, int], list[tuple[int, int]]] = {}
    for row, column in np.argwhere(np.isfinite(weights) & (abs(weights) >= FEWEST)).tolist():
        weight = weights[row, column]
        shade = math.ceil(math.sqrt(min(abs(weight), 1.0)) * SHADES) - 1
        found.setdefault((bool(weight < 0), shade), []).append((row, column))
    return found


def _words(
    axes: Axes,
    words: Sequence[str],
    left: float,
    top: float,
    side: float,
    beside: bool,
    below: bool,
) -> None:
    """Write the words at the left of a map, below it, or both."""
    cell = side / len(words)
    size = min(LETTERS, cell * 72 * 0.8)
    for number, word in enumerate(words):
        at = (number + 0.5) * cell
        if beside:
            across: dict[str, Any] = {"ha": "right", "va": "center_baseline", "fontsize": size}
            axes.text(left - 0.04, top + at, word, **across)
        if below:
            up: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "top", "fontsize": size}
            axes.text(left + at, top + side + 0.04, word, **up)


def _key(axes: Axes, weights: Any, height: float, left_out: int) -> None:
    """Draw the shades and what they mean, in a line below."""
    x, y = MARGIN + 0.42, height - 0.15
    axes.text(MARGIN, y, "weight", fontsize=7, va="center_baseline")
    line: dict[str, Any] = {"color": FAINT, "linewidth": 9, "solid_capstyle": "butt"}
    for shade in range(SHADES):
        axes.plot([x, x + 0.16], [y, y], alpha=round((shade + 1) / SHADES, 3), **line)
        x += 0.16
    words = "0 to 1, a quarter in the middle"
    words += "; narrow and grey: below zero" * bool((weights <= -FEWEST).any())
    words += "; ×: not finite" * (not np.isfinite(weights).all())
    words += f"; {left_out} more in the CSV" * bool(left_out)
    axes.text(x + 0.07, y, words, fontsize=7, color=FAINT, va="center_baseline")


def _rows(shown: Sequence[Map], words: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    yield "variant", "computes", "mask", "row", "word", "column", "looks_at", "weight"
    for each in shown:
        for row, some in enumerate(each.weights):
            for column, weight in enumerate(some):
                at = row, words[row], column, words[column]
                yield each.variant, each.computes, each.mask, *at, weight
