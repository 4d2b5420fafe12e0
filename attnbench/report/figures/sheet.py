"""What every figure is made of: colours, a sheet to draw on, the files made of it, and its words.

Any two hues differ by 10 (CIEDE2000) or more to any eye, three simulations of colour blindness
included, and stand out from their paper by 3:1 or more; words are in ink.
"""

from __future__ import annotations

import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from attnbench.core.disk import write_whole
from attnbench.report.tables import csv_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, FAINT, GRID, PAPER = "#1c2129", "#68707c", "#dde1e7", "#ffffff"
HUES = {
    "blue": "#186294", "orange": "#db7900", "green": "#009e73", "red": "#d92151",
    "violet": "#8a59da", "brown": "#6e4621", "olive": "#676f00", "slate": "#3d4f60",
}  # fmt: skip
OTHER = HUES["slate"]
"""The colour of what a report has no look for."""
NAMES = {
    INK: "ink", FAINT: "faint", GRID: "grid", PAPER: "paper",
    **{colour: name for name, colour in HUES.items()},
}  # fmt: skip
"""Their names in the page's style sheet."""
VARIABLES = {colour: f"var(--{name})" for colour, name in NAMES.items()}
LIGHT = {name: colour for colour, name in NAMES.items()}
DARK = {
    "ink": "#e6e9ee", "faint": "#98a1ad", "grid": "#2b323c", "paper": "#14171c",
    "slate": "#cfd9e4", "blue": "#538cb9", "orange": "#f89848", "green": "#39d3ac",
    "red": "#ee5d86", "violet": "#b68df9", "brown": "#a8744a", "olive": "#e7e553",
}  # fmt: skip
DEEPEST = 0.38
"""The highest opacity of a hue under words that stay readable."""


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


SVG = "{http://www.w3.org/2000/svg}"
FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
COLOUR = re.compile(r"#[0-9a-f]{6}")
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": INK, "axes.titlesize": 9, "axes.labelsize": 8.5,
    "xtick.color": GRID, "ytick.color": GRID, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "hatch.linewidth": 0.6,
    "text.parse_math": False, "svg.hashsalt": "attnbench",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """One figure."""

    section: str
    """Of the page: map, scaling, tradeoffs, roofline, closeness, memory, shares, attention."""
    name: str
    """Its file name without an ending, and its id on the page."""
    title: str
    description: str
    svg: str
    png: bytes
    csv: str

    @property
    def inline(self) -> str:
        """The SVG for a page, whose colours are variables of the style sheet."""
        root = ElementTree.fromstring(self.svg)
        for element in root.iter():  # what only looks like a colour in a text stays
            if style := element.get("style"):
                element.set("style", COLOUR.sub(lambda c: VARIABLES.get(c[0], c[0]), style))
        return ElementTree.tostring(root, encoding="unicode") + "\n"


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


