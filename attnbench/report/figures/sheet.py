"""The colours of a report, light and dark: one for each family of variants, and the paper's own.

Any two differ by 10 (CIEDE2000) or more to any eye and stand out from their paper by 3:1 or more;
words are in ink. ``tests/report/figures/test_palette.py`` measures that, under three simulations of
colour blindness.
"""

from __future__ import annotations

import csv
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from attnbench.core.disk import write_whole
from attnbench.core.format import for_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK, FAINT, GRID, PAPER = "#1c2129", "#68707c", "#dde1e7", "#ffffff"
"""Text, lesser text, lines to measure by, and the ground of everything."""
FAMILIES = {
    "dense": "#186294", "sparse": "#db7900", "lowrank": "#009e73", "linear": "#d92151",
    "layers": "#8a59da", "parallel": "#6e4621", "external": "#676f00",
}  # fmt: skip
OTHER = "#3d4f60"
"""Of a family that is not ours."""
NAMES = {
    INK: "ink", FAINT: "faint", GRID: "grid", PAPER: "paper", OTHER: "other",
    **{colour: family for family, colour in FAMILIES.items()},
}  # fmt: skip
"""What a colour is called in the page's style sheet, as ``var(--dense)``."""
LIGHT = {name: colour for colour, name in NAMES.items()}
DARK = {
    "ink": "#e6e9ee", "faint": "#98a1ad", "grid": "#2b323c", "paper": "#14171c",
    "other": "#cfd9e4", "dense": "#538cb9", "sparse": "#f89848", "lowrank": "#39d3ac",
    "linear": "#ee5d86", "layers": "#b68df9", "parallel": "#a8744a", "external": "#e7e553",
}  # fmt: skip
"""The same by their names, where the paper is dark."""
DEEPEST = 0.38
"""How much of a family's colour may lie under words that are still to be read."""


def css() -> str:
    """The colours by their names: as the system has it, as the reader chose, and light on paper.

    A reader's choice is an attribute of the page: ``<html data-theme="dark">``.
    """
    light, dark = _set(LIGHT, "light"), _set(DARK, "dark")
    return "\n".join(
        (
            f":root{light}",
            f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}",
            f":root[data-theme=dark]{dark}",
            f"@media print{{:root:root:root{light}}}",
        )
    )


def _set(colours: Mapping[str, str], scheme: str) -> str:
    said = "".join(f"--{name}:{colour};" for name, colour in sorted(colours.items()))
    return f"{{color-scheme:{scheme};{said}}}"


SVG = "http://www.w3.org/2000/svg"
DPI = 120
FONTS = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
USELESS = ("font-family", "stroke-linecap", "stroke-linejoin")
"""Of a style, what all elements have alike, or what nobody sees."""
NUMBER = re.compile(r"-?\d+\.\d{2,}")
REFERRED = re.compile(r"(url\(#|^#)([\w-]+)")
COLOUR = re.compile(r"#[0-9a-f]{6}")
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML may hold."""
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": INK, "axes.titlesize": 9, "axes.labelsize": 8.5,
    "xtick.color": GRID, "ytick.color": GRID, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "hatch.color": FAINT, "hatch.linewidth": 0.6,
    "text.parse_math": False, "svg.hashsalt": "attnbench",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """One figure."""

    section: str
    """Of the page: map, scaling, tradeoffs, roofline, closeness, memory, shares, attention."""
    name: str
    """Its file without an ending, and its id on the page."""
    title: str
    told: str
    """A sentence for who can't see it."""
    svg: str
    inline: str
    png: bytes
    """Nothing of a figure that is another's in another unit."""
    csv: str
    regime: int | None = None
    """The number of the regime it is about; None: of several."""
    unit: str = ""
    """That a page shows it in; empty where it is the same in all."""


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


def save(figure: Figure, file: Path, **more: Any) -> None:
    """The figure into a file, whole or not at all; raises OSError."""
    figure.savefig(packed := io.BytesIO(), format=file.suffix[1:], **more)
    write_whole(file, packed.getvalue(), sync=False)


