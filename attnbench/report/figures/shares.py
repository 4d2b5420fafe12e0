"""Where the time goes: the operators of each phase of a call, as profiles found them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.said import milliseconds, plain
from attnbench.report.figures.labels import heading, shorten, width
from attnbench.report.figures.looks import Looks
from attnbench.report.figures.palette import FAINT, INK, OTHER, PAPER
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.store.disk import from_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
MOST = 6
SHADES = (1.0, 0.72, 0.5, 0.36, 0.27, 0.2)
OUTSIDE = "outside operators"
SOME = 8
"""Letters of a name without which it says nothing."""


class Part(NamedTuple):
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


def draw(profiles: Sequence[Profile], looks: Looks, number: int = 0) -> list[Drawn]:
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


def _parts(phase: Mapping[str, Any]) -> list[Part]:
    """The largest first, then all others, then the time outside of all."""
    seconds = [x["self_s"] for x in phase["operators"]]
    outside = phase["outside_s"] if phase["of"] == "operators" else 0.0
    whole = math.fsum([*seconds, outside])
    if whole <= 0:
        return []
    ranked = sorted(phase["operators"], key=lambda x: (-x["self_s"], x["name"]))
    large = [x for x in ranked if x["self_s"] >= LEAST * whole][:MOST]
    found = [Part(plain(x["name"]), x["self_s"], x["calls"]) for x in large]
    others = len(ranked) - len(large)
    rest = math.fsum(x["self_s"] for x in ranked[len(large) :])
    found += [Part(f"{others} other" + "s" * (others > 1), rest, None)] * (rest > 0)
    return found + [Part(OUTSIDE, outside, None)] * (outside > 0)


def _figure(name: str, slug: str, profiles: Sequence[Profile], looks: Looks) -> Drawn:
    bars = sum(len(p["phases"]) for p in profiles)
    height = ABOVE + BELOW + len(profiles) * (HEAD + GAP) + bars * BAR
    title = f"Where the time goes: {slug}"
    with sheet(WIDTH, height) as figure:
        axes = figure.add_axes((LEFT, BELOW / height, RIGHT - LEFT,
                                1 - (ABOVE + BELOW) / height))  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(height - ABOVE - BELOW, 0))  # inches, downwards
        axes.set_yticks([])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        top = 0.0
        for profile in profiles:
            top = _variant(axes, top, profile, looks)
        heading(figure, "Where the time goes", f"{slug}; at the right, what each took, profiled")
        return finish(figure, "shares", name, title, _told(profiles),
                      _rows(profiles))  # fmt: skip


def _variant(axes: Axes, top: float, profile: Profile, looks: Looks) -> float:
    """Its name and a bar for each phase; returns where the next begins."""
    look = looks.get(profile["variant"])
    name, colour = (look.name, look.colour) if look else (None, OTHER)
    head = shorten(profile["variant"], 230, 8, "bold")
    axes.text(0, top + HEAD / 2 + 0.02, head, fontsize=8, gid=name, fontweight="bold",
              va="center_baseline")  # fmt: skip
    top += HEAD
    for phase in profile["phases"]:
        parts = _parts(phase)
        whole = math.fsum(part.seconds for part in parts) or 1.0
        sides = axes.get_yaxis_transform()
        middle = top + BAR / 2
        axes.text(-0.02, middle, shorten(phase["name"], 46, 7.5), ha="right", va="center_baseline",
                  fontsize=7.5, transform=sides, gid=name)  # fmt: skip
        axes.text(1.015, middle, milliseconds(phase["profiled_s"]), va="center_baseline",
                  fontsize=7.5, transform=sides, gid=name)  # fmt: skip
        left = 0.0
        for rank, part in enumerate(parts):
            share = part.seconds / whole
            words = f"{profile['variant']}, {phase['name']}: {part.name} " \
                f"{milliseconds(part.seconds)}, {share:.1%}"  # fmt: skip
            gid = f"{name}|{words}" if name else None
            _piece(axes, left, top, share, part, (colour, SHADES[min(rank, MOST - 1)]), gid)
            left += share
        top += BAR
    return top + GAP


def _piece(axes: Axes, left: float, top: float, share: float, part: Part,
           shade: tuple[str, float], gid: str | None) -> None:  # fmt: skip
    """A rectangle; its name within, on a ground of paper, where there is room for it."""
    from matplotlib.patches import Rectangle

    alone = part.calls is None
    colour, alpha = (FAINT, 0.25) if alone else shade
    axes.add_patch(Rectangle(
        (left, top + 0.02), share, BAR - 0.04, facecolor=colour, alpha=alpha, linewidth=0, gid=gid,
    ))  # fmt: skip
    axes.plot([left + share] * 2, [top + 0.02, top + BAR - 0.02], color=PAPER, linewidth=0.8,
              solid_capstyle="butt")  # fmt: skip
    room = share * WIDTH * (RIGHT - LEFT) * 72 - 4
    whole = f"{part.name} {share:.0%}"
    text = whole if width(whole, 6.8) <= room else shorten(part.name, room, 6.8)
    if text == part.name or text == whole or len(text) > SOME:
        axes.text(
            left + 0.012, top + BAR / 2, text, fontsize=6.8, va="center_baseline", color=INK,
            bbox={"facecolor": PAPER, "alpha": 0.9, "linewidth": 0, "pad": 0.8}, gid=gid,
        )  # fmt: skip


def _told(profiles: Sequence[Profile]) -> str:
    said = []
    for profile in profiles:
        for phase in profile["phases"]:
            if parts := _parts(phase):
                whole = math.fsum(part.seconds for part in parts)
                said.append(f"{profile['variant']} {phase['name']}: {parts[0].name} "
                            f"{parts[0].seconds / whole:.0%}")  # fmt: skip
    return "The largest part of each: " + "; ".join(said)


def _rows(profiles: Sequence[Profile]) -> Iterator[tuple[Any, ...]]:
    yield "variant", "problem", "phase", "operator", "self_s", "calls", "share"
    for profile in profiles:
        for phase in profile["phases"]:
            seconds = [x["self_s"] for x in phase["operators"]]
            outside = phase["outside_s"] if phase["of"] == "operators" else 0.0
            whole = math.fsum([*seconds, outside]) or 1.0
            for x in phase["operators"]:
                yield (profile["variant"], profile["slug"], phase["name"], x["name"], x["self_s"],
                       x["calls"], x["self_s"] / whole)  # fmt: skip
            if outside:
                yield (profile["variant"], profile["slug"], phase["name"], OUTSIDE, outside, None,
                       outside / whole)  # fmt: skip
