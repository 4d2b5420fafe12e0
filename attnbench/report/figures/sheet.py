"""The parts of every picture: colours, a sheet to draw on, its files, and its words.

Any two hues differ by 10 (CIEDE2000) or more to any eye, three simulations of colour blindness
included, and stand out from their paper by 3:1 or more; words are in ink.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from attnbench.core.format import short

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
"""The colours on light paper; the page's style sheet has those of dark paper beside them."""
LETTER = 0.55
"""About the width of a letter, of its font's size."""
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

    title: str
    description: str
    svg: str
    png: bytes

    def __html__(self) -> str:
        """As an image, so that nothing in it affects the rest of a page."""
        data = base64.b64encode(self.svg.encode()).decode()
        words = escape(f"{self.title}. {self.description}")
        source = f"data:image/svg+xml;base64,{data}"
        return f'<img alt="{words}" src="{source}" style="max-width:100%">'


@contextmanager
def sheet(width: float, height: float) -> Iterator[Figure]:
    """An empty figure, so many inches wide and high; in here, draw and :func:`finish`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whatever a reader's own settings are
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's fonts have more
        yield Figure(figsize=(width, height), facecolor=PAPER)


def finish(figure: Figure, title: str, description: str) -> Plot:
    """The figure as an SVG and as a PNG."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=120, metadata={"Software": None})
    words = clean(title), clean(description)
    return Plot(*words, clean(svg.getvalue().decode()), png.getvalue())


def clean(text: str) -> str:
    """The text without characters that no XML may hold."""
    return UNWRITABLE.sub("\ufffd", text)


def shorten(text: str, room: float, size: float) -> str:
    """The text, or about as much of it as fits into so many points, with an ellipsis."""
    return short(" ".join(clean(text).split()), int(room / (LETTER * size)))


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


def heading(figure: Figure, title: str, under: str) -> None:
    """Write the title and a lesser line, each cut to the room there is."""
    wide, high = figure.get_size_inches() * 72
    room = wide - 10
    write(figure, 6, high - 13, shorten(title, 0.9 * room, 9.5), 9.5, weight="bold")
    write(figure, 6, high - 24.5, shorten(under, room, 8), 8, color=FAINT)
