"""Memory taken apart: what stays for backward, what is needed besides, what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.core.disk import from_json
from attnbench.core.format import milliseconds, plain, size
from attnbench.core.record import Record
from attnbench.report.figures import style
from attnbench.report.figures.sheet import (
    FAINT,
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
from attnbench.report.figures.style import Look, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes


REST = 1.13
"""Inches of all but rows."""
MOST = 24
WIDE = 40.0
"""Where the largest is so many times the least, lengths in proportion would be points."""
LIGHT = 0.38
TICKS = 5
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Bar:
    """A variant's, in bytes."""

    variant: str
    peak: int
    saved: int
    expected: int | None


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """At the longest length that most reach; None where memory was not measured there."""
    length = scene.regime.longest()
    records = scene.regime.timed(length) if length else {}
    everyone = sorted(_bars(records.values()), key=lambda b: (b.peak, b.saved, b.variant))
    if not everyone or length is None:
        return None
    bars = _chosen(everyone, looks)
    height = style.HIGH * len(bars) + REST
    left_out = len(everyone) - len(bars)
    title = f"Peak memory above the inputs: {scene.regime.phase}, {length:,} tokens"
    with sheet(style.WIDTH, height) as figure:
        low, high = 0.42 / height, 1 - 0.63 / height
        axes = figure.add_axes((style.LEFT, low, style.RIGHT - style.LEFT, high - low))
        _frame(axes, bars)
        for row, bar in enumerate(bars):
            _row(axes, row, bar, looks[bar.variant])
        under = _key(bars, axes.get_xscale()) or str(scene.regime)
        heading(figure, title, under, _finding(everyone, looks))
        below = ["logarithmic scale"] if axes.get_xscale() == "log" else []
        below += [f"{left_out} more in the CSV"] if left_out else []
        axes.set_xlabel("; ".join(below), fontsize=6.8, color=FAINT, labelpad=2)
        return finish(
            figure,
            "memory",
            f"memory-{scene.name}",
            f"{title} ({scene.regime})",
            _told(everyone, looks),
            _table(everyone, looks, length),
            regime=scene.number,
        )


def _bars(records: Sequence[Record] | Any) -> Iterator[Bar]:
    for record in records:
        memory = record.memory
        if memory and memory.peak_bytes and memory.peak_bytes > 0:
            saved = min(memory.saved_bytes or 0, memory.peak_bytes)
            yield Bar(record.variant, memory.peak_bytes, saved, memory.expected_bytes)


