"""What answers are worth between and beyond measured problems: ``python proofs/regret.py``.

Runs measure a coarse grid, which a choice may see, and problems drawn at random between its points
and modestly beyond, which it may not (:mod:`proofs.regret_problems`). For each of these the choice
is made from the grid of the first run alone; what is true is the median over the runs, and the
chosen variant is held in pairs against those that came near the fastest.

    regret      the chosen variant's time over the best one's
    predicted   each variant's predicted time against its measured one
    tie         right where the best is among those tied, or no faster than the margin
    silence     also on problems far off; right where a forced answer would have been wrong: the
                variant by more than a tenth, or its time by more than 15 %

How far the very same cells are from themselves in another run stands beside: whoever measured a
problem a quarter of an hour ago knows it no better. ``--run FOLDER``, given for each, judges runs
that were made before; what a later one lacks is true by the others. ``--made-up 0.03`` asks the
same of a machine whose times are known (:mod:`proofs.regret_made_up`): what the method is worth
where the machine stands still.
Leave the machine alone meanwhile: 40 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


import impls  # noqa: E402
from attnbench.answer.choose import (  # noqa: E402
    Choice,
    Wants,
    choose,
)
from attnbench.answer.predict import mask_kinds, predict  # noqa: E402
from attnbench.core.record import Record  # noqa: E402
from attnbench.core.settings import Settings  # noqa: E402
from attnbench.core.store import read_records  # noqa: E402
from attnbench.sweep.compare import compare_cells  # noqa: E402
from attnbench.sweep.engine import LocalEngine  # noqa: E402
from impls.problem import Problem  # noqa: E402
from proofs import regret_made_up  # noqa: E402
from proofs.regret_problems import SEED, all_problems, cells_of, measured  # noqa: E402

PAIRS_S, RIVALS, NEAR = 2.0, 2, 1.3
"""Held against the chosen one are so many, whose medians are at most that far from the best one."""
FORCED, OFF = 1.10, 0.15
"""What makes a forced answer wrong: its variant's regret, and its time's error."""
LIMITS = {"median": 1.01, "p95": 1.10, "within": 0.90, "right": 0.90}


@dataclass
class Asked:
    """A problem that the choice did not see, what was said of it, and what is true."""

    problem: Problem
    choice: Choice
    times: Mapping[str, float]
    """Measured medians by variant."""
    forced: dict[str, float]
    """Predicted ones, however little is known."""
    regret: float = 1.0
    beaten_by: str = ""
    """Who was faster in pairs, if anybody."""

    @property
    def best(self) -> str:
        """The fastest by medians."""
        return min(self.times, key=self.times.__getitem__)

    @property
    def rivals(self) -> list[str]:
        """Who may be faster than the chosen one, the fastest by medians first."""
        near = [v for v, s in self.times.items() if s <= NEAR * self.times[self.best]]
        return [v for v in sorted(near, key=self.times.__getitem__) if v != self.name][:RIVALS]

    @property
    def name(self) -> str:
        """Who is chosen; who would have been, where nothing was said."""
        if self.choice.ranking is not None:
            return self.choice.ranking.winner.variant
        return min(self.forced, key=self.forced.__getitem__, default=self.best)

    @property
    def off(self) -> float:
        """By what share the forced winner's time would have been wrong."""
        if self.name not in self.forced:
            return float("inf")
        ratio = self.forced[self.name] / self.times[self.name]
        return max(ratio, 1 / ratio) - 1


def of_runs(runs: Sequence[Path]) -> list[Asked]:
    """Every problem that was held out, or is far off, by what runs say."""
    shown, held, far = all_problems(SEED)
    rounds = [[s for s in read_records(run) if s.time] for run in runs]
    if missing := {*shown, *held, *far} - {s.problem for s in rounds[0]}:
        raise SystemExit(f"{runs[0]} holds nothing of {len(missing)} problems: of another draw?")
    return judged(rounds[0], _medians(rounds))


def of_made_up(noise: float) -> list[Asked]:
    """The same on a machine whose times are known; its measured ones scatter by so much."""
    problems = [p for some in all_problems(SEED) for p in some]
    truth = _medians([regret_made_up.measured(problems, 0.0, SEED)])
    asked = judged(regret_made_up.measured(problems, noise, SEED), truth)
    for each in asked:
        each.regret = each.times[each.name] / each.times[each.best]
    return asked


def judged(seen: Sequence[Record], truth: Mapping[Problem, Mapping[str, float]]) -> list[Asked]:
    """What is said of each problem, from those alone that may be seen."""
    shown, held, far = all_problems(SEED)
    table, found = impls.table(), []
    grid = [s for s in seen if s.problem in set(shown)]
    for problem in [*held, *far]:
        alike = [s for s in grid if s.problem.phase == problem.phase]
        choice = choose(alike, problem, Wants(), table)
        times = truth[problem]
        if len(times) > 1:
            found.append(Asked(problem, choice, times, _forced(alike, problem, times)))
    return found


def _medians(rounds: Sequence[Sequence[Record]]) -> dict[Problem, dict[str, float]]:
    """What is true of each cell: the median of the rounds."""
    taken: dict[Problem, dict[str, list[float]]] = {}
    for seen in rounds:
        for s in seen:
            taken.setdefault(s.problem, {}).setdefault(s.variant, []).append(s.time.median_s)
    return {p: {v: statistics.median(x) for v, x in some.items()} for p, some in taken.items()}


