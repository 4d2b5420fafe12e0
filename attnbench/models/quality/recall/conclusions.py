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
        return [f"{baseline} was not trained for as long as it should: nothing is concluded"]
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
    """Up to how many pairs each recalls."""
    said = []
    for each in found:
        if not each.accuracy[budget]:
            continue
        reached, open_ = up_to(each, budget, setting.pairs)
        words = str(reached) if reached else "none"
        said.append(f"{each.variant} {words}" + f", perhaps {open_}" * bool(open_))
    return f"{_given(setting, budget, seconds)}, pairs recalled to {GOAL}: {'; '.join(said)}"


def up_to(each: Recalled, budget: Budget, pairs: Sequence[int]) -> tuple[int, int]:
    """The most pairs that it reaches the target with, and with all fewer; and that it may.

    The second is 0 where it is no more than the first.
    """
    reached, perhaps, known = 0, 0, True
    for number in sorted(pairs):
        standing = each.standing(budget, number)
        if standing is Standing.SHORT:
            break
        known = known and standing is Standing.REACHES
        reached, perhaps = (number, 0) if known else (reached, number)
    return reached, perhaps


def _of_time(found: Found, setting: Setting, seconds: float | None) -> Iterator[str]:
    """Whom the same time puts elsewhere than the same steps."""
    if seconds is None:
        return
    moved = []
    for each in found:
        for pairs in setting.pairs:
            steps, time = (each.standing(budget, pairs) for budget in Budget)
            if steps is not time:
                moved.append(f"{each.variant} with {pairs} pairs ({steps} → {time})")
    if moved:
        yield f"what the same time changes: {', '.join(moved)}"
    else:
        yield "in the same time everybody stands to the target as after the same steps"


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
    if least < own:
        yield (
            f"of those that reach {GOAL} with {pairs} pairs {name} keeps least: {least:,} numbers "
            f"a head; {baseline} keeps {own:,} after {setting.seq} tokens"
        )
    else:
        yield (
            f"of those that reach {GOAL} with {pairs} pairs nobody keeps fewer numbers a head than "
            f"{baseline}: {own:,} after {setting.seq} tokens"
        )
