"""Who recalls, who doesn't, and who can't be told: from accuracies over seeds, by their intervals.

An accuracy is the mean over seeds, with Student's 95 % interval of it, each by itself: no number of
seeds here is large. Who **reaches** the target has the whole interval at or above it; who **falls
short**, the whole interval below; of anybody else nothing is said. The same steps and the same time
are two questions with answers of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from attnbench.statistics import CONFIDENCE, student_quantile

TARGET = 0.99
Row = Mapping[str, Any]


class Budget(StrEnum):
    """What all variants get as much of."""

    STEPS = "steps"
    TIME = "time"


class Standing(StrEnum):
    """Where an interval lies to the target."""

    REACHES = "reaches"
    SHORT = "falls short"
    OPEN = "can't be told"


class Interval(NamedTuple):
    """A mean over seeds, and where it lies in nineteen of twenty cases; of one seed, anywhere."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """How far its farther end is from the mean."""
        return max(self.high - self.mean, self.mean - self.low)

    def standing(self, target: float = TARGET) -> Standing:
        """Where it lies to the target; of one seed nothing is told."""
        if self.n > 1 and self.low >= target:
            return Standing.REACHES
        return Standing.SHORT if self.n > 1 and self.high < target else Standing.OPEN


def interval(values: Sequence[float]) -> Interval | None:
    """Student's; None of no values."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = student_quantile((1 + CONFIDENCE) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def share(values: Sequence[float]) -> Interval | None:
    """That of shares, which lie between nought and one."""
    found = interval(values)
    if found is None or found.n == 1:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def looked_at(row: Row, budget: Budget) -> Mapping[str, Any] | None:
    """The checkpoint of a training at which its budget was over; None where it never was."""
    for look in row["curve"]:
        over = look["in_time"] if budget is Budget.TIME else look["step"] == row["setting"]["steps"]
        if over:
            return dict(look)
    return None


@dataclass(frozen=True)
class Recalled:
    """A variant in one setting, over its seeds."""

    variant: str
    computes: str
    family: str
    state_numbers: int | None
    accuracy: Mapping[Budget, Mapping[int, Interval]]
    """By budget and number of pairs."""
    steps: Interval | None
    """Taken in the same time."""
    step_s: Interval | None
    ratio: Interval | None
    """Of a step's time to the baseline's, seed by seed: the mean of logarithms, and back."""
    moved: Mapping[int, Interval]
    """By number of pairs, its accuracy in the same time less that after the same steps."""
    amiss: tuple[str, ...]
    """What its trainings that are not here said."""

    @property
    def best(self) -> float:
        """Its mean with the most pairs after its steps; below nought where there is none."""
        some = self.accuracy[Budget.STEPS]
        return some[max(some)].mean if some else -1.0

    def standing(self, budget: Budget, pairs: int) -> Standing:
        """Where it stands to the target; who has no accuracy there is not told."""
        found = self.accuracy[budget].get(pairs)
        return Standing.OPEN if found is None else found.standing()


def recalled(rows: Sequence[Row], baseline: str) -> list[Recalled]:
    """The variants of one setting: the baseline, then whoever recalls most pairs best."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    own = {row["seed"]: row for row in rows if row["variant"] == baseline}
    found = [_recalled([r for r in rows if r["variant"] == name], own) for name in names]
    return sorted(found, key=lambda each: (each.variant != baseline, -each.best))


def _recalled(rows: Sequence[Row], baseline: Mapping[int, Row]) -> Recalled:
    looks = {
        budget: [look for row in rows if (look := looked_at(row, budget))] for budget in Budget
    }
    pairs = sorted({int(p) for row in rows for p in row["setting"]["pairs"]})
    ratios = [
        math.log(mine / other) for row in rows
        if (mine := _step_s(row)) and (other := _step_s(baseline.get(row["seed"])))
    ]  # fmt: skip
    logs = interval(ratios)
    ratio = logs and Interval(_exp(logs.mean), _exp(logs.low), _exp(logs.high), logs.n)
    return Recalled(
        rows[0]["variant"], rows[0]["computes"], rows[0]["family"],
        next((r["state_numbers"] for r in rows if r["state_numbers"] is not None), None),
        {
            budget: {p: found for p in pairs
                     if (found := share([look["accuracy"][str(p)] for look in some]))}
            for budget, some in looks.items()
        },
        interval([look["step"] for look in looks[Budget.TIME]]),
        interval([s for row in rows if (s := _step_s(row))]), ratio,
        {p: found for p in pairs if (found := interval([x[p] for x in _moves(rows)]))},
        tuple(dict.fromkeys(_why(row) for row in rows if row["reason"])),
    )  # fmt: skip


def _moves(rows: Sequence[Row]) -> Iterator[dict[int, float]]:
    """Of each training, by how much its time's accuracy is another than its steps'."""
    for row in rows:
        steps, time = (looked_at(row, budget) for budget in Budget)
        if steps and time:
            yield {int(p): time["accuracy"][p] - share for p, share in steps["accuracy"].items()}


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _step_s(row: Row | None) -> float | None:
    """The median time of a training's steps."""
    return float(row["curve"][-1]["step_s"]) if row and row["curve"] else None


def _why(row: Row) -> str:
    remedy = f"; {row['remedy']}" if row["remedy"] else ""
    return f"{row['reason']}{remedy}"


def by_setting(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each setting, by its slug, in their order."""
    from attnbench.models.quality.recall.setting import Setting

    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(Setting.from_dict(row["setting"]).slug, []).append(row)
    return found