def finish(
    figure: Figure,
    section: str,
    name: str,
    title: str,
    description: str,
    rows: Iterable[Sequence[Any]],
) -> Drawn:
    """The figure as files. ``rows``: its numbers, the names of the columns first."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=120, metadata={"Software": None})
    title, description = clean(title), clean(description)
    ElementTree.register_namespace("", SVG.strip("{}"))
    root = ElementTree.fromstring(clean(svg.getvalue().decode()))
    for child in list(root):  # a style here would apply to the whole page
        if child.tag == f"{SVG}metadata" or child.find(f"{SVG}style") is not None:
            root.remove(child)
    for key in ("width", "height", "version"):  # its place on the page says how wide it is
        del root.attrib[key]
    _shorten(root)
    _name_parts(root, name)
    look = {"font-family": FONTS, "stroke-linejoin": "round", "style": f"fill:{INK}"}
    root.attrib.update({"role": "img", **look, "aria-label": f"{title}. {description}"})
    alone = ElementTree.tostring(root, encoding="unicode") + "\n"
    return Drawn(section, name, title, description, alone, png.getvalue(), csv_of(rows))


def clean(text: str) -> str:
    """The text without characters that no XML may hold."""
    return UNWRITABLE.sub("\ufffd", text)


def _shorten(root: ElementTree.Element) -> None:
    """Round numbers, drop what is the same in all styles, and state that of a marker once."""
    uses: dict[str, list[ElementTree.Element]] = {}
    for element in root.iter():
        useless = ["font-family", "stroke-linecap", "stroke-linejoin"]
        useless += [f"fill:{INK}"] * (element.tag == f"{SVG}text")
        for key, value in [(k, v) for k, v in element.attrib.items() if k != "id"]:
            if key.startswith("{"):  # xlink:href, which is plain href by now
                del element.attrib[key]
                key = key.rpartition("}")[2]
            value = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", value)
            if key == "style":
                parts = (part.strip().replace(": ", ":") for part in value.split(";"))
                value = ";".join(part for part in parts if not part.startswith(tuple(useless)))
            element.set(key, " ".join(value.split()).replace(".0 ", " "))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.text = element.text if (element.text or "").strip() else None
        element.tail = None
        if element.tag == f"{SVG}use":
            uses.setdefault(element.get("href", "")[1:], []).append(element)
    for path in root.iter(f"{SVG}path"):
        some = uses.get(path.get("id", ""), [])
        styles = {use.attrib.get("style", "") for use in some}
        if len(styles) == 1:
            path.set("style", styles.pop())
            for use in some:
                use.attrib.pop("style", None)


def _name_parts(root: ElementTree.Element, name: str) -> None:
    """Give ids that belong to this figure alone, where something refers to them; drop groups."""
    ids = re.findall(r"[\"(]#([\w-]+)", ElementTree.tostring(root, encoding="unicode"))
    new = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(ids))}
    for element in list(root.iter()):
        old = element.attrib.pop("id", "")
        if old in new:
            element.set("id", new[old])
        for key in {"href", "clip-path", "style"} & element.attrib.keys():
            value = element.attrib[key]
            refer = r"((?:url\(|^)#)([\w-]+)"
            element.set(key, re.sub(refer, lambda at: at[1] + new.get(at[2], at[2]), value))
    for parent in reversed(list(root.iter())):  # a group without attributes gives way to its parts
        bare = (child.tag == f"{SVG}g" and not child.attrib for child in parent)
        parts = (list(c) if drop else [c] for c, drop in zip(parent, bare, strict=True))
        parent[:] = list(chain.from_iterable(parts))


Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


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


def listed(names: Sequence[str], room: float, size: float) -> str:
    """As many whole names as fit, and the number of the others: ``a, b +3``."""
    for count in range(min(len(names), 12), 0, -1):
        text = ", ".join(names[:count]) + f" +{len(names) - count}" * (count < len(names))
        if width(text, size) <= room:
            return text
    more = f" +{len(names) - 1}" * (len(names) > 1)
    return shorten(names[0], room - width(more, size), size) + more if names else ""


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near the wanted ones as possible, a gap or more apart and within the limits.

    Gaps shrink alike if there is no room for them. Equal places keep their order.
    """
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[int, float]] = []
    """Of names that touch: how many, and the sum of the places that their first one wants."""
    for rank, i in enumerate(order):
        count, total = 1, min(max(wanted[i], low), high) - rank * gap
        while groups and groups[-1][1] / groups[-1][0] > total / count:
            before = groups.pop()
            count, total = count + before[0], total + before[1]
        groups.append((count, total))
    firsts = [total / count for count, total in groups for _ in range(count)]
    top, places = high - (len(order) - 1) * gap, [0.0] * len(order)
    for rank, (i, first) in enumerate(zip(order, firsts, strict=True)):
        places[i] = min(max(first, low), top) + rank * gap
    return places


def add_axes(figure: Figure, box: Box) -> Axes:
    """Axes at a place of the figure, in points from its lower left."""
    wide, high = figure.get_size_inches() * 72
    left, bottom, right, top = box
    return figure.add_axes(
        (left / wide, bottom / high, (right - left) / wide, (top - bottom) / high)
    )


def at(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """The place of a value in axes, in points from the lower left of their figure."""
    across, up = axes.transData.transform((x, y)) * 72 / axes.figure.dpi
    return float(across), float(up)


def write(figure: Figure, x: float, y: float, text: str, size: float = 8.0, **more: Any) -> None:
    """Words at a place of the figure, in points from its lower left."""
    wide, high = figure.get_size_inches() * 72
    figure.text(x / wide, y / high, text, fontsize=size, **more)


def line(figure: Figure, xs: Sequence[float], ys: Sequence[float], **more: Any) -> None:
    """A line, or a marker, at places of the figure, in points from its lower left."""
    from matplotlib.lines import Line2D

    wide, high = figure.get_size_inches() * 72
    figure.add_artist(Line2D([x / wide for x in xs], [y / high for y in ys], **more))


FITS = 0.97
"""The share of its room that a text in pixels may take."""


def heading(figure: Figure, title: str, under: str, finding: str = "") -> None:
    """Write the title, the finding and a lesser line, each cut to the room there is."""
    wide, high = figure.get_size_inches() * 72
    room, below = wide - 10, high - 24.5
    write(figure, 6, high - 13, shorten(title, room, 9.5, "bold"), 9.5, weight="bold")
    if finding:
        write(figure, 6, below, shorten(finding, FITS * room, 8), 8)
        below -= 11.5
    write(figure, 6, below, shorten(under, room, 8), 8, color=FAINT)