def again_within(runs: Sequence[Path]) -> tuple[float, int]:
    """Of cells that two runs measured, the share that comes that near to itself; how many."""
    times: dict[tuple[Problem, str], list[float]] = {}
    for run in runs[:2]:
        for s in read_records(run):
            if s.time:
                times.setdefault((s.problem, s.variant), []).append(s.time.median_s)
    both = [x for x in times.values() if len(x) > 1]
    return _share([max(x) / min(x) <= 1 + OFF for x in both]), len(both)


def _forced(alike: list[Record], problem: Problem, times: Iterable[str]) -> dict[str, float]:
    """What would be said were it not for any rule of silence."""
    found = {}
    for name in times:
        own = [s for s in alike if s.variant == name and s.time]
        own = [s for s in own if mask_kinds(s.problem) == mask_kinds(problem)]
        if own:
            figures = [s.time.median_s for s in own]
            found[name] = predict([s.problem for s in own], figures, problem).value
    return found


def hold_against_the_best(asked: list[Asked]) -> None:
    """The true regret, in pairs, whatever the medians say."""
    with LocalEngine(Settings(threads=1)) as engine:
        for each in asked:
            (chosen,) = cells_of(each.problem, [each.name])
            for rival in each.rivals:
                (cell,) = cells_of(each.problem, [rival])
                (one,) = compare_cells(
                    [chosen],
                    [cell],
                    engine,
                    seed=0,
                    margin=0.01,
                    floors=[],
                    budget_s=PAIRS_S,
                    watch=lambda _: None,
                )
                if one.pairs is None:
                    print(f"no pairs for {each.problem}: {one.why}", flush=True)
                    continue
                if one.pairs.comparison.ratio > each.regret:
                    each.regret, each.beaten_by = one.pairs.comparison.ratio, rival


def shown(asked: list[Asked]) -> bool:
    """Print what came of it beside its limits; whether all hold."""
    said = [a for a in asked if a.choice.ranking is not None]
    if not said:
        print("no problem was answered")
        return False
    silent = [a for a in asked if a.choice.ranking is None]
    regrets = sorted(a.regret for a in said)
    cells = [
        (c, a.times[c.variant]) for a in said for c in a.choice.ranking.all if c.variant in a.times
    ]
    near = [abs(c.median_s / true - 1) <= OFF for c, true in cells]
    inside = [c.low_s <= true <= c.high_s for c, true in cells]
    ties = [a for a in said if a.choice.ranking.equal]
    right = [_right_tie(a) for a in ties]
    quiet = [a.regret > FORCED or a.off > OFF for a in silent]
    p95 = regrets[min(len(regrets) - 1, int(0.95 * len(regrets)))]
    lines = [
        ("problems answered, silent", f"{len(said)}, {len(silent)}", "", True),
        (
            "regret, median",
            f"{statistics.median(regrets):.3f}",
            f"≤ {LIMITS['median']}",
            statistics.median(regrets) <= LIMITS["median"],
        ),
        ("regret, 95th percentile", f"{p95:.3f}", f"≤ {LIMITS['p95']}", p95 <= LIMITS["p95"]),
        ("regret, largest", f"{regrets[-1]:.3f}", "", True),
        (
            f"predicted within {OFF:.0%}, of {len(near)} cells",
            f"{_share(near):.1%}",
            f"≥ {LIMITS['within']:.0%}",
            _share(near) >= LIMITS["within"],
        ),
        ("true time inside the interval", f"{_share(inside):.1%}", "", True),
        (
            f"ties, silences that were right, of {len([*right, *quiet])}",
            f"{_share([*right, *quiet]):.1%}",
            f"≥ {LIMITS['right']:.0%}",
            _share([*right, *quiet]) >= LIMITS["right"],
        ),
        (f"  ties alone, of {len(ties)}", f"{_share(right):.1%}", "", True),
        (f"  silences alone, of {len(silent)}", f"{_share(quiet):.1%}", "", True),
    ]
    for what, value, limit, holds in lines:
        print(f"{what:44} {value:>12}  {limit:8} {'' if holds else 'NOT REACHED'}")
    for a in sorted(said, key=lambda a: -a.regret)[:6]:
        print(f"  regret {a.regret:.3f}: {a.problem}: {a.name}, best {a.beaten_by or a.best}")
    return all(holds for *_, holds in lines)


def _right_tie(a: Asked) -> bool:
    names = {a.name, *(c.variant for c in a.choice.ranking.equal)}
    return (a.beaten_by or a.best) in names or a.regret <= 1 + a.choice.margin


def _share(held: list[bool]) -> float:
    return sum(held) / len(held) if held else 1.0


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--run", type=Path, action="append", help="made by this script before")
    words.add_argument("--rounds", type=int, default=3, help="how often all is measured")
    words.add_argument("--out", type=Path, help="where to keep the run")
    words.add_argument(
        "--made-up",
        type=float,
        metavar="NOISE",
        help="ask of a machine whose times are known and scatter by this share, such as 0.03",
    )
    words.add_argument("--no-pairs", action="store_true", help="regret by medians alone")
    given = words.parse_args()
    if given.made_up is not None:
        return int(not shown(of_made_up(given.made_up)))
    with tempfile.TemporaryDirectory() as folder:
        runs = given.run or measured(given.out or Path(folder), SEED, given.rounds)
        asked, (near, again) = of_runs(runs), again_within(runs)
        if given.no_pairs:
            for each in asked:
                each.regret = each.times[each.name] / each.times[each.best]
        else:
            hold_against_the_best(asked)
    if again:
        print(f"the same cell within {OFF:.0%} of itself in another run: {near:.1%} of {again}")
    return int(not shown(asked))


if __name__ == "__main__":
    raise SystemExit(main())