def finish(
    figure: Figure,
    section: str,
    name: str,
    title: str,
    told: str,
    rows: Iterable[Sequence[Any]],
    *,
    regime: int | None = None,
    unit: str = "",
    with_png: bool = True,
) -> Drawn:
    """The figure as files. ``rows``: what it shows, the names of the columns first.

    An artist whose gid is ``v7`` or ``v7|words`` belongs to that variant; the words are shown where
    a pointer rests on it.
    """
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    if with_png:
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    title, told = clean(title), clean(told)
    root = ElementTree.fromstring(clean(svg.getvalue().decode()))
    _tidy(root, name, title, told)
    alone = _text(root)
    _theme(root)
    return Drawn(
        section,
        name,
        title,
        told,
        alone,
        _text(root),
        png.getvalue(),
        _csv(rows),
        regime,
        unit,
    )


def clean(text: str) -> str:
    """The text without what no file could hold."""
    return UNWRITABLE.sub("\ufffd", text)


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(map(for_sheet, row) for row in rows)
    return made.getvalue()


def _tidy(root: ElementTree.Element, name: str, title: str, told: str) -> None:
    """What matplotlib wrote, with less of it: no metadata, short numbers, ids of this figure alone.

    Sizes are left to the view box, so that the figure is as wide as its place.
    """
    for gone in list(root):  # a style here would be one for all of a page
        if gone.tag == f"{{{SVG}}}metadata" or gone.find(f"{{{SVG}}}style") is not None:
            root.remove(gone)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    for element in root.iter():
        _shorten(element)
    _share_styles(root)
    _name(root, name)
    _flatten(root)
    root.set("role", "img")
    root.set("aria-label", f"{title}. {told}")
    root.set("font-family", FONTS)
    root.set("stroke-linejoin", "round")
    root.set("style", f"fill:{INK}")


def _shorten(element: ElementTree.Element) -> None:
    for key, value in list(element.attrib.items()):
        if key.startswith("{"):  # xlink:href, which is plain href by now
            del element.attrib[key]
            key = key.rpartition("}")[2]
        if key == "id":
            continue
        value = NUMBER.sub(lambda found: f"{float(found[0]):.1f}", value)
        if key == "style":
            value = ";".join(
                part
                for each in value.split(";")
                if not (part := each.strip().replace(": ", ":")).startswith(USELESS)
            )
            if element.tag == f"{{{SVG}}}text":
                value = ";".join(part for part in value.split(";") if part != f"fill:{INK}")
        element.set(key, " ".join(value.split()).replace(".0 ", " "))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for around in ("text", "tail"):
        if not (getattr(element, around) or "").strip():
            setattr(element, around, None)


def _share_styles(root: ElementTree.Element) -> None:
    """A marker's style is said once, where it is drawn once, and not at each of its points.

    One that is drawn once altogether is no definition that is used, but drawn there.
    """
    parents = {child: parent for parent in root.iter() for child in parent}
    paths = {path.get("id"): path for path in root.iter(f"{{{SVG}}}path") if path.get("id")}
    uses: dict[str, list[ElementTree.Element]] = {}
    for use in root.iter(f"{{{SVG}}}use"):
        uses.setdefault(use.get("href", "")[1:], []).append(use)
    for id_, some in uses.items():
        styles = {use.get("style") for use in some}
        if len(styles) == 1 and id_ in paths and (style := styles.pop()) is not None:
            paths[id_].set("style", style)
            for use in some:
                del use.attrib["style"]
        if len(some) == 1 and id_ in paths:
            _draw_there(some[0], paths[id_])
            parents[paths[id_]].remove(paths[id_])
    for defs in list(root.iter(f"{{{SVG}}}defs")):
        if not len(defs):
            parents[defs].remove(defs)


def _draw_there(use: ElementTree.Element, path: ElementTree.Element) -> None:
    at = f"translate({use.get('x', '0')} {use.get('y', '0')})"
    style = use.get("style") or path.get("style") or ""
    use.clear()
    use.tag = path.tag
    use.attrib.update({"d": path.get("d", ""), "transform": at, "style": style})


def _flatten(root: ElementTree.Element) -> None:
    """Groups that say nothing of what is in them go; what is in them stays where it was."""
    for parent in list(root.iter()):
        children: list[ElementTree.Element] = []
        waiting = list(parent)[::-1]
        while waiting:
            child = waiting.pop()
            if child.tag == f"{{{SVG}}}g" and not child.attrib:
                waiting += list(child)[::-1]
            else:
                children.append(child)
        parent[:] = children


