"""The parts of every picture: colours, a sheet to draw on, its files, and its words.

Any two hues differ by 10 (CIEDE2000) or more to any eye, three simulations of colour blindness
included, and stand out from their paper by 3:1 or more; words are in ink.
"""

from __future__ import annotations

import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from attnbench.core.disk import write_whole
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, FAINT, GRID, PAPER = "#1c2129", "#68707c", "#dde1e7", "#ffffff"
HUES = {
    "blue": "#186294",
    "orange": "#db7900",
    "green": "#009e73",
    "red": "#d92151",
    "violet": "#8a59da",
    "brown": "#6e4621",
    "olive": "#676f00",
    "slate": "#3d4f60",
}
LIGHT = {"ink": INK, "faint": FAINT, "grid": GRID, "paper": PAPER, **HUES}
"""The colours by their names in the page's style sheet, on light paper and on dark."""
DARK = {
    "ink": "#e6e9ee",
    "faint": "#98a1ad",
    "grid": "#2b323c",
    "paper": "#14171c",
    "slate": "#cfd9e4",
    "blue": "#538cb9",
    "orange": "#f89848",
    "green": "#39d3ac",
    "red": "#ee5d86",
    "violet": "#b68df9",
    "brown": "#a8744a",
    "olive": "#e7e553",
}
VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}


def css() -> str:
    """Style rules that define the colours for light and dark, and light for print.

    A reader's choice is an attribute of the page: ``<html data-theme="dark">``.
    """
    light, dark = (
        f"{{color-scheme:{scheme};{''.join(f'--{n}:{c};' for n, c in sorted(colours.items()))}}}"
        for scheme, colours in (("light", LIGHT), ("dark", DARK))
    )
    return (
        f":root{light}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}\n"
        f":root[data-theme=dark]{dark}\n"
        f"@media print{{:root:root:root{light}}}"
    )


FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TAG = re.compile(r"<[^<>]+>")
STYLE = re.compile(r'<[^<>]* style="[^"]*"')
COLOUR = re.compile(r"#[0-9a-f]{6}")
FONT = re.compile(r"font-family: [^;\"]*; ?")
NUMBER = re.compile(r"-?\d+\.\d{2,}")
FOR_THE_PAGE = re.compile(r"<metadata>.*?</metadata>|<style[ >].*?</style>|(?<=\n) +", re.DOTALL)
"""Parts of a file that would affect the page that it is put into, and its blanks."""
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "attnbench",
    "text.color": INK,
    "text.parse_math": False,
    **{f"{axis}.color": GRID for axis in ("xtick", "ytick")},
    **{f"{axis}.labelcolor": INK for axis in ("xtick", "ytick")},
    **{f"{axis}.labelsize": 8 for axis in ("xtick", "ytick")},
}


@dataclass(frozen=True)
class Plot:
    """One figure."""

    name: str
    """Its file name without an ending, and its id on the page."""
    title: str
    description: str
    svg: str
    png: bytes

    @property
    def inline(self) -> str:
        """The SVG for a page, whose colours are variables of the style sheet."""

        def with_names(part: re.Match[str]) -> str:
            return COLOUR.sub(lambda colour: VARIABLES.get(colour[0], colour[0]), part[0])

        return STYLE.sub(with_names, self.svg)


@contextmanager
def sheet(width: float, height: float, layout: Any = None, hatch: str = FAINT) -> Iterator[Figure]:
    """An empty figure, so many inches wide and high; in here, draw and :func:`finish` or
    :func:`save`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whatever a reader's own settings are
        mpl.rcParams.update(SETTINGS | {"hatch.color": hatch})  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's fonts have more
        yield Figure(figsize=(width, height), facecolor=PAPER, layout=layout)


def save(figure: Figure, files: Iterable[Path]) -> None:
    """Write a figure to files, each whole or not at all; raises :class:`CantBeDone`."""
    for file in files:
        date = {"Date": None} if file.suffix == ".svg" else None
        try:
            figure.savefig(packed := io.BytesIO(), format=file.suffix[1:], dpi=130, metadata=date)
            write_whole(file, packed.getvalue(), sync=False)
        except OSError as error:
            raise CantBeDone(f"can't write {file}: {error.strerror}") from None


def finish(figure: Figure, name: str, title: str, description: str) -> Plot:
    """The figure as an SVG, which may also stand in a page beside others, and as a PNG."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = name  # so that no two figures share an id
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=120, metadata={"Software": None})
    title, description = clean(title), clean(description)
    text = clean(svg.getvalue().decode())
    text = TAG.sub(lambda tag: _shorten(tag[0]), FOR_THE_PAGE.sub("", text[text.index("<svg") :]))
    label = quoteattr(f"{title}. {description}")
    look = f'role="img" font-family="{FONTS}" style="fill:{INK}" aria-label={label}'
    return Plot(name, title, description, text.replace("<svg", f"<svg {look}", 1), png.getvalue())


def _shorten(tag: str) -> str:
    """A tag with rounded numbers and the reader's fonts, and without the id of a group."""
    if tag.startswith("<g id="):
        return "<g>"
    tag = FONT.sub("", tag).replace("xlink:href", "href")
    return NUMBER.sub(lambda number: f"{float(number[0]):.1f}", tag)


def clean(text: str) -> str:
    """The text without characters that no XML may hold."""
    return UNWRITABLE.sub("\ufffd", text)


@lru_cache(maxsize=8192)
def width(text: str, size: float, weight: str = "normal") -> float:
    """Points that a text takes in DejaVu Sans, which is wider than the fonts of most systems."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # it is as wide as a box
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


@lru_cache(maxsize=8192)
def shorten(text: str, room: float, size: float, weight: str = "normal") -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    text = " ".join(clean(text[:400]).split())
    if width(text, size, weight) <= room:
        return text
    counts = range(len(text))
    fits = bisect_right(counts, room, key=lambda count: width(f"{text[:count]}…", size, weight))
    return text[: max(0, fits - 1)].rstrip(" ,.") + "…"


def add_axes(figure: Figure, box: tuple[float, float, float, float]) -> Axes:
    """Axes whose left, bottom, right and top are at so many points from the lower left."""
    wide, high = figure.get_size_inches() * 72
    left, bottom, right, top = box
    return figure.add_axes(
        (left / wide, bottom / high, (right - left) / wide, (top - bottom) / high)
    )


def write(figure: Figure, x: float, y: float, text: str, size: float = 8.0, **more: Any) -> None:
    """Words at a place of the figure, in points from its lower left."""
    wide, high = figure.get_size_inches() * 72
    figure.text(x / wide, y / high, text, fontsize=size, **more)


def heading(figure: Figure, title: str, under: str, finding: str = "") -> None:
    """Write the title, the finding and a lesser line, each cut to the room there is."""
    wide, high = figure.get_size_inches() * 72
    room, below = wide - 10, high - 24.5
    write(figure, 6, high - 13, shorten(title, room, 9.5, "bold"), 9.5, weight="bold")
    if finding:
        write(figure, 6, below, shorten(finding, 0.97 * room, 8), 8)
        below -= 11.5
    write(figure, 6, below, shorten(under, room, 8), 8, color=FAINT)
