"""Is the promise kept? The program, run as it is and with the advice in place, in turn."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer.mends import backend_order
from attnbench.command.terminal import say
from attnbench.core.format import counted
from impls.errors import CantBeDone
from impls.masks import OF_DATA

if TYPE_CHECKING:
    from attnbench.answer.mends import Priced
    from attnbench.models.capture.calls import SeenCalls, Site

PAIRS = 3
FROM_OUTSIDE = ("sdpa", "mha")
"""Functions of torch whose calls can be changed while a program runs, in every way of a mend."""


class Verified(msgspec.Struct, frozen=True):
    """The time of the program with the advice in place, of its time without."""

    ratio: float
    ratios: tuple[float, ...]
    of: str
    places: int
    not_changed: tuple[str, ...] = ()
    """Places where the advice can't be put in place from outside."""

    def sentence(self) -> str:
        """The result, and the places that were not tried."""
        low, high = min(self.ratios), max(self.ratios)
        where = counted(self.places, "place")
        text = (
            f"checked: with the advice in place at {where}, {self.of} took {self.ratio:.2f} of its "
            f"time ({len(self.ratios)} runs of each in turn, {low:.2f} to {high:.2f})"
        )
        if self.ratio >= 1:
            text += "; it gains nothing there: leave the program as it is"
        if self.not_changed:
            text += f"; not tried, for want of a way from outside: {'; '.join(self.not_changed)}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**msgspec.to_builtins(self), "sentence": self.sentence()}


def verify(
    command: Sequence[str],
    advised: Iterable[tuple[Site, Priced]],
    tables: Sequence[str],
) -> Verified:
    """Run the program with the advice in place; raises CantBeDone where none can be."""
    places: dict[str, list[dict[str, Any]]] = {}
    left: list[str] = []
    for site, priced in advised:
        if site.via not in FROM_OUTSIDE:
            left.append(site.site)
            continue
        mask = site.problem.mask
        places.setdefault(site.site, []).append(
            {
                "keys": ["variant"] if priced.variant else list(priced.keys),
                "mask": "" if mask.plain and "drop_mask" not in priced.keys else str(mask),
                "repeated": site.call.repeated if site.call else 1,
                "variant": priced.variant,
                "backends": backend_order(priced.form) if priced.form else [],
                "tables": list(tables),
                "named": str(mask) if OF_DATA.isdisjoint(mask.kinds) else "",
            }
        )
    if not places:
        raise CantBeDone(
            "nothing that is advised can be put in place from outside of the program; change "
            f"{'; '.join(dict.fromkeys(left)) or 'it'} yourself and time it"
        )
    with tempfile.TemporaryDirectory(prefix="attnbench-verify-") as folder:
        file = Path(folder) / "advice.json"
        file.write_text(json.dumps(places))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * PAIRS):
            changed = number % 2 == 1
            say(f"run {number + 1} of {2 * PAIRS}: {'with the advice' if changed else 'as it is'}")
            calls = _run(command, Path(folder) / "calls.json", file if changed else None)
            seconds[changed].append(calls.step_s or calls.wall_s)
            of = "a step" if calls.step_s else "the program"
    ratios = tuple(b / a for a, b in zip(seconds[False], seconds[True], strict=True))
    return Verified(median(ratios), ratios, of, len(places), tuple(left))


def _run(command: Sequence[str], out: Path, advice: Path | None) -> SeenCalls:
    from attnbench.models.capture.program import run_program

    status, calls = run_program(command, out, quiet=True, advice=advice)
    if status:
        how = "with the advice in place" if advice else "as it is"
        raise CantBeDone(f"the program ended with status {status} {how}")
    return calls