def _name(root: ElementTree.Element, name: str) -> None:
    """Variants' parts get their class and words; what is referred to keeps an id, the rest none."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = {
        old: f"{name}-{number}"
        for number, old in enumerate(dict.fromkeys(re.findall(r"[\"(]#([\w-]+)", text)))
    }
    for element in list(root.iter()):
        given = element.attrib.pop("id", "")
        if given in used:
            element.set("id", used[given])
        elif re.fullmatch(r"v\d+(\|.*)?", given, re.DOTALL):
            variant, _, words = given.partition("|")
            element.set("class", f"v {variant}")
            if words:
                said = ElementTree.Element(f"{{{SVG}}}title")
                said.text = words
                element.insert(0, said)
        for key in ("href", "clip-path", "style"):
            if key in element.attrib:
                element.set(
                    key,
                    REFERRED.sub(
                        lambda found: found[1] + used.get(found[2], found[2]), element.attrib[key]
                    ),
                )


def _text(root: ElementTree.Element) -> str:
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _theme(root: ElementTree.Element) -> None:
    """Colours by their names; what only looks like one, in somebody's name, stays."""
    for element in root.iter():
        if "style" in element.attrib:
            element.set("style", COLOUR.sub(_named, element.attrib["style"]))


def _named(found: re.Match[str]) -> str:
    name = NAMES.get(found[0])
    return f"var(--{name})" if name else found[0]


ELLIPSIS = "…"
Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


@lru_cache(maxsize=8192)
def width(text: str, size: float, weight: str = "normal") -> float:
    """How wide a text is in DejaVu Sans, which is wider than what most systems show."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # it is as wide as a box
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


@lru_cache(maxsize=8192)
def shorten(text: str, room: float, size: float, weight: str = "normal") -> str:
    """The text, or as much of its beginning as there is room for, and an ellipsis."""
    text = " ".join(clean(text[:400]).split())
    if width(text, size, weight) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if width(text[:middle] + ELLIPSIS, size, weight) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip(" ,.") + ELLIPSIS


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near the wanted ones as can be, a gap or more apart and within the limits.

    Where there is no room for all gaps, they shrink alike. What wants the same place keeps its
    order.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # of each: how many, and the sum of what their first one wants
    for rank, i in enumerate(order):
        groups.append([1, min(max(wanted[i], low), high) - rank * gap])
        while len(groups) > 1 and groups[-2][1] / groups[-2][0] > groups[-1][1] / groups[-1][0]:
            count, total = groups.pop()
            groups[-1][0] += count
            groups[-1][1] += total
    firsts = [total / count for count, total in groups for _ in range(int(count))]
    top = high - (len(order) - 1) * gap
    placed = [0.0] * len(wanted)
    for rank, (i, first) in enumerate(zip(order, firsts, strict=True)):
        placed[i] = min(max(first, low), top) + rank * gap
    return placed


@dataclass(frozen=True)
class Spot:
    """A point that wants a name."""

    x: float
    y: float
    text: str


SIDES = (
    (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (0.5, 1), (0.5, -1),
    (-0.5, 1), (-0.5, -1),
)  # fmt: skip
"""Of a point, to the right and up, where its name may stand: the best first."""
HEIGHT = 1.2
"""Of a line of words, in sizes of its letters."""


THREAD = 6.0
"""A name that is further from its point has a line to it."""
CLEAR = 1.5
"""Another's point is further from a name without a line than its own, by this and more."""


def place(
    spots: Sequence[Spot],
    taken: Iterable[Box],
    frame: Box,
    size: float,
    far: float = 30.0,
    points: Sequence[tuple[float, float]] = (),
) -> list[Box | None]:
    """Where each name goes; None where it would lie on something wherever it stood nearby.

    The first in the list choose first. ``taken``: what no name may lie on, the points' marks among
    them. No name lies on the way from another to its point. ``points``: all that a name could be
    taken for; where another is as near as its own, a name stands further off, on a thread that
    crosses none of them.
    """
    full, names, ways = list(taken), list[Box](), list[Box]()
    found: list[Box | None] = []
    for spot in spots:
        wide, high = width(spot.text, size), HEIGHT * size
        free = (
            (box, way)
            for box, way in _around(spot, wide, high, far)
            if _inside(box, frame)
            and not any(over(box, other) for other in (*full, *ways))
            and not any(over(step, name) for step in way for name in names)
            and _is_its_own(spot, box, way, points)
        )
        box, way = next(free, (None, []))
        found.append(box)
        if box:
            full.append(margin(box))
            names.append(box)
            ways += way
    return found


