"""What answers are worth between measured problems: ``python -m proofs.regret``.

Times are those of an invented machine, so that what is true is known, scattered by 2 and by 3 per
cent. A choice sees a coarse grid of problems, and is asked about others whose lengths are drawn at
random between those of the grid.

    regret      the chosen variant's time over the best one's
    predicted   each variant's predicted time against its true one
    tie         right where the best is among those tied, or no faster than the margin
    silence     right where a forced answer would have been wrong: the variant by more than a tenth,
                or its time by more than 15 %
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import impls
from attnbench.answer.choose import Choice, Wants, choose
from attnbench.answer.predict import FEWEST, predict
from attnbench.answer.regimes import line_of
from attnbench.core.record import Record
from impls.problem import Problem
from proofs.ruler import Figure, show
from tests.answer.build import problem, seen

NOISES = (0.02, 0.03)
VARIANTS = (
    "baddbmm", "matmul", "chunked", "online", "sdpa", "sdpa.flash", "window.blocked",
)  # fmt: skip
"""Exact variants that need no compiler, and each win somewhere; two are names of one kernel."""
PHASES, MASKS = ("forward", "train", "decode"), ("none", "causal", "window:127,0")
LENGTHS = {"decode": (256, 501, 1024, 2003, 4096, 8192)}
SQUARE = (128, 251, 512, 1003, 2048)
"""Some are no multiples of anything, as in real programs: blocks that aren't full cost time."""
HEADS, WIDTHS = (2, 8), (32, 48, 64, 128)
EACH, HELD_OUT, SEED = 4, 64, 3
MOST_PAIRS = 8 * 1024**2
"""The most scores of one problem, over its heads."""
FORCED, OFF = 1.10, 0.15
"""A forced answer is wrong beyond this regret, or this error of its time."""


def small_enough(p: Problem) -> bool:
    return p.heads * p.q_len * p.kv_len <= MOST_PAIRS


def grid(chance: random.Random) -> Iterator[Problem]:
    """All lengths of some shapes, of as many for each phase and mask."""
    for phase, mask in itertools.product(PHASES, MASKS):
        shapes = chance.sample(list(itertools.product(HEADS, WIDTHS)), EACH)
        lengths = LENGTHS.get(phase, SQUARE)
        for (heads, width), n in itertools.product(shapes, lengths):
            yield problem(n, heads=heads, width=width, mask=mask, phase=phase)


def held_out(chance: random.Random, visible: Sequence[Problem]) -> Iterator[Problem]:
    """Problems between the lengths of the grid."""
    while True:
        p = chance.choice(visible)
        ends = LENGTHS.get(p.phase, SQUARE)
        length = round(math.exp(chance.uniform(math.log(ends[0]), math.log(ends[-1]))))
        yield p.with_(q_len=1 if p.phase == "decode" else length, kv_len=length)


def all_problems() -> tuple[list[Problem], list[Problem]]:
    """The grid, and the problems that the choice does not see."""
    chance = random.Random(SEED)
    visible = list(filter(small_enough, grid(chance)))
    fresh = (p for p in held_out(chance, visible) if small_enough(p) and p not in visible)
    return visible, list(dict.fromkeys(itertools.islice(fresh, 2 * HELD_OUT)))[:HELD_OUT]


NEAR_BYTES, NEAR_RATE, FAR_RATE = 6e6, 3e10, 9e9
"""The border between the invented machine's memories, and the bytes a second of each."""
BACKWARD, BLOCK = 2.6, 16


@dataclass(frozen=True)
class Speed:
    """A variant on the invented machine.

    Nothing here is what a choice's own model assumes: products run at a rate that depends on width
    and on whether blocks are full, softmax costs by the pair, and what is moved comes from one of
    two memories with a soft border between.
    """

    start_s: float
    rate: float
    """FLOPs a second of products at full width."""
    pair_s: float
    skips: bool
    """It leaves out what the mask hides."""
    stores: bool
    """It writes all scores down, and reads them."""

    def seconds(self, p: Problem) -> float:
        """The time of a call."""
        heads, width = p.batch * p.heads, p.head_dim
        pairs = heads * p.q_len * p.kv_len
        if self.skips:
            pairs = min(pairs, int(1.1 * p.mask.pairs(p.shape)) + 16 * heads * p.q_len)
        filled = math.ceil(p.kv_len / BLOCK) * BLOCK / p.kv_len
        filled *= 1.06 if p.kv_len % BLOCK else 1.0
        products = 4 * pairs * width * filled / (self.rate * width / (width + 24))
        moved = 4 * heads * width * (2 * p.q_len + 2 * p.kv_len) + 8 * pairs * self.stores
        far = 1 / (1 + (NEAR_BYTES / moved) ** 3)
        moving = moved * ((1 - far) / NEAR_RATE + far / FAR_RATE)
        whole = products + self.pair_s * pairs + moving
        return self.start_s + whole * (1 + BACKWARD * (p.phase == "train"))


