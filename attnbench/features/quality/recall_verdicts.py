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

from attnbench.core.stats import CONFIDENCE, student_quantile
from attnbench.features.quality.recall import Setting, chance

TARGET = 0.99
Row = Mapping[str, Any]


class TrainingBudget(StrEnum):
    """What all variants get as much of."""

    STEPS = "steps"
    TIME = "time"


class TargetStanding(StrEnum):
    """Where an interval lies to the target."""

    REACHES = "reaches"
    SHORT = "falls short"
    OPEN = "can't be told"


class SeedInterval(NamedTuple):
    """A mean over seeds, and where it lies in nineteen of twenty cases; of one seed, anywhere."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """How far its farther end is from the mean."""
        return max(self.high - self.mean, self.mean - self.low)

    def standing(self, target: float = TARGET) -> TargetStanding:
        """Where it lies to the target; of one seed nothing is told."""
        if self.n > 1 and self.low >= target:
            return TargetStanding.REACHES
        return TargetStanding.SHORT if self.n > 1 and self.high < target else TargetStanding.OPEN


def interval(values: Sequence[float]) -> SeedInterval | None:
    """Student's; None of no values."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return SeedInterval(mean, -math.inf, math.inf, 1)
    half = student_quantile((1 + CONFIDENCE) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return SeedInterval(mean, mean - half, mean + half, n)


def share(values: Sequence[float]) -> SeedInterval | None:
    """That of shares, which lie between nought and one."""
    found = interval(values)
    if found is None or found.n == 1:
        return found
    return found._replace(low=max(0.0, found.low), high=min(1.0, found.high))


def looked_at(row: Row, budget: TrainingBudget) -> Mapping[str, Any] | None:
    """The checkpoint of a training at which its budget was over; None where it never was."""
    for look in row["curve"]:
        over = (
            look["in_time"]
            if budget is TrainingBudget.TIME
            else look["step"] == row["setting"]["steps"]
        )
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
    accuracy: Mapping[TrainingBudget, Mapping[int, SeedInterval]]
    """By budget and number of pairs."""
    steps: SeedInterval | None
    """Taken in the same time."""
    step_s: SeedInterval | None
    ratio: SeedInterval | None
    """Of a step's time to the baseline's, seed by seed: the mean of logarithms, and back."""
    moved: Mapping[int, SeedInterval]
    """By number of pairs, its accuracy in the same time less that after the same steps."""
    amiss: tuple[str, ...]
    """What its trainings that are not here said."""

    @property
    def best(self) -> float:
        """Its mean with the most pairs after its steps; below nought where there is none."""
        some = self.accuracy[TrainingBudget.STEPS]
        return some[max(some)].mean if some else -1.0

    def standing(self, budget: TrainingBudget, pairs: int) -> TargetStanding:
        """Where it stands to the target; who has no accuracy there is not told."""
        found = self.accuracy[budget].get(pairs)
        return TargetStanding.OPEN if found is None else found.standing()


def recalled(rows: Sequence[Row], baseline: str) -> list[Recalled]:
    """The variants of one setting: the baseline, then whoever recalls most pairs best."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    own = {row["seed"]: row for row in rows if row["variant"] == baseline}
    found = [_recalled([r for r in rows if r["variant"] == name], own) for name in names]
    return sorted(found, key=lambda each: (each.variant != baseline, -each.best))


def _recalled(rows: Sequence[Row], baseline: Mapping[int, Row]) -> Recalled:
    looks = {
        budget: [look for row in rows if (look := looked_at(row, budget))]
        for budget in TrainingBudget
    }
    pairs = sorted({int(p) for row in rows for p in row["setting"]["pairs"]})
    ratios = [
        math.log(mine / other)
        for row in rows
        if (mine := _step_s(row)) and (other := _step_s(baseline.get(row["seed"])))
    ]
    logs = interval(ratios)
    ratio = logs and SeedInterval(_exp(logs.mean), _exp(logs.low), _exp(logs.high), logs.n)
    return Recalled(
        rows[0]["variant"],
        rows[0]["computes"],
        rows[0]["family"],
        next((r["state_numbers"] for r in rows if r["state_numbers"] is not None), None),
        {
            budget: {
                p: found
                for p in pairs
                if (found := share([look["accuracy"][str(p)] for look in some]))
            }
            for budget, some in looks.items()
        },
        interval([look["step"] for look in looks[TrainingBudget.TIME]]),
        interval([s for row in rows if (s := _step_s(row))]),
        ratio,
        {p: found for p in pairs if (found := interval([x[p] for x in _moves(rows)]))},
        tuple(dict.fromkeys(_why(row) for row in rows if row["reason"])),
    )


def _moves(rows: Sequence[Row]) -> Iterator[dict[int, float]]:
    """Of each training, by how much its time's accuracy is another than its steps'."""
    for row in rows:
        steps, time = (looked_at(row, budget) for budget in TrainingBudget)
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
    from attnbench.features.quality.recall import Setting

    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(Setting.from_dict(row["setting"]).slug, []).append(row)
    return found


Found = Sequence[Recalled]
GOAL = f"{TARGET:.0%}".replace("%", " %")


def percent(found: SeedInterval) -> str:
    """``98.7 ± 0.6 %``; of one seed without the half that nobody knows."""
    if found.n == 1:
        return f"{found.mean:.1%}".replace("%", " %")
    return f"{100 * found.mean:.1f} ± {100 * found.half:.1f} %"


def conclusions(found: Found, baseline: str, setting: Setting, seconds: float | None) -> list[str]:
    """The sentences of one setting; none but one where no interval can be had."""
    if baseline not in [each.variant for each in found]:
        return [f"the baseline {baseline} was not trained to its end: nothing is concluded"]
    if all(i.n < 2 for each in found for some in each.accuracy.values() for i in some.values()):
        return ["one seed gives no interval: nothing is concluded; --seeds 3 gives one"]
    budgets = [TrainingBudget.STEPS] + [TrainingBudget.TIME] * (seconds is not None)
    said = [_at_most(found, baseline, setting, budget, seconds) for budget in budgets]
    said += [_capacity(found, setting, budget, seconds) for budget in budgets]
    return [*said, *_of_time(found, setting, seconds), *_of_state(found, baseline, setting)]


def _given(setting: Setting, budget: TrainingBudget, seconds: float | None) -> str:
    if budget is TrainingBudget.STEPS:
        return f"after the same {setting.steps:,} steps"
    return f"in the same time ({seconds:.1f} s)"


def _hardest(found: Found, baseline: str, budget: TrainingBudget) -> int | None:
    """The most pairs at which the baseline reaches the target."""
    (own,) = (each for each in found if each.variant == baseline)
    return max(
        (p for p in own.accuracy[budget] if _is(own, budget, p, TargetStanding.REACHES)),
        default=None,
    )


def _is(each: Recalled, budget: TrainingBudget, pairs: int, standing: TargetStanding) -> bool:
    return each.standing(budget, pairs) is standing


def _at_most(
    found: Found, baseline: str, setting: Setting, budget: TrainingBudget, seconds: float | None
) -> str:
    """Everybody where the baseline is still known to reach the target."""
    when, pairs = _given(setting, budget, seconds), _hardest(found, baseline, budget)
    if pairs is None:
        return (
            f"{when} {baseline} itself is not known to reach {GOAL} with any number of pairs: what "
            "the others lack says nothing of them; more --steps, or fewer --pairs"
        )
    parts = []
    for standing in TargetStanding:
        some = [
            f"{each.variant} ({percent(each.accuracy[budget][pairs])})"
            for each in found
            if pairs in each.accuracy[budget] and _is(each, budget, pairs, standing)
        ]
        if some:
            parts.append(f"{_verb(standing, len(some))}: {', '.join(some)}")
    by_chance = f"{chance(pairs, setting.values):.1%}".replace("%", " %")
    return f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


def _verb(standing: TargetStanding, many: int) -> str:
    one = many == 1
    return {
        TargetStanding.REACHES: f"{'reaches' if one else 'reach'} {GOAL}",
        TargetStanding.SHORT: f"{'falls' if one else 'fall'} short of it",
        TargetStanding.OPEN: "can't be told",
    }[standing]


def _capacity(found: Found, setting: Setting, budget: TrainingBudget, seconds: float | None) -> str:
    """With which numbers of pairs each reaches the target, and with which it may."""
    said = []
    for each in found:
        if each.accuracy[budget]:
            sure, perhaps = with_pairs(each, budget, setting.pairs)
            words = ", ".join(map(str, sure)) or "none"
            maybe = f", perhaps {', '.join(map(str, perhaps))}" if perhaps else ""
            said.append(f"{each.variant} {words}{maybe}")
    return f"{_given(setting, budget, seconds)}, pairs recalled to {GOAL}: {'; '.join(said)}"


def with_pairs(
    each: Recalled, budget: TrainingBudget, pairs: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The numbers of pairs with which it reaches the target, and those of which nothing is told."""
    by = {
        standing: [p for p in pairs if _is(each, budget, p, standing)]
        for standing in TargetStanding
    }
    return by[TargetStanding.REACHES], by[TargetStanding.OPEN]


def _of_time(found: Found, setting: Setting, seconds: float | None) -> Iterator[str]:
    """Who recalls more or less in the same time than after the same steps, seed by seed."""
    if seconds is None:
        return
    pairs, moved = setting.most, []
    for each in found:
        by = each.moved.get(pairs)
        if by is not None and by.n > 1 and (by.low > 0 or by.high < 0):
            more = "more" if by.mean > 0 else "fewer"
            points = f"{100 * abs(by.mean):.1f} ± {100 * by.half:.1f} points {more}"
            moved.append(f"{each.variant} {points}")
    of_whom = "of the others" if moved else "of nobody"
    known = "no difference is known" if moved else "a difference is known"
    yield (
        f"with {pairs} pairs the same time gives other than the same steps: "
        + "".join(f"{one}; " for one in moved)
        + f"{of_whom} {known}"
    )


def _of_state(found: Found, baseline: str, setting: Setting) -> Iterator[str]:
    """Who needs the fewest numbers for what the baseline recalls."""
    pairs = _hardest(found, baseline, TrainingBudget.STEPS)
    if pairs is None:
        return
    reach = [
        (each.state_numbers, each.variant)
        for each in found
        if each.state_numbers is not None
        and _is(each, TrainingBudget.STEPS, pairs, TargetStanding.REACHES)
    ]
    own = next((numbers for numbers, name in reach if name == baseline), None)
    if own is None:
        return
    least, name = min(reach)
    keeps = f"{own:,} numbers a head after {setting.seq} tokens"
    if len(reach) == 1:
        yield f"only {baseline} is known to reach {GOAL} with {pairs} pairs; it keeps {keeps}"
    elif least < own:
        yield (
            f"of those that reach {GOAL} with {pairs} pairs {name} keeps least: {least:,} numbers "
            f"a head; {baseline} keeps {keeps}"
        )
    else:
        yield f"nobody reaches {GOAL} with {pairs} pairs and keeps less than {baseline}: {keeps}"
