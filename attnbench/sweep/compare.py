"""Two calls in pairs, in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from attnbench.core.format import duration
from attnbench.core.machine import Machine, pace
from attnbench.core.record import NOT_TRIED, OwnProblem, Part, Record, Status
from attnbench.core.stats import Comparison, Verdict, holm
from attnbench.core.wire import Job, plain
from attnbench.sweep.engine import LocalEngine, WorkerLost, lost_status
from attnbench.sweep.plan import Cell, Plan, call_s, checks_s
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

START_AND_GATE_S = 300.0


class Compared(Part, frozen=True):
    """What was held against what on a problem, and what came of it: a comparison, or why none.

    Two variants, one variant in two commits, or one record in two runs; b is held against a.
    """

    problem: OwnProblem
    variant: str = ""
    """The one judged."""
    computes: str = ""
    against: str = ""
    """The variant that it is held against; empty where it is the same one, elsewhere."""
    comparison: Comparison | None = None
    status: str = Status.MEASURED
    """How it ended: of both variants, or of b, a record of head or of the second run."""
    why: str = ""
    """The reason, where there is no comparison; with the variant that was stopped."""
    status_a: str = Status.MEASURED
    why_a: str = ""
    memory_ratio: float | None = None
    """b's peak over a's."""
    notes: tuple[str, ...] = ()
    """What disturbed the timing, and what was not alike."""


def unlike(judged: Variant, against: Variant) -> Iterator[str]:
    """What must be known of two that do not do the same; raises CantBeDone for
    unlike levels.
    """
    if judged.level != against.level:
        raise CantBeDone(
            f"{judged.label} is a {judged.level} and {against.label} a {against.level}: their "
            "times are of other work; put the core into a layer, as in 'mha?core=sdpa', or take "
            "two of a level"
        )
    if judged.computes != against.computes:
        yield (
            f"note: {judged.label} computes {judged.computes}, {against.label} {against.computes}: "
            "the faster one need not be the right one for a model"
        )
    if judged.world != against.world:
        over = [f"{x.world} processes" if x.world > 1 else "one process" for x in (judged, against)]
        yield (
            f"note: {judged.label} runs over {over[0]} and {against.label} over {over[1]}: the "
            "faster one need not make better use of a device"
        )


def corrected(results: Sequence[Compared]) -> list[Compared]:
    """The same with Holm's correction over all of them."""
    pairs = zip(results, holm([one.comparison for one in results]), strict=True)
    return [one.with_(comparison=comparison) for one, comparison in pairs]


def compare_cell(
    judged: Cell,
    against: Cell,
    engine: LocalEngine,
    seed: int,
    margin: float | None,
    floors: Sequence[Mapping[str, Any]],
    budget_s: float,
    limit_s: float = math.inf,
) -> Compared:
    """One problem, by itself; ``limit_s``: no answer is waited for any longer."""
    blank = Compared(
        problem=judged.problem,
        variant=judged.variant.label,
        computes=judged.variant.computes,
        against=against.variant.label,
    )
    if (left_out := judged.left_out or against.left_out) is not None:
        return blank.with_(status=left_out.status, why=f"{left_out.variant}: {left_out.reason}")
    question = {
        "compare": [  # the ratio is of the second's time to the first's
            plain(Job(c.variant, c.problem, seed, budget_s)) for c in (against, judged)
        ],
        "margin": margin,
        "floors": [dict(f) for f in floors],
        "budget_s": budget_s,
    }
    try:
        answer = engine.ask(question, min(limit_s, START_AND_GATE_S + 4 * budget_s))
    except WorkerLost as lost:
        return blank.with_(status=lost_status(lost), why=lost.reason)
    if stopped := answer.get("stopped"):
        return blank.with_(status=Status(stopped["status"]), why=stopped["why"])
    return blank.with_(comparison=msgspec.convert(answer["comparison"], Comparison))


STARTING_S = 3.0
"""For the worker to start."""
QUICK, USUAL_PAIRS = 0.64, 160
"""The time of a call in pairs, of what all rows take together; and pairs that decide, as a rule."""


def starting_s() -> float:
    """A guess at the seconds of the worker's start here."""
    return STARTING_S * pace()


def pairs_guess_s(
    judged: Cell, against: Cell, machine: Machine, budget_s: float, pairs: int = USUAL_PAIRS
) -> float:
    """A guess at the seconds of a problem: both are checked, and pairs taken."""
    if judged.left_out or against.left_out:
        return 0.0
    checks = sum(checks_s(cell.variant, cell.problem, machine) for cell in (judged, against))
    return checks + min(budget_s, 2 * pairs * QUICK * call_s(judged.problem, machine))


