"""Searches over sizes: one grid, looks in turn within a wall clock, and Ctrl-C between two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from attnbench.sweep.engine import LocalEngine, engine_on
from attnbench.sweep.plan import here
from attnbench.sweep.start import find_preset
from attnbench.sweep.sweep import Eta, Interrupt
from impls.problem import InvalidProblem, Problem

if TYPE_CHECKING:
    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.sweep.presets import Preset

By = Literal["seq", "batch"]
GRACE_S = 5.0
"""By how much the last look may be late."""
Look = TypeVar("Look")


def grid_for(
    changes: Mapping[str, Any], machine: Machine, preset: str, start: Callable[[str], Any]
) -> Preset:
    """The grid of a preset of the device's kind, from where a search starts, with what is asked
    for changed; a budget is the search's own. Raises CantBeDone for no such device or preset.
    """
    device = str(changes.get("device", machine.devices[-1]))
    here(device, machine)
    kind = device.split(":")[0]
    asked = {name: value for name, value in changes.items() if name != "budget"}
    return find_preset(preset.format(kind), machine).with_(**start(kind)).with_(**asked)


def refuse_several(grid: Preset, verb: str, axes: Sequence[str], searched: str) -> None:
    """Raise :class:`InvalidProblem` where a grid has several values of one of these axes, or
    captured inputs, which have one size.
    """
    if wide := [name for name in axes if len(getattr(grid, name)) > 1]:
        options = ", ".join("--" + name.replace("_", "-") for name in wide)
        raise InvalidProblem(f"{verb} takes one value of {options}: what is searched is {searched}")
    if any(inputs.startswith("captured:") for inputs in grid.inputs):
        raise InvalidProblem(f"captured inputs have one size; {verb} needs many: leave them out")


def sized(problem: Problem, by: By, size: int) -> Problem:
    """The same problem with another length, or another batch."""
    if by == "batch":
        return problem.with_(batch=size)
    if problem.phase == "decode":
        return problem.with_(kv_len=size)
    return problem.with_(q_len=size, kv_len=size)


class Search(Protocol):
    """What is known of one variant, or of a pair, by size."""

    @property
    def turn(self) -> int:
        """The fewer looks, the earlier it is its turn."""

    def next(self, left_s: float) -> int | None:
        """The size to look at; None where the search is over."""

    def expect_s(self, size: int) -> float:
        """Seconds that a look is expected to take."""


S = TypeVar("S", bound=Search)


def in_turn(
    searches: Sequence[S],
    seconds: float,
    *,
    late_s: float = 0.0,
    now: Callable[[], float] = monotonic,
) -> Iterator[tuple[S, int, float]]:
    """The search to look at and the size, with the seconds left, until all are over or the time is
    spent. Of searches whose turn it is, the cheapest comes first.

    No look is begun that is expected to end more than ``late_s`` too late.
    """
    until = now() + seconds
    while (left := until - now()) > 0:
        ready = []
        for number, search in enumerate(searches):
            if (size := search.next(left)) is not None:
                expected = search.expect_s(size)
                if expected <= left + late_s:
                    ready.append((search.turn, expected, number, size))
        if not ready:
            return
        *_, number, size = min(ready)
        yield searches[number], size, left


class LooksLeft:
    """Seconds that a search is thought to take yet, no more than its limit leaves: the guesses of
    the looks that are to come, corrected by how earlier guesses fared.
    """

    def __init__(self, ahead: Callable[[], float], limit_s: float) -> None:
        """``ahead``: the guesses of the looks to come, as things stand."""
        self._ahead, self._eta, self._guess_s = ahead, Eta(()), 0.0
        self.left_s = min(ahead(), limit_s)

    def begin(self, guess_s: float, limit_s: float) -> float:
        """A look begins that is thought to take so long; the seconds left, this one included."""
        self._eta.begin()
        ended, self._guess_s = self._guess_s, guess_s
        self._eta.left = self._ahead() + ended
        self.left_s = min(self._eta.after(ended), limit_s)
        return self.left_s


def all_looks(
    device: str,
    settings: Settings,
    looks: Callable[[LocalEngine], Iterable[Look]],
    hear: Callable[[Look], None],
    say: Callable[[str], None],
) -> bool:
    """Hear look after look, by an engine that has the device to itself; whether Ctrl-C ended it,
    after the look that was under way, or at once if it came twice.
    """
    interrupt = Interrupt(say)
    try:
        with engine_on(device, settings) as engine, interrupt.watching():
            for look in looks(engine):
                hear(look)
                if interrupt.asked:
                    return True
    except KeyboardInterrupt:
        return True
    return False


def fresh_if_full(ask: Callable[[], Look], full: Callable[[Look], bool], engine: Any) -> Look:
    """An answer; where memory ran out that of a new worker, since what others left in the heap may
    have been in the way.
    """
    answer = ask()
    if full(answer):
        engine.close()
        answer = ask()
    return answer