def _around(spot: Spot, wide: float, high: float, far: float) -> Iterator[tuple[Box, list[Box]]]:
    """Places near a point, and the way there: beside it, above, below, then further off."""
    for distance in (5.0, 9.0, 15.0, 22.0, 30.0, 40.0):
        if distance > far:
            return
        for right, up in SIDES:
            step = distance if 0 in (right, up) else distance * 0.6
            x = spot.x + right * step - wide * (1 - right) / 2
            y = spot.y + up * step - high * (1 - up) / 2
            box = (x, y, x + wide, y + high)
            yield box, way(spot.x, spot.y, *nearest(spot, box))


def nearest(spot: Spot, box: Box) -> tuple[float, float]:
    """The place of a box that is nearest to a point."""
    return min(max(spot.x, box[0]), box[2]), min(max(spot.y, box[1]), box[3])


def margin(box: Box) -> Box:
    """A name's place, with as much around it as keeps the next one apart."""
    return (box[0] - 3, box[1] - 1, box[2] + 3, box[3] + 1)


def threaded(spot: Spot, box: Box) -> bool:
    """Whether a name is so far from its point that a line leads there."""
    return away(spot.x, spot.y, box) > THREAD


def away(x: float, y: float, box: Box) -> float:
    """How far a point is from a place."""
    near_x, near_y = nearest(Spot(x, y, ""), box)
    return math.hypot(near_x - x, near_y - y)


def _is_its_own(
    spot: Spot, box: Box, way: Sequence[Box], points: Sequence[tuple[float, float]]
) -> bool:
    """Whether nobody could take a name there for another point's."""
    others = [at for at in points if at != (spot.x, spot.y)]
    twins = len(points) - len(others) > 1
    if threaded(spot, box):
        apart = [(x, y) for x, y in others if math.hypot(x - spot.x, y - spot.y) > THREAD]
        return not any(over(step, (x - 2, y - 2, x + 2, y + 2)) for step in way for x, y in apart)
    own = away(spot.x, spot.y, box)
    return not twins and all(away(x, y, box) > own + CLEAR for x, y in others)


def way(x: float, y: float, to_x: float, to_y: float, step: float = 3.0) -> list[Box]:
    """A line, as a row of small boxes."""
    count = max(1, math.ceil(math.hypot(to_x - x, to_y - y) / step))
    along = [(x + (to_x - x) * n / count, y + (to_y - y) * n / count) for n in range(count + 1)]
    return [(a - 0.6, b - 0.6, a + 0.6, b + 0.6) for a, b in along]


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def over(one: Box, other: Box) -> bool:
    """Whether two places share any of the paper."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def write(figure: Figure, x: float, y: float, text: str, size: float = 8.0, **more: Any) -> None:
    """Words at a place of the figure, in points from its lower left."""
    wide, high = figure.get_size_inches() * 72
    figure.text(x / wide, y / high, text, fontsize=size, **more)


def line(figure: Figure, xs: Sequence[float], ys: Sequence[float], **more: Any) -> None:
    """A line, or a marker, at places of the figure, in points from its lower left."""
    from matplotlib.lines import Line2D

    wide, high = figure.get_size_inches() * 72
    figure.add_artist(Line2D([x / wide for x in xs], [y / high for y in ys], **more))


FINDING = 11.5
"""What a finding takes of a figure's height."""
FITS = 0.97
"""Of the room for it, as much as a text may take that is drawn in pixels."""


def heading(figure: Figure, title: str, under: str, finding: str = "", left: float = 6.0) -> None:
    """What is drawn, what it shows, and in lesser words of what; as wide as there is room."""
    wide, high = figure.get_size_inches() * 72
    room = wide - left - 4
    write(figure, left, high - 13, shorten(title, room, 9.5, "bold"), 9.5, weight="bold")
    if finding:
        write(figure, left, high - 24.5, shorten(finding, FITS * room, 8), 8)
    below = 24.5 + FINDING * bool(finding)
    write(figure, left, high - below, shorten(under, room, 8), 8, color=FAINT)


LISTED = 12
"""There is never room for more names."""


def listed(names: Sequence[str], room: float, size: float) -> str:
    """As many whole names as there is room for, and how many more there are: ``a, b +3``."""
    for count in range(min(len(names), LISTED), 0, -1):
        more = f" +{len(names) - count}" * (count < len(names))
        text = ", ".join(names[:count]) + more
        if width(text, size) <= room:
            return text
    more = f" +{len(names) - 1}" * (len(names) > 1)
    return shorten(names[0], room - width(more, size), size) + more if names else ""