def speeds() -> dict[str, Speed]:
    """The variants, each with figures of its own."""
    chance = random.Random(7)
    return {
        name: Speed(
            start_s=chance.uniform(8e-6, 60e-6),
            rate=chance.uniform(3e10, 7e10),
            pair_s=chance.uniform(4e-10, 12e-10),
            skips=name in ("window.blocked", "chunked"),
            stores=name in ("baddbmm", "matmul"),
        )
        for name in VARIANTS
    }


def invented_run(problems: Sequence[Problem], noise: float) -> list[Record]:
    """A run of the invented machine, whose times scatter by a share."""
    chance, table = random.Random(SEED), speeds()
    records = []
    for p in problems:
        for row in (impls.table().rows[name] for name in VARIANTS):
            # window.blocked refuses all but windows itself, when it is built
            windowed = row.name != "window.blocked" or "window" in p.mask.kinds
            if row.supports(p) is not None or not windowed:
                continue
            s = table[row.name].seconds(p) * math.exp(chance.gauss(0, noise))
            records.append(seen(row.name, p, s, peak=1 << 20))
    return records


@dataclass(frozen=True)
class Answer:
    """A choice for a problem of which nothing was visible, and what is true of it."""

    choice: Choice
    times: Mapping[str, float]
    """The true times by variant."""
    forced: Mapping[str, float]
    """Times as predicted however little is known."""

    @property
    def best(self) -> str:
        """The fastest variant."""
        return min(self.times, key=self.times.__getitem__)

    @property
    def name(self) -> str:
        """The chosen variant, or the one that would have been where nothing was said."""
        if self.choice.ranking is not None:
            return self.choice.ranking.winner.variant
        return min(self.forced, key=self.forced.__getitem__, default=self.best)

    @property
    def regret(self) -> float:
        """The chosen variant's time over the best one's."""
        return self.times[self.name] / self.times[self.best]

    @property
    def right_tie(self) -> bool:
        """The best is among those tied, or hardly faster."""
        names = {self.name, *(c.variant for c in self.choice.ranking.equal)}
        return self.best in names or self.regret <= 1 + self.choice.margin

    @property
    def right_silence(self) -> bool:
        """A forced answer would have been wrong."""
        if self.name not in self.forced:
            return True
        ratio = self.forced[self.name] / self.times[self.name]
        return self.regret > FORCED or max(ratio, 1 / ratio) - 1 > OFF


def answers(noise: float) -> list[Answer]:
    """The choices for all problems that are not of the grid."""
    visible, hidden = all_problems()
    on_grid, table = invented_run(visible, noise), impls.table()
    truth: dict[Problem, dict[str, float]] = {}
    for r in invented_run(hidden, 0.0):
        truth.setdefault(r.problem, {})[r.variant] = r.time.median_s
    results = []
    for p, times in truth.items():
        alike = [r for r in on_grid if r.problem.phase == p.phase]
        if len(times) > 1:
            choice = choose(alike, p, Wants(), table)
            results.append(Answer(choice, times, _forced(alike, p, times)))
    return results


def _forced(
    alike: Sequence[Record], problem: Problem, names: Mapping[str, float]
) -> dict[str, float]:
    """Times of variants as predicted however little is known."""
    predictions = {}
    for name in names:
        own = [r for r in alike if r.variant == name and line_of(r.problem) == line_of(problem)]
        times = {r.problem.kv_len: r.time.median_s for r in own if r.time}
        if len(times) >= FEWEST and min(times) <= problem.kv_len <= max(times):
            predictions[name] = predict(times, problem.kv_len).value
    return predictions


def figures(results: Sequence[Answer]) -> Iterator[Figure]:
    """What came of the choices."""
    spoken = [a for a in results if a.choice.ranking is not None]
    silent = [a for a in results if a.choice.ranking is None]
    regrets = sorted(a.regret for a in spoken)
    yield f"regret of {len(spoken)} answers, median", statistics.median(regrets), 1.01, ""
    yield "regret, 95th percentile", regrets[int(0.95 * len(regrets))], 1.10, ""
    cells = [
        (c, a.times[c.variant])
        for a in spoken
        for c in a.choice.ranking.all
        if c.variant in a.times
    ]
    far = statistics.fmean(abs(c.median_s / true - 1) > OFF for c, true in cells)
    yield f"of {len(cells)} predicted times, off by more than 15 %", 100 * far, 10, "%"
    outside = statistics.fmean(not c.low_s <= true <= c.high_s for c, true in cells)
    yield "true times outside their interval", 100 * outside, 10, "%"
    wrong = [not a.right_tie for a in spoken if a.choice.ranking.equal]
    wrong += [not a.right_silence for a in silent]
    yield f"of {len(wrong)} ties and silences, wrong", 100 * statistics.fmean(wrong), 10, "%"


def main() -> int:
    """The figures for each noise; 1 where one is beyond its limit."""
    status = 0
    for noise in NOISES:
        print(f"times that scatter by {noise:.0%}")
        status |= show(figures(answers(noise)))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
