"""What a scan of settings found: where softmax attention recalls and another doesn't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.models.quality.recall.conclusions import GOAL
from attnbench.models.quality.recall.setting import Setting
from attnbench.models.quality.recall.verdicts import TARGET, Budget, Recalled, recalled
from attnbench.report.tables import grid


class Tried(NamedTuple):
    """One setting: everybody in it, and the processor's or the wall's seconds of all trainings."""

    setting: Setting
    found: Sequence[Recalled]
    """The baseline first."""
    seconds: float

    def right(self, each: Recalled) -> float | None:
        """How often somebody is right with the most pairs, after the steps."""
        at = each.accuracy[Budget.STEPS].get(self.setting.most)
        return at and at.mean


def tried(
    settings: Iterator[tuple[str, Setting, Sequence[Mapping[str, Any]]]], baseline: str
) -> list[Tried]:
    """The settings of a scan, as they were tried."""
    return [
        Tried(setting, recalled(rows, baseline),
              sum(row["curve"][-1]["seconds"] for row in rows if row["curve"]))
        for _, setting, rows in settings
    ]  # fmt: skip


def table(scan: Sequence[Tried]) -> Grid:
    """A line a setting."""
    names = list(dict.fromkeys(each.variant for one in scan for each in one.found))
    columns = ["tokens", "width", "rate", *(f"{name}, %" for name in names), "seconds"]
    made = grid(*map(escape, columns), right=columns)
    for one in scan:
        by_name = {each.variant: one.right(each) for each in one.found}
        cells = ["" if (x := by_name.get(name)) is None else f"{100 * x:.1f}" for name in names]
        s = one.setting
        made.add_row(str(s.seq), str(s.width), f"{s.rate:g}", *cells, f"{one.seconds:.0f}")
    return made


def said(scan: Sequence[Tried]) -> list[str]:
    """The settings that tell the baseline from each other; of each width the best of all rates."""
    lines = []
    names = dict.fromkeys(each.variant for one in scan for each in one.found[1:])
    for name in names:
        pairs = [(one, _of(one, name)) for one in scan]
        apart = [
            (one.seconds, one.setting.slug) for one, its in pairs
            if its is not None and (one.right(one.found[0]) or 0.0) >= TARGET > its
        ]  # fmt: skip
        own = scan[0].found[0].variant
        what = f"in which {own} is right {GOAL} of the time or more and {name} is not"
        if apart:
            slugs = ", ".join(slug for _, slug in sorted(apart))
            lines.append(f"settings {what}, the cheapest first: {slugs}")
        else:
            lines.append(f"there is no setting {what}")
        best: dict[tuple[int, int], float] = {}
        for one, its in pairs:
            key = one.setting.seq, one.setting.width
            best[key] = max(best.get(key, 0.0), its or 0.0)
        some = "; ".join(f"width {w} ({n} tokens) {100 * x:.1f} %" for (n, w), x in best.items())
        lines.append(f"at the best of all rates {name} is right: {some}")
    return [*lines, "one seed a setting is a hint, no verdict: ask the setting for its seeds"]


def _of(one: Tried, name: str) -> float | None:
    return next((one.right(each) for each in one.found if each.variant == name), None)
