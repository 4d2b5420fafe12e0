"""Memory over one call as a picture: what is alive when, stacked by what allocated it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.said import plain, short, size
from attnbench.report.figures.palette import GRID, INK, PAPER
from attnbench.report.figures.sheet import save
from attnbench.report.map_picture import BadPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
GRADIENT, AGAIN = "////", ".."
"""Hatches: over what the gradients allocate, and over a color that is used for the second time."""
LEAST = 0.005
"""Of the peak: what never held more gets no place in the key."""
CODE, OPERATOR = 46, 23
"""Characters of a line of code, and of an operator's name, that the key has room for."""
WIDE, HIGH, LINE = 7.6, 4.2, 0.19
"""Inches: a panel's width, its height, and that of a line of the key."""
LEAST_KEYS = 6
GUIDE = 0.1
"""A guide at the size of all scores is drawn where that is so much of the height, or more."""

Profile = Mapping[str, Any]


def draw(profiles: Sequence[Profile], files: Sequence[Path]) -> None:
    """One variant's memory, or two side by side on one scale of bytes and one of time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    settings: dict[Any, Any] = {
        "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "attnbench", "hatch.linewidth": 0.5,
        "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": INK, "hatch.color": PAPER,
    }  # fmt: skip
    with mpl.rc_context(settings):
        keys = max(LEAST_KEYS, 1 + max(len(_shown(p["memory"])) for p in profiles))
        figure, (row, below) = plt.subplots(
            2, len(profiles), figsize=(WIDE * len(profiles), HIGH + LINE * keys), squeeze=False,
            height_ratios=(HIGH, LINE * keys), layout="constrained", facecolor=PAPER,
        )  # fmt: skip
        title = " against ".join(p["variant"] for p in profiles)
        words = f"{title}: memory above the inputs over one call\n{profiles[0]['slug']}"
        figure.suptitle(words, fontsize=11, x=0.01, ha="left")
        top = max((p["memory"]["peak_bytes"] for p in profiles), default=0) or 1
        end = max(1e-6, *(p["memory"]["end_ms"] for p in profiles))
        row[0].set_ylabel("alive, MiB")
        for axes, key, profile in zip(row, below, profiles, strict=True):
            axes.set_xlim(0, end)
            axes.set_ylim(0, 1.15 * top / MIB)
            bands = _bands(profile["memory"], mpl.color_sequences["petroff10"])
            _panel(axes, profile, bands, top, end)
            _key(key, bands, keys)
        try:
            for file in files:
                svg = {"Date": None} if file.suffix == ".svg" else None
                save(figure, file, dpi=130, metadata=svg)
        except OSError as error:
            raise BadPicture(f"can't write {file}: {error.strerror}") from None
        finally:
            plt.close(figure)


class Band(NamedTuple):
    """A source's place in the picture."""

    number: int
    source: Mapping[str, Any]
    look: dict[str, Any]


def _bands(memory: Mapping[str, Any], colors: Sequence[Any]) -> list[Band]:
    """From the bottom up, each of another color or hatch."""
    bands = list[Band]()
    for turn, number in enumerate(_shown(memory)):
        source = memory["sources"][number]
        hatch = GRADIENT * source["backward"] + AGAIN * (turn // len(colors))
        look = {
            "facecolor": colors[turn % len(colors)], "edgecolor": PAPER, "linewidth": 0.6,
            "hatch": hatch or None,
        }  # fmt: skip
        bands.append(Band(number, source, look))
    return bands


def _shown(memory: Mapping[str, Any]) -> list[int]:
    """The sources that are worth a band of their own, by the first instant at which each is alive,
    so that what stays lies at the bottom.
    """
    first = {}
    for number, source in enumerate(memory["sources"]):
        if source["most_bytes"] > LEAST * memory["peak_bytes"]:
            first[number] = next(i for i, row in enumerate(memory["alive"]) if row[number])
    return sorted(first, key=lambda number: (first[number], number))


def _panel(axes: Axes, profile: Profile, bands: Sequence[Band], top: float, end: float) -> None:
    memory = profile["memory"]
    at = [0.0, *memory["at_ms"], memory["end_ms"]]
    below = [0.0] * len(at)
    for number, _, look in bands:
        values = [row[number] / MIB for row in memory["alive"]]
        above = [b + v for b, v in zip(below, [0.0, *values, *values[-1:]], strict=True)]
        axes.fill_between(at, below, above, step="post", **look)
        below = above
    _guides(axes, memory, top, end)
    axes.set_xlabel("ms, with every allocation noted")
    axes.set_title(_title(profile), loc="left", fontsize=9)
    axes.grid(color=GRID, linewidth=0.6, axis="y")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=GRID)


def _key(axes: Axes, bands: Sequence[Band], lines: int) -> None:
    """A line for each band, in the order in which they lie on each other."""
    from matplotlib.patches import Rectangle

    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(-lines, 0)
    for line, (_, source, look) in enumerate(reversed(bands), 1):
        axes.add_patch(Rectangle((0, -line + 0.15), 0.03, 0.7, **look))
        axes.text(0.04, -line + 0.5, _label(source), va="center", fontsize=7,
                  family="DejaVu Sans Mono", clip_on=True)  # fmt: skip


def _title(profile: Profile) -> str:
    memory = profile["memory"]
    text = f"{profile['variant']}: peak {size(memory['peak_bytes'])}"
    if memory["turn_bytes"] is not None:
        text += f", {size(memory['turn_bytes'])} between forward and backward"
    caveats = "".join(f"\n{caveat}" for caveat in profile["caveats"])
    striped = "\nstriped: allocated by the gradient of that line" if memory["turn_ms"] else ""
    return text + striped + caveats


def _label(source: Mapping[str, Any]) -> str:
    """``32 MiB  einsum.py:22  bmm  torch.einsum(…``"""
    made = short(plain(source["operator"]), OPERATOR) + " in gradient" * source["backward"]
    code = source["code"] if len(source["code"]) <= CODE else source["code"][: CODE - 1] + "…"
    text = f"{size(source['most_bytes']):>8}  {source['place'] or '–':<17} {made:<35} {code}"
    return text.rstrip().replace("$", r"\$")


def _guides(axes: Axes, memory: Mapping[str, Any], top: float, end: float) -> None:
    """The peak, the turn from forward to backward, and the size of all scores."""
    if memory["turn_ms"] is not None:
        axes.axvline(memory["turn_ms"], color=INK, linewidth=0.8, linestyle="--")
        axes.text(memory["turn_ms"], 0.995, " backward", transform=axes.get_xaxis_transform(),
                  fontsize=8, va="top")  # fmt: skip
    peak = memory["peak_bytes"] / MIB
    late = memory["peak_ms"] > end / 2
    axes.plot([memory["peak_ms"]], [peak], "v", color=INK, markersize=5)
    axes.annotate(f"peak {size(memory['peak_bytes'])}", (memory["peak_ms"], peak),
                  xytext=(-6 if late else 6, 3), textcoords="offset points", fontsize=8,
                  ha="right" if late else "left")  # fmt: skip
    scores = memory["scores_bytes"]
    if GUIDE * top <= scores <= top:
        axes.axhline(scores / MIB, color=INK, linewidth=0.6, linestyle=":")
        axes.text(0.995, scores / MIB, f"all scores once: {size(scores)}", fontsize=7, ha="right",
                  va="center", transform=axes.get_yaxis_transform(),
                  bbox={"facecolor": PAPER, "linewidth": 0, "pad": 1, "alpha": 0.8})  # fmt: skip
