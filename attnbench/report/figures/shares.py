"""Where the time goes: a bar for each phase of a profiled call, divided by operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from attnbench.core.format import counted, duration, percent, plain
from attnbench.report.figures import sheet as labels
from attnbench.report.figures.sheet import FAINT, INK, OTHER, PAPER, Drawn, finish, sheet
from attnbench.report.figures.style import WIDE, Look, Looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HEAD, BAR, GAP = 12.2, 16.2, 7.2
"""Points: a variant's name, a phase's bar, the room after a variant."""
ABOVE, BELOW = 39.6, 25.9
LEFT, RIGHT = 51.0, 283.0
FIGURES, VARIANTS, OPERATORS = 4, 8, 6
"""Figures of a report, variants in each, operators with a piece of their own."""
LEAST = 0.02
"""The share of a phase below which an operator is counted with the others."""
SHADES = (1.0, 0.72, 0.5, 0.36, 0.27, 0.2)
OUTSIDE = "outside operators"
LETTERS = 8
"""Letters below which a shortened name means nothing."""
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Operator(msgspec.Struct, frozen=True):
    """An operator's part of a phase; that of several has no calls."""

    name: str
    self_s: Seconds
    calls: Seconds | None


class Phase(msgspec.Struct, frozen=True):
    """A phase of a profiled call."""

    name: str
    of: str
    profiled_s: Seconds
    outside_s: Seconds
    operators: list[Operator]

    @property
    def outside(self) -> float:
        """Seconds outside of all operators, where those were watched."""
        return self.outside_s if self.of == "operators" else 0.0


class Profile(msgspec.Struct, frozen=True):
    """What is drawn of a profile."""

    variant: str
    slug: str
    phases: list[Phase]


class _File(msgspec.Struct):
    profiles: list[Profile]


def read(files: Iterable[Path]) -> tuple[list[Profile], list[str]]:
    """The profiles in files that ``attnbench profile`` wrote, and a sentence for a damaged one."""
    profiles: list[Profile] = []
    damaged = []
    for file in files:
        name = f"{file.parent.name}/{file.name}"
        try:
            profiles += msgspec.json.decode(file.read_bytes(), type=_File).profiles
        except OSError as error:
            damaged.append(f"{name} can't be read: {error.strerror}")
        except (ValueError, RecursionError):
            damaged.append(f"{name} is damaged, so its profile is not shown")
    return profiles, damaged


def draw(profiles: Sequence[Profile], looks: Looks, number: int = 0) -> list[Drawn]:
    """A figure a problem, of each variant the profile that was read last. ``number``: the run's."""
    latest = {(p.slug, p.variant): p for p in profiles if any(map(_parts, p.phases))}
    taken = {key: math.fsum(phase.profiled_s for phase in p.phases) for key, p in latest.items()}
    drawn: list[Drawn] = []
    for slug in sorted({slug for slug, _ in latest})[:FIGURES]:
        keys = [key for key in latest if key[0] == slug]
        keys.sort(key=lambda key: (key[1] not in looks, taken[key], key[1]))
        some = [latest[key] for key in keys[:VARIANTS]]
        drawn.append(_figure(f"shares-{number}-{len(drawn)}", slug, some, looks))
    return drawn


def _parts(phase: Phase) -> list[Operator]:
    """The largest operators first, then all others, then the time outside of all."""
    whole = math.fsum([*(x.self_s for x in phase.operators), phase.outside])
    ranked = sorted(phase.operators, key=lambda x: (-x.self_s, x.name))
    large = [x for x in ranked if x.self_s >= LEAST * whole][:OPERATORS]
    others = len(ranked) - len(large)
    rest = math.fsum(x.self_s for x in ranked[len(large) :])
    parts = [msgspec.structs.replace(x, name=plain(x.name)) for x in large]
    parts.append(Operator(counted(others, "other"), rest, None))
    parts.append(Operator(OUTSIDE, phase.outside, None))
    return [part for part in parts if part.self_s > 0] if whole > 0 else []


