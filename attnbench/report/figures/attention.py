"""Attention maps of one sentence, side by side: which word looks at which.

The cells of a shade are one path, so that forty maps are small; shades are of the family's colour
on the background, so that they follow a theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.disk import from_json
from attnbench.report.figures.sheet import (
    FAINT,
    GRID,
    INK,
    OTHER,
    PAPER,
    Drawn,
    finish,
    heading,
    sheet,
    shorten,
    width,
)
from attnbench.report.figures.style import Looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Maps = Mapping[str, Any]
WIDTH, MARGIN, BETWEEN = 7.0, 0.1, 0.16
"""Inches: the width of the figure, its margins, the space between two maps."""
COLUMNS = 5
MOST = 25
HEAD, TOP, KEY = 0.33, 0.45, 0.34
"""Inches: above each row of maps, above all, and for the key below."""
SHADES = 8
WORD, LETTERS = 40.0, 7.0
"""Points for a word at the side, and its font size."""
FEWEST = 1e-3
"""Smaller weights are left blank."""
KINDS = {
    "softmax": "exact",
    "softmax on its own pattern": "softmax, own pattern",
    "approximates softmax": "near softmax",
    "its own operator": "own operator",
}


def read(file: Path) -> tuple[Maps | None, str]:
    """The maps that a run kept; None and a sentence where there are none or they are damaged."""
    if not file.is_file():
        return None, "this run kept no attention maps"
    try:
        maps = from_json(file.read_text(encoding="utf-8"))
        many = len(maps["words"])
        square = [
            isinstance(m["variant"], str)
            and isinstance(m["computes"], str)
            and isinstance(m["mask"], str)
            and isinstance(m["alike"], list)
            and len(m["weights"]) == many
            and all(len(row) == many and all(map(_weight, row)) for row in m["weights"])
            for m in maps["maps"]
        ]
        fine = all(square) and all(isinstance(w, str) for w in maps["words"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fine = False
    return (maps, "") if fine else (None, f"{file.name} is damaged, so no map is shown")


def _weight(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def draw(maps: Maps, looks: Looks, number: int = 0) -> Drawn | None:
    """All maps of one run, the exact one first; None where there is none. ``number``: the run's."""
    shown = sorted(maps["maps"], key=lambda m: (m["computes"] != "softmax", _place(m, looks)))
    shown, left_out = shown[:MOST], len(shown[MOST:])
    words = [shorten(word, WORD, LETTERS) for word in maps["words"]]
    if not shown or not words:
        return None
    columns = min(COLUMNS, len(shown))
    beside = max(width(word, LETTERS) for word in words) / 72 + 0.06
    side = (WIDTH - 2 * MARGIN - beside - BETWEEN * (COLUMNS - 1)) / COLUMNS
    rows = -(-len(shown) // columns)
    height = TOP + rows * (HEAD + side) + beside + KEY
    title = "Attention maps of one sentence: each row is a word, and what it looks at"
    with sheet(WIDTH, height) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        heading(figure, title, f"“{maps.get('sentence') or ' '.join(maps['words'])}”")
        places: list[tuple[float, float]] = []
        for place, each in enumerate(shown):
            row, column = divmod(place, columns)
            left = MARGIN + beside + column * (side + BETWEEN)
            top = TOP + HEAD + row * (HEAD + side)
            _map(axes, each, looks, (left, top, side), len(words))
            places.append((left, top))
            if column == 0:
                _beside(axes, words, left, top, side)
            if place + columns >= len(shown):
                _below(axes, words, left, top, side)
        _grid(axes, places, side, len(words))
        _key(axes, shown, height, left_out)
        most = "; ".join(_describe(each, maps["words"]) for each in shown)
        description = f"The sentence: {' '.join(maps['words'])}. {most}"
        numbers = _rows(shown, maps["words"])
        return finish(figure, "attention", f"attention-{number}", title, description, numbers)


def _place(each: Maps, looks: Looks) -> tuple[int, str]:
    look = looks.get(each["variant"])
    return (look.number if look else len(looks), each["variant"])


def _map(
    axes: Axes, each: Maps, looks: Looks, place: tuple[float, float, float], many: int
) -> None:
    from matplotlib.patches import Rectangle

    left, top, side = place
    look = looks.get(each["variant"])
    gid, colour = (look.name, look.colour) if look else (None, OTHER)
    under = KINDS.get(each["computes"]) or str(each["computes"])
    if each["alike"]:
        under += f", as are {len(each['alike'])} more"
    if each["mask"] == "none":
        under += ", no mask"
    head = shorten(each["variant"], side * 72, 8, "bold")
    more: dict[str, Any] = {"va": "center_baseline", "gid": gid}
    axes.text(left, top - 0.19, head, fontsize=8, fontweight="bold", **more)
    axes.text(left, top - 0.07, shorten(under, side * 72, 6.8), fontsize=6.8, color=FAINT, **more)
    words = f"{gid}|{each['variant']}: {each['computes']}" if gid else None
    edge: dict[str, Any] = {"facecolor": "none", "edgecolor": GRID, "linewidth": 0.6}
    axes.add_patch(Rectangle((left, top), side, side, gid=words, **edge))
    cell = side / many
    for (negative, shade), runs in sorted(_runs(each["weights"]).items()):
        xs: list[float] = []
        ys: list[float] = []
        for row, start, stop in runs:
            xs += [left + start * cell, left + stop * cell, math.nan]
            ys += [top + (row + 0.5) * cell] * 2 + [math.nan]
        axes.plot(
            xs,
            ys,
            color=INK if negative else colour,
            alpha=round((shade + 1) / SHADES, 3),
            linewidth=cell * 72 * (0.3 if negative else 1),
            solid_capstyle="butt",
            gid=gid,
        )
    weights = [(r, c, w) for r, row in enumerate(each["weights"]) for c, w in enumerate(row)]
    lost = [(r + 0.5, c + 0.5) for r, c, w in weights if not _finite(w)]
    if lost:
        mark = {"marker": "x", "markersize": cell * 30, "markeredgewidth": 0.7, "linestyle": ""}
        xs, ys = [left + c * cell for _, c in lost], [top + r * cell for r, _ in lost]
        axes.plot(xs, ys, color=INK, gid=gid, **mark)  # type: ignore[arg-type]


def _runs(weights: Sequence[Sequence[Any]]) -> dict[tuple[bool, int], list[tuple[int, int, int]]]:
    """Runs of cells by sign and shade: the row, the first column and the one past the last."""
    found: dict[tuple[bool, int], list[tuple[int, int, int]]] = {}
    for row, some in enumerate(weights):
        for column, weight in enumerate(some):
            if not _finite(weight) or abs(weight) < FEWEST:
                continue
            runs = found.setdefault((weight < 0, _shade(weight)), [])
            if runs and runs[-1][0] == row and runs[-1][2] == column:
                runs[-1] = (row, runs[-1][1], column + 1)
            else:
                runs.append((row, column, column + 1))
    return found


def _finite(weight: Any) -> bool:
    return weight is not None and math.isfinite(weight)


def _shade(weight: float) -> int:
    """The shade by the root of the weight, so that a tenth can be seen."""
    return min(math.ceil(math.sqrt(min(abs(weight), 1.0)) * SHADES), SHADES) - 1


def _grid(axes: Axes, places: Sequence[tuple[float, float]], side: float, many: int) -> None:
    """Draw white lines between the cells of all maps, as one path."""
    xs: list[float] = []
    ys: list[float] = []
    for left, top in places:
        for step in range(1, many):
            at = step * side / many
            xs += [left, left + side, math.nan, left + at, left + at, math.nan]
            ys += [top + at, top + at, math.nan, top, top + side, math.nan]
    axes.plot(xs, ys, color=PAPER, linewidth=0.6, solid_capstyle="butt")


def _beside(axes: Axes, words: Sequence[str], left: float, top: float, side: float) -> None:
    cell = side / len(words)
    size = min(LETTERS, cell * 72 * 0.8)
    for row, word in enumerate(words):
        y = top + (row + 0.5) * cell
        axes.text(left - 0.04, y, word, ha="right", va="center_baseline", fontsize=size)


def _below(axes: Axes, words: Sequence[str], left: float, top: float, side: float) -> None:
    cell = side / len(words)
    size = min(LETTERS, cell * 72 * 0.8)
    for column, word in enumerate(words):
        x, y = left + (column + 0.5) * cell, top + side + 0.04
        axes.text(x, y, word, rotation=90, ha="center", va="top", fontsize=size)


def _key(axes: Axes, shown: Sequence[Maps], height: float, left_out: int) -> None:
    """Draw the shades and what they mean, in a line below."""
    y = height - 0.15
    axes.text(MARGIN, y, "weight", fontsize=7, va="center_baseline")
    x = MARGIN + 0.42
    line: dict[str, Any] = {"color": FAINT, "linewidth": 9, "solid_capstyle": "butt"}
    for shade in range(SHADES):
        axes.plot([x, x + 0.16], [y, y], alpha=round((shade + 1) / SHADES, 3), **line)
        x += 0.16
    weights = [w for each in shown for row in each["weights"] for w in row]
    words = "0 to 1, a quarter in the middle"
    if any(_finite(w) and w <= -FEWEST for w in weights):
        words += "; narrow and grey: below zero"
    if any(not _finite(w) for w in weights):
        words += "; ×: not finite"
    if left_out:
        words += f"; {left_out} more in the CSV"
    axes.text(x + 0.07, y, words, fontsize=7, color=FAINT, va="center_baseline")


def _describe(each: Maps, words: Sequence[str]) -> str:
    last = [w if _finite(w) else -math.inf for w in each["weights"][-1]]
    return f"{each['variant']}: {words[-1]} looks most at {words[last.index(max(last))]}"


def _rows(shown: Sequence[Maps], words: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    yield "variant", "computes", "mask", "row", "word", "column", "looks_at", "weight"
    for each in shown:
        of = each["variant"], each["computes"], each["mask"]
        for row, some in enumerate(each["weights"]):
            for column, weight in enumerate(some):
                yield *of, row, words[row], column, words[column], weight
