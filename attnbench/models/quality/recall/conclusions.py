"""What the intervals of a setting say, in sentences, and what they don't.

Nobody is said to reach the target, or to fall short of it, but by :class:`Standing`; a sentence
about everybody names those who can't be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.models.quality.recall.setting import Setting
from attnbench.models.quality.recall.task import chance
from attnbench.models.quality.recall.verdicts import (
    TARGET,
    Budget,
    Interval,
    Recalled,
    Standing,
)

Found = Sequence[Recalled]
GOAL = f"{TARGET:.0%}".replace("%", " %")


def percent(found: Interval) -> str:
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
    budgets = [Budget.STEPS] + [Budget.TIME] * (seconds is not None)
    said = [_at_most(found, baseline, setting, budget, seconds) for budget in budgets]
    said += [_capacity(found, setting, budget, seconds) for budget in budgets]
    return [*said, *_of_time(found, setting, seconds), *_of_state(found, baseline, setting)]


def _given(setting: Setting, budget: Budget, seconds: float | None) -> str:
    if budget is Budget.STEPS:
        return f"after the same {setting.steps:,} steps"
    return f"in the same time ({seconds:.1f} s)"


def _hardest(found: Found, baseline: str, budget: Budget) -> int | None:
    """The most pairs at which the baseline reaches the target."""
    (own,) = (each for each in found if each.variant == baseline)
    return max((p for p in own.accuracy[budget] if _is(own, budget, p, Standing.REACHES)),
               default=None)  # fmt: skip


def _is(each: Recalled, budget: Budget, pairs: int, standing: Standing) -> bool:
    return each.standing(budget, pairs) is standing


def _at_most(found: Found, baseline: str, setting: Setting, budget: Budget,
             seconds: float | None) -> str:  # fmt: skip
    """Everybody where the baseline is still known to reach the target."""
    when, pairs = _given(setting, budget, seconds), _hardest(found, baseline, budget)
    if pairs is None:
        return (
            f"{when} {baseline} itself is not known to reach {GOAL} with any number of pairs: what "
            "the others lack says nothing of them; more --steps, or fewer --pairs"
        )
    parts = []
    for standing in Standing:
        some = [
            f"{each.variant} ({percent(each.accuracy[budget][pairs])})" for each in found
            if pairs in each.accuracy[budget] and _is(each, budget, pairs, standing)
        ]  # fmt: skip
        if some:
            parts.append(f"{_verb(standing, len(some))}: {', '.join(some)}")
    by_chance = f"{chance(pairs, setting.values):.1%}".replace("%", " %")
    return f"{when}, with {pairs} pairs (by chance {by_chance}): {'; '.join(parts)}"


def _verb(standing: Standing, many: int) -> str:
    one = many == 1
    return {
        Standing.REACHES: f"{'reaches' if one else 'reach'} {GOAL}",
        Standing.SHORT: f"{'falls' if one else 'fall'} short of it",
        Standing.OPEN: "can't be told",
    }[standing]


def _capacity(found: Found, setting: Setting, budget: Budget, seconds: float | None) -> str:
    """With which numbers of pairs each reaches the target, and with which it may."""
    said = []
    for each in found:
        if each.accuracy[budget]:
            sure, perhaps = with_pairs(each, budget, setting.pairs)
            words = ", ".join(map(str, sure)) or "none"
            maybe = f", perhaps {', '.join(map(str, perhaps))}" if perhaps else ""
            said.append(f"{each.variant} {words}{maybe}")
    return f"{_given(setting, budget, seconds)}, pairs recalled to {GOAL}: {'; '.join(said)}"


def with_pairs(each: Recalled, budget: Budget,
               pairs: Sequence[int]) -> tuple[list[int], list[int]]:  # fmt: skip
    """The numbers of pairs with which it reaches the target, and those of which nothing is told."""
    by = {standing: [p for p in pairs if _is(each, budget, p, standing)] for standing in Standing}
    return by[Standing.REACHES], by[Standing.OPEN]


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
        + "".join(f"{one}; " for one in moved) + f"{of_whom} {known}"
    )  # fmt: skip


def _of_state(found: Found, baseline: str, setting: Setting) -> Iterator[str]:
    """Who needs the fewest numbers for what the baseline recalls."""
    pairs = _hardest(found, baseline, Budget.STEPS)
    if pairs is None:
        return
    reach = [
        (each.state_numbers, each.variant) for each in found
        if each.state_numbers is not None and _is(each, Budget.STEPS, pairs, Standing.REACHES)
    ]  # fmt: skip
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