def _figure(name: str, slug: str, profiles: Sequence[Profile], looks: Looks) -> Drawn:
    bars = sum(len(p.phases) for p in profiles)
    high = ABOVE + BELOW + len(profiles) * (HEAD + GAP) + bars * BAR
    title = "Where the time goes"
    with sheet(WIDE / 72, high / 72) as figure:
        axes = labels.add_axes(figure, (LEFT, BELOW, RIGHT, high - ABOVE))
        axes.set(xlim=(0, 1), ylim=(high - ABOVE - BELOW, 0), yticks=[])  # points, downwards
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.spines["left"].set_visible(False)
        top, largest = 0.0, []
        for profile in profiles:
            look = looks.get(profile.variant)
            more: dict[str, Any] = {"va": "center_baseline"}
            head = labels.shorten(profile.variant, 230, 8, "bold")
            axes.text(0, top + HEAD / 2 + 1.4, head, fontsize=8, fontweight="bold", **more)
            top += HEAD
            more |= {"fontsize": 7.5, "transform": axes.get_yaxis_transform()}
            for phase in profile.phases:
                middle = top + BAR / 2
                axes.text(-0.02, middle, labels.shorten(phase.name, 46, 7.5), ha="right", **more)
                axes.text(1.015, middle, duration(phase.profiled_s), **more)
                if parts := _parts(phase):
                    whole = math.fsum(part.self_s for part in parts)
                    _draw_bar(axes, top, look, parts, whole)
                    most = f"{parts[0].name} {percent(parts[0].self_s / whole)}"
                    largest.append(f"{profile.variant} {phase.name}: {most}")
                top += BAR
            top += GAP
        labels.heading(figure, title, f"{slug}; at the right, what each took, profiled")
        told = f"The largest part of each: {'; '.join(largest)}"
        return finish(figure, "shares", name, f"{title}: {slug}", told, _rows(profiles))


def _draw_bar(
    axes: Axes, top: float, look: Look | None, parts: Sequence[Operator], whole: float
) -> None:
    """A rectangle for each part, with its name inside where there is room for it."""
    from matplotlib.patches import Rectangle

    left = 0.0
    for part, shade in zip(parts, (*SHADES, 1.0, 1.0), strict=False):
        wide = part.self_s / whole
        colour, alpha = look.colour if look else OTHER, shade
        if part.calls is None:
            colour, alpha = FAINT, 0.25
        fill: dict[str, Any] = {"facecolor": colour, "alpha": alpha, "linewidth": 0}
        axes.add_patch(Rectangle((left, top + 1.4), wide, BAR - 2.8, **fill))
        edge: dict[str, Any] = {"color": PAPER, "linewidth": 0.8, "solid_capstyle": "butt"}
        axes.plot([left + wide] * 2, [top + 1.4, top + BAR - 1.4], **edge)
        room, named = wide * (RIGHT - LEFT) - 4, f"{part.name} {percent(wide)}"
        text = named if labels.width(named, 6.8) <= room else labels.shorten(part.name, room, 6.8)
        if text in (part.name, named) or len(text) > LETTERS:
            ground = {"facecolor": PAPER, "alpha": 0.9, "linewidth": 0, "pad": 0.8}
            ink: dict[str, Any] = {"fontsize": 6.8, "color": INK, "va": "center_baseline"}
            axes.text(left + 0.012, top + BAR / 2, text, bbox=ground, **ink)
        left += wide


def _rows(profiles: Sequence[Profile]) -> Iterator[tuple[Any, ...]]:
    yield "variant", "problem", "phase", "operator", "self_s", "calls", "share"
    for profile in profiles:
        for phase in profile.phases:
            outside = [Operator(OUTSIDE, phase.outside, None)] if phase.outside else []
            times = [*phase.operators, *outside]
            whole = math.fsum(x.self_s for x in times) or 1.0
            for x in times:
                of = profile.variant, profile.slug, phase.name
                yield *of, x.name, x.self_s, x.calls, x.self_s / whole