def counts(results: Sequence[Compared]) -> dict[str, int]:
    """How many problems came to which verdict, or to none."""
    verdicts = [str(c.comparison.verdict if c.comparison else c.status) for c in results]
    order = dict.fromkeys([*map(str, Verdict), *verdicts])
    return {v: verdicts.count(v) for v in order if v in verdicts}


LONG_S = 20.0
"""Where a cell is thought to take longer, a shorter sequence is tried first."""
SHORTER = 4
LEAST_KEYS = 64
HOPELESS = 8.0
"""A variant that takes so many times as long as the fastest on a quarter of the tokens won't win
on all of them, even if its power of the length is one less."""
NEAR = 1.15
"""Variants whose median is within this of the best are paired with it."""
MOST_PAIRED = 2
PAIRS_S = 10.0
CALLS, MOST_S = 80, 120.0
"""Forty pairs are looked at first; if they take longer, none is begun."""


def within(plan: Plan, most: int | None) -> tuple[list[str], dict[str, int]]:
    """The variants that could be measured; and the bytes of those that need too many, by their own
    formulas.
    """
    large: dict[str, int] = {}
    for cell in plan.to_run if most else ():
        variant = cell.variant
        if variant.cost is not None:
            peak = load_function(variant.cost)(cell.problem, **variant.chosen).peak_bytes
            if peak and peak > most:
                large[variant.label] = peak
    return [c.variant.label for c in plan.cells if c.variant.label not in large], large


def shorter(plan: Plan) -> Problem | None:
    """The shorter problem to try first; None where that is not worth it, or the mask fits one
    length alone.
    """
    runs = plan.to_run
    if max((cell.guess_s for cell in runs), default=0.0) < LONG_S:
        return None
    problem = runs[0].problem
    if problem.inputs.startswith("captured:"):
        return None
    keys = problem.kv_len // SHORTER
    queries = 1 if problem.q_len == 1 else max(1, problem.q_len // SHORTER)
    try:
        return problem.with_(q_len=queries, kv_len=keys) if keys >= LEAST_KEYS else None
    except InvalidProblem:
        return None


def _seconds_of(records: Sequence[Record]) -> dict[str, float]:
    """Seconds by variant, the fastest first."""
    timed = [(r.time.median_s, r.variant) for r in records if r.time is not None]
    return {name: seconds for seconds, name in sorted(timed)}


def hopeful(records: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
    """The variants that could win, after all were tried on a shorter sequence, the fastest first;
    and of the others how many times as long they took as the fastest.

    A variant that was not measured there may have been refused that length alone, and stays.
    """
    seconds = _seconds_of(records)
    right = _seconds_of([r for r in records if not r.wrong_on]) or seconds
    best = min(right.values(), default=0.0)
    behind = {name: s / best for name, s in seconds.items() if s > HOPELESS * best}
    untried = [r.variant for r in records if r.status in NOT_TRIED]
    return [*(name for name in seconds if name not in behind), *untried], behind


def near_the_best(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Of some variants those that a median alone does not tell from the best, the best first; two
    at the least.
    """
    seconds = {name: s for name, s in _seconds_of(records).items() if name in names}
    near = [name for name in seconds if seconds[name] <= NEAR * min(seconds.values())]
    return (near if len(near) > 1 else [*seconds][:2])[: MOST_PAIRED + 1]


def in_pairs(
    cells: Sequence[Cell],
    seconds: float,
    engine: LocalEngine,
    header: Mapping[str, Any],
    say: Callable[[str], None],
    begin: Callable[[str], None],
) -> list[Compared]:
    """The first of some cells against each of the others, told to ``begin`` as each begins.

    ``seconds``: of a call of the first.
    """
    best, *others = cells
    if seconds * CALLS > MOST_S:
        say(f"no pairs: {CALLS} calls of {duration(seconds)} are the fewest that decide anything")
        return []
    results = []
    for cell in others:
        begin(f"in pairs: {cell.variant.label} and {best.variant.label}")
        one = compare_cell(cell, best, engine, header["seed"], None, header["noise"], PAIRS_S)
        if one.comparison is None:
            say(f"no pairs of {cell.variant.label}: {one.status}: {one.why}")
        else:
            results.append(one)
    return results
