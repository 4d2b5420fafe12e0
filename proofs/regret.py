"""What answers are worth between and beyond measured problems: ``python proofs/regret.py``.

Runs measure a coarse grid, which a choice may see, and problems drawn at random between its points
and modestly beyond, which it may not (:mod:`proofs.regret_problems`). For each of these the choice
is made from the grid of the first run alone; what is true is the median over the runs, and the
chosen variant is held against the fastest in pairs.

    regret      the chosen variant's time over the best one's
    predicted   each variant's predicted time against its measured one
    tie         right where the best is among those tied, or no faster than the margin
    silence     also on problems far off; right where a forced answer would have been wrong: the
                variant by more than a tenth, or its time by more than 15 %

How far one kernel under two names is from itself in the first run stands beside: nothing can be
predicted better than that. ``--run FOLDER``, given for each, judges runs that were made before.
Leave the machine alone meanwhile: 40 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import impls  # noqa: E402
from attnbench.answer.choice.choice import Choice  # noqa: E402
from attnbench.answer.choice.chosen import choose  # noqa: E402
from attnbench.answer.choice.features import Terms  # noqa: E402
from attnbench.answer.choice.predict import Model  # noqa: E402
from attnbench.answer.choice.wants import Wants  # noqa: E402
from attnbench.measure.settings import Settings  # noqa: E402
from attnbench.store import read_header  # noqa: E402
from attnbench.store.skim import Seen, skim  # noqa: E402
from attnbench.sweep.compare import compare_cells  # noqa: E402
from attnbench.sweep.engine import LocalEngine  # noqa: E402
from impls.problem import Problem  # noqa: E402
from proofs.regret_problems import SEED, all_problems, cells_of, measured  # noqa: E402

PAIRS_S = 4.0
FORCED, OFF = 1.10, 0.15
"""What makes a forced answer wrong: its variant's regret, and its time's error."""
TWINS = ("sdpa", "sdpa.flash")
LIMITS = {"median": 1.01, "p95": 1.10, "within": 0.90, "right": 0.90}


@dataclass
class Asked:
    """A problem that the choice did not see, what was said of it, and what is true."""

    problem: Problem
    choice: Choice
    times: dict[str, float]
    """Measured medians by variant."""
    forced: dict[str, float]
    """Predicted ones, however little is known."""
    regret: float = 1.0

    @property
    def best(self) -> str:
        return min(self.times, key=self.times.__getitem__)

    @property
    def name(self) -> str:
        """Who is chosen; who would have been, where nothing was said."""
        if self.choice.winner is not None:
            return self.choice.winner.variant
        return min(self.forced, key=self.forced.__getitem__, default=self.best)

    @property
    def off(self) -> float:
        """By what share the forced winner's time would have been wrong."""
        if self.name not in self.forced:
            return float("inf")
        ratio = self.forced[self.name] / self.times[self.name]
        return max(ratio, 1 / ratio) - 1


def judged(runs: Sequence[Path]) -> list[Asked]:
    """Every problem that was held out, or is far off."""
    shown, held, far = all_problems(SEED)
    table, rounds = impls.table(), [[s for s in skim(run, {}) if s.time] for run in runs]
    for run, seen in zip(runs, rounds, strict=True):
        if missing := {*shown, *held, *far} - {s.problem for s in seen}:
            raise SystemExit(f"{run} holds nothing of {len(missing)} problems: of another draw?")
    grid = [s for s in rounds[0] if s.problem in set(shown)]
    ceilings, truth = read_header(runs[0]).get("ceilings") or {}, _medians(rounds)
    found = []
    for problem in [*held, *far]:
        alike = [s for s in grid if s.problem.phase == problem.phase]
        choice = choose(alike, problem, Wants(), table, ceilings=ceilings)
        times = truth[problem]
        if len(times) > 1:
            found.append(Asked(problem, choice, times, _forced(alike, problem, times, ceilings)))
    return found


def _medians(rounds: Sequence[Sequence[Seen]]) -> dict[Problem, dict[str, float]]:
    """What is true of each cell: the median of the rounds."""
    taken: dict[Problem, dict[str, list[float]]] = {}
    for seen in rounds:
        for s in seen:
            taken.setdefault(s.problem, {}).setdefault(s.variant, []).append(s.time.median_s)
    return {p: {v: statistics.median(x) for v, x in some.items()} for p, some in taken.items()}


def twins_within(run: Path) -> float:
    """Of one kernel under two names, the share of problems where these come that near."""
    times: dict[Problem, dict[str, float]] = {}
    for s in skim(run, {}):
        if s.time and s.variant in TWINS:
            times.setdefault(s.problem, {})[s.variant] = s.time.median_s
    both = [x for x in times.values() if len(x) == len(TWINS)]
    return _share([max(x.values()) / min(x.values()) <= 1 + OFF for x in both])


