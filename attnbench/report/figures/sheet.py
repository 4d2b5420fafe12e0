"""A sheet to draw on, and what becomes of it: an SVG that stands alone, the same for a page, a PNG.

On the page colours are names (``var(--dense)``), so that a theme can change them; text stays text;
what belongs to a variant carries its class. The same drawing gives the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from attnbench.outside_text import for_sheet
from attnbench.report.figures.palette import FAINT, GRID, INK, NAMES, PAPER
from attnbench.store.disk import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def finish(figure: Figure, section: str, name: str, title: str, told: str,
           rows: Iterable[Sequence[Any]], *, regime: int | None = None, unit: str = "",
           with_png: bool = True) -> Drawn:  # fmt: skip
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
        section, name, title, told, alone, _text(root), png.getvalue(), _csv(rows), regime, unit,
    )  # fmt: skip


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
                part for each in value.split(";")
                if not (part := each.strip().replace(": ", ":")).startswith(USELESS)
            )  # fmt: skip
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
    used = {old: f"{name}-{number}" for number, old in enumerate(
        dict.fromkeys(re.findall(r"[\"(]#([\w-]+)", text)))}  # fmt: skip
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
                element.set(key, REFERRED.sub(
                    lambda found: found[1] + used.get(found[2], found[2]), element.attrib[key]
                ))  # fmt: skip


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