def _chosen(bars: Sequence[Bar], looks: Looks) -> list[Bar]:
    """All that are exact, so far as there is room, and of the others those that need least."""
    if len(bars) <= MOST:
        return list(bars)
    others = [b for b in bars if not looks[b.variant].exact]
    exact = [b for b in bars if looks[b.variant].exact][: MOST - min(len(others), MOST // 3)]
    others = others[: MOST - len(exact)]
    return sorted([*exact, *others], key=lambda b: (b.peak, b.saved, b.variant))


def _frame(axes: Axes, bars: Sequence[Bar]) -> None:
    top = max(max(b.peak, b.expected or 0) for b in bars)
    least = min(b.peak for b in bars)
    style.frame(axes, len(bars))
    if top > WIDE * least:
        small = min([least, *(b.saved for b in bars if b.saved > least / 30)])
        axes.set(xscale="log", xlim=(small / 1.5, top * 1.25))
        axes.minorticks_off()
        every = [4.0**n for n in range(41) if small / 1.5 <= 4.0**n <= top]
        every = every[:: max(1, -(-len(every) // TICKS))]
    else:
        axes.set_xlim(0, top)
        every = _linear(top)
    axes.set_xticks(every, [size(x) if x else "0" for x in every])
    axes.tick_params(axis="x", labelsize=7)


def _linear(top: float) -> list[float]:
    """Round numbers of bytes: a power of 1024 times 1, 2 or 5 and tens; five at the most."""
    for unit in (1.0, 2.0**10, 2.0**20, 2.0**30, 2.0**40):
        for step in STEPS:
            if top / (step * unit) <= 4.5:
                return [k * step * unit for k in range(int(top / (step * unit)) + 1)]
    return [0.0, top]


def _row(axes: Axes, row: int, bar: Bar, look: Look) -> None:
    words = f"{bar.variant}: peak {size(bar.peak)}" + (
        f", {size(bar.saved)} of it saved for backward" * bool(bar.saved)
        + (f"; expected {size(bar.expected)}" if bar.expected else "")
    )
    if axes.get_xscale() == "log":
        _dot(axes, row, bar, look, words)
    else:
        style.bar(axes, row, (0, bar.saved), look, words)
        style.bar(axes, row, (bar.saved, bar.peak), look, words, LIGHT)
    if bar.expected and axes.get_xlim()[0] < bar.expected:
        axes.plot(
            [bar.expected] * 2,
            [row - 0.46, row + 0.46],
            color=INK,
            linewidth=1.1,
            clip_on=False,
            gid=look.name,
        )
    style.name(axes, row, look, size(bar.peak))


def _dot(axes: Axes, row: int, bar: Bar, look: Look, words: str) -> None:
    """The peak as a dot, with a line from what is saved: on logarithms no length is an amount."""
    start = axes.get_xlim()[0]
    if 0 < bar.saved < bar.peak:
        axes.plot(
            [max(start, bar.saved), bar.peak],
            [row, row],
            color=look.colour,
            linewidth=2.4,
            alpha=0.6,
            solid_capstyle="butt",
            gid=look.name,
        )
        if bar.saved < start:  # it goes on
            axes.plot(
                [start],
                [row],
                color=look.colour,
                marker="<",
                markersize=5,
                linestyle="none",
                clip_on=False,
                gid=look.name,
            )
    axes.plot(
        [bar.peak],
        [row],
        color=look.colour,
        marker="o",
        markersize=5,
        linestyle="none",
        clip_on=False,
        gid=look.gid(words),
    )


def _key(bars: Sequence[Bar], scale: str) -> str:
    """How the figure is read."""
    saved, expected = any(b.saved for b in bars), any(b.expected for b in bars)
    said = ["full: saved for backward, pale: needed besides"] * saved
    if scale == "log":
        said = ["dot: the peak" + ", line: from what is saved for backward" * saved]
    return "; ".join([*said, *["|: expected by its formula"] * expected])


def _finding(bars: Sequence[Bar], looks: Looks) -> str:
    """Who needs least and most, of what is exact if anything is."""
    exact = [b for b in bars if looks[b.variant].exact]
    some = exact or list(bars)
    least = [b.variant for b in some if b.peak == some[0].peak]
    who = " and ".join(least) if len(least) < 3 else f"{least[0]} and {len(least) - 1} more"
    said = f"{'Exact: least' if exact else 'Least'} {who}, {size(some[0].peak)}"
    most = f"; most {some[-1].variant}, {size(some[-1].peak)}"
    return said + most * (some[-1].peak > some[0].peak)


def _told(bars: Sequence[Bar], looks: Looks) -> str:
    exact = [b for b in bars if looks[b.variant].exact] or list(bars)
    least, most = exact[0], exact[-1]
    what = "Of what is exact, " if looks[least.variant].exact else ""
    return (
        f"{what}{least.variant} needs least, {size(least.peak)}, and {most.variant} most, "
        f"{size(most.peak)}"
    )


def _table(bars: Sequence[Bar], looks: Looks, length: int) -> Iterator[tuple[Any, ...]]:
    yield ("variant", "family", "computes", "length", "peak_bytes", "saved_bytes", "expected_bytes")
    for b in bars:
        look = looks[b.variant]
        yield b.variant, look.family, look.computes, length, b.peak, b.saved, b.expected


Profile = Mapping[str, Any]
WIDTH = 4.6
HEAD, BAR, GAP = 0.17, 0.225, 0.10
"""Inches: a variant's name, a phase's bar, the room after a variant."""
ABOVE, BELOW = 0.55, 0.36
LEFT, RIGHT = 0.155, 0.855
FIGURES, VARIANTS = 4, 8
"""So many figures at the most, and variants in each."""
LEAST = 0.02
"""Of a phase: what takes less is with the others."""
SHARES_MOST = 6
SHADES = (1.0, 0.72, 0.5, 0.36, 0.27, 0.2)
OUTSIDE = "outside operators"
SOME = 8
"""Letters of a name without which it says nothing."""


class OperatorShare(NamedTuple):
    """An operator's part of a phase, or that of several."""

    name: str
    seconds: float
    calls: float | None


def read(files: Iterable[Path]) -> tuple[list[Profile], list[str]]:
    """The profiles in files that ``attnbench profile`` wrote; of a damaged one, a sentence."""
    found: list[Profile] = []
    amiss = []
    for file in files:
        try:
            profiles = from_json(file.read_text(encoding="utf-8"))["profiles"]
            for profile in profiles:
                if not all(math.isfinite(x) and x >= 0 for x in _numbers(profile)):
                    raise ValueError("a time that is no number")
            found += profiles
        except OSError as error:
            amiss.append(f"{file.parent.name}/{file.name} can't be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            amiss.append(f"{file.parent.name}/{file.name} is damaged, so its profile is not shown")
    return found, amiss


def _numbers(profile: Profile) -> Iterator[float]:
    """Every number that is drawn; whatever is not as it should be raises here."""
    if not all(isinstance(profile[name], str) for name in ("variant", "slug")):
        raise TypeError("a name that is no text")
    for phase in profile["phases"]:
        if not isinstance(phase["name"], str) or not isinstance(phase["of"], str):
            raise TypeError("a name that is no text")
        yield from (phase["profiled_s"], phase["outside_s"])
        for operator in phase["operators"]:
            if not isinstance(operator["name"], str):
                raise TypeError("a name that is no text")
            yield from (operator["self_s"], operator["calls"])


def draw_shares(profiles: Sequence[Profile], looks: Looks, number: int = 0) -> list[Drawn]:
    """A figure a problem, each variant once: the profile that was read last.

    ``number``: of the run whose profiles these are.
    """
    latest = {(p["slug"], p["variant"]): p for p in profiles if _parts_of(p)}
    drawn: list[Drawn] = []
    for slug, some in groupby(sorted(latest), key=lambda key: key[0]):
        if len(drawn) < FIGURES:
            known = [latest[key] for key in some]
            known.sort(key=lambda p: (p["variant"] not in looks, _whole(p), p["variant"]))
            name = f"shares-{number}-{len(drawn)}"
            drawn.append(_figure(name, slug, known[:VARIANTS], looks))
    return drawn


def _parts_of(profile: Profile) -> bool:
    return any(_parts(phase) for phase in profile["phases"])


def _whole(profile: Profile) -> float:
    return math.fsum(phase["profiled_s"] for phase in profile["phases"])


def _parts(phase: Mapping[str, Any]) -> list[OperatorShare]:
    """The largest first, then all others, then the time outside of all."""
    seconds = [x["self_s"] for x in phase["operators"]]
    outside = phase["outside_s"] if phase["of"] == "operators" else 0.0
    whole = math.fsum([*seconds, outside])
    if whole <= 0:
        return []
    ranked = sorted(phase["operators"], key=lambda x: (-x["self_s"], x["name"]))
    large = [x for x in ranked if x["self_s"] >= LEAST * whole][:SHARES_MOST]
    found = [OperatorShare(plain(x["name"]), x["self_s"], x["calls"]) for x in large]
    others = len(ranked) - len(large)
    rest = math.fsum(x["self_s"] for x in ranked[len(large) :])
    found += [OperatorShare(f"{others} other" + "s" * (others > 1), rest, None)] * (rest > 0)
    return found + [OperatorShare(OUTSIDE, outside, None)] * (outside > 0)


def _figure(name: str, slug: str, profiles: Sequence[Profile], looks: Looks) -> Drawn:
    bars = sum(len(p["phases"]) for p in profiles)
    height = ABOVE + BELOW + len(profiles) * (HEAD + GAP) + bars * BAR
    title = f"Where the time goes: {slug}"
    with sheet(WIDTH, height) as figure:
        axes = figure.add_axes((LEFT, BELOW / height, RIGHT - LEFT, 1 - (ABOVE + BELOW) / height))
        axes.set(xlim=(0, 1), ylim=(height - ABOVE - BELOW, 0))  # inches, downwards
        axes.set_yticks([])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        top = 0.0
        for profile in profiles:
            top = _variant(axes, top, profile, looks)
        heading(figure, "Where the time goes", f"{slug}; at the right, what each took, profiled")
        return finish(figure, "shares", name, title, _told_of_shares(profiles), _rows(profiles))


def _variant(axes: Axes, top: float, profile: Profile, looks: Looks) -> float:
    """Its name and a bar for each phase; returns where the next begins."""
    look = looks.get(profile["variant"])
    name, colour = (look.name, look.colour) if look else (None, OTHER)
    head = shorten(profile["variant"], 230, 8, "bold")
    axes.text(
        0,
        top + HEAD / 2 + 0.02,
        head,
        fontsize=8,
        gid=name,
        fontweight="bold",
        va="center_baseline",
    )
    top += HEAD
    for phase in profile["phases"]:
        parts = _parts(phase)
        whole = math.fsum(part.seconds for part in parts) or 1.0
        sides = axes.get_yaxis_transform()
        middle = top + BAR / 2
        axes.text(
            -0.02,
            middle,
            shorten(phase["name"], 46, 7.5),
            ha="right",
            va="center_baseline",
            fontsize=7.5,
            transform=sides,
            gid=name,
        )
        axes.text(
            1.015,
            middle,
            milliseconds(phase["profiled_s"]),
            va="center_baseline",
            fontsize=7.5,
            transform=sides,
            gid=name,
        )
        left = 0.0
        for rank, part in enumerate(parts):
            share = part.seconds / whole
            words = (
                f"{profile['variant']}, {phase['name']}: {part.name} "
                f"{milliseconds(part.seconds)}, {share:.1%}"
            )
            gid = f"{name}|{words}" if name else None
            _piece(axes, left, top, share, part, (colour, SHADES[min(rank, SHARES_MOST - 1)]), gid)
            left += share
        top += BAR
    return top + GAP


def _piece(
    axes: Axes,
    left: float,
    top: float,
    share: float,
    part: OperatorShare,
    shade: tuple[str, float],
    gid: str | None,
) -> None:
    """A rectangle; its name within, on a ground of paper, where there is room for it."""
    from matplotlib.patches import Rectangle

    alone = part.calls is None
    colour, alpha = (FAINT, 0.25) if alone else shade
    axes.add_patch(
        Rectangle(
            (left, top + 0.02),
            share,
            BAR - 0.04,
            facecolor=colour,
            alpha=alpha,
            linewidth=0,
            gid=gid,
        )
    )
    axes.plot(
        [left + share] * 2,
        [top + 0.02, top + BAR - 0.02],
        color=PAPER,
        linewidth=0.8,
        solid_capstyle="butt",
    )
    room = share * WIDTH * (RIGHT - LEFT) * 72 - 4
    whole = f"{part.name} {share:.0%}"
    text = whole if width(whole, 6.8) <= room else shorten(part.name, room, 6.8)
    if text == part.name or text == whole or len(text) > SOME:
        axes.text(
            left + 0.012,
            top + BAR / 2,
            text,
            fontsize=6.8,
            va="center_baseline",
            color=INK,
            bbox={"facecolor": PAPER, "alpha": 0.9, "linewidth": 0, "pad": 0.8},
            gid=gid,
        )


def _told_of_shares(profiles: Sequence[Profile]) -> str:
    said = []
    for profile in profiles:
        for phase in profile["phases"]:
            if parts := _parts(phase):
                whole = math.fsum(part.seconds for part in parts)
                said.append(
                    f"{profile['variant']} {phase['name']}: {parts[0].name} "
                    f"{parts[0].seconds / whole:.0%}"
                )
    return "The largest part of each: " + "; ".join(said)


def _rows(profiles: Sequence[Profile]) -> Iterator[tuple[Any, ...]]:
    yield "variant", "problem", "phase", "operator", "self_s", "calls", "share"
    for profile in profiles:
        for phase in profile["phases"]:
            seconds = [x["self_s"] for x in phase["operators"]]
            outside = phase["outside_s"] if phase["of"] == "operators" else 0.0
            whole = math.fsum([*seconds, outside]) or 1.0
            for x in phase["operators"]:
                yield (
                    profile["variant"],
                    profile["slug"],
                    phase["name"],
                    x["name"],
                    x["self_s"],
                    x["calls"],
                    x["self_s"] / whole,
                )
            if outside:
                yield (
                    profile["variant"],
                    profile["slug"],
                    phase["name"],
                    OUTSIDE,
                    outside,
                    None,
                    outside / whole,
                )