def _forced(alike: list[Seen], problem: Problem, times: dict[str, float],
            ceilings: dict) -> dict[str, float]:  # fmt: skip
    """What would be said were it not for any rule of silence."""
    found = {}
    for name in times:
        own = [s for s in alike if s.variant == name and s.time]
        own = [s for s in own if s.problem.mask.kinds == problem.mask.kinds]
        figures = [s.time.median_s for s in own]
        model = Model(Terms(ceilings), [s.problem for s in own], figures) if own else None
        if model and (said := model.predict(problem)):
            found[name] = said.middle
    return found


def hold_against_the_best(asked: list[Asked]) -> None:
    """The true regret of who is not the fastest by medians, in pairs."""
    with LocalEngine(Settings(threads=1)) as engine:
        for each in asked:
            if each.name == each.best:
                continue
            chosen, best = (cells_of(each.problem, [n])[0] for n in (each.name, each.best))
            (one,) = compare_cells([chosen], [best], engine, seed=0, margin=0.01, floors=[],
                                   budget_s=PAIRS_S, watch=lambda _: None)  # fmt: skip
            if one.pairs is None:
                print(f"no pairs for {each.problem}: {one.why}", flush=True)
                each.regret = each.times[each.name] / each.times[each.best]
            else:
                each.regret = max(1.0, one.pairs.comparison.ratio)


def shown(asked: list[Asked]) -> bool:
    """Print what came of it beside its limits; whether all hold."""
    said = [a for a in asked if a.choice.winner is not None]
    if not said:
        print("no problem was answered")
        return False
    silent = [a for a in asked if a.choice.winner is None]
    regrets = sorted(a.regret for a in said)
    cells = [(c, a.times[c.variant]) for a in said for c in a.choice.ranked if c.variant in a.times]
    near = [abs(c.median_s / true - 1) <= OFF for c, true in cells]
    inside = [c.low_s <= true <= c.high_s for c, true in cells]
    ties = [a for a in said if a.choice.equal]
    right = [_right_tie(a) for a in ties]
    quiet = [a.regret > FORCED or a.off > OFF for a in silent]
    p95 = regrets[min(len(regrets) - 1, int(0.95 * len(regrets)))]
    lines = [
        ("problems answered, silent", f"{len(said)}, {len(silent)}", "", True),
        ("regret, median", f"{statistics.median(regrets):.3f}", f"≤ {LIMITS['median']}",
         statistics.median(regrets) <= LIMITS["median"]),
        ("regret, 95th percentile", f"{p95:.3f}", f"≤ {LIMITS['p95']}", p95 <= LIMITS["p95"]),
        ("regret, largest", f"{regrets[-1]:.3f}", "", True),
        (f"predicted within {OFF:.0%}, of {len(near)} cells", f"{_share(near):.1%}",
         f"≥ {LIMITS['within']:.0%}", _share(near) >= LIMITS["within"]),
        ("true time inside the interval", f"{_share(inside):.1%}", "", True),
        (f"ties that were right, of {len(ties)}", f"{_share(right):.1%}",
         f"≥ {LIMITS['right']:.0%}", _share(right) >= LIMITS["right"]),
        (f"silences that were right, of {len(silent)}", f"{_share(quiet):.1%}",
         f"≥ {LIMITS['right']:.0%}", _share(quiet) >= LIMITS["right"]),
    ]  # fmt: skip
    for what, value, limit, holds in lines:
        print(f"{what:44} {value:>12}  {limit:8} {'' if holds else 'NOT REACHED'}")
    for a in sorted(said, key=lambda a: -a.regret)[:6]:
        print(f"  regret {a.regret:.3f}: {a.problem}: {a.name}, best {a.best}")
    return all(holds for *_, holds in lines)


def _right_tie(a: Asked) -> bool:
    names = {a.name, *(c.variant for c in a.choice.equal)}
    return a.best in names or a.regret <= 1 + a.choice.margin


def _share(held: list[bool]) -> float:
    return sum(held) / len(held) if held else 1.0


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--run", type=Path, action="append", help="made by this script before")
    words.add_argument("--rounds", type=int, default=3, help="how often all is measured")
    words.add_argument("--out", type=Path, help="where to keep the run")
    words.add_argument("--no-pairs", action="store_true", help="regret by medians alone")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = given.run or measured(given.out or Path(folder), SEED, given.rounds)
        asked, near = judged(runs), twins_within(runs[0])
        if given.no_pairs:
            for each in asked:
                each.regret = each.times[each.name] / each.times[each.best]
        else:
            hold_against_the_best(asked)
    print(f"one kernel under two names within {OFF:.0%} of itself: {near:.1%} of problems")
    return int(not shown(asked))


if __name__ == "__main__":
    raise SystemExit(main())
