"""The problems that :mod:`proofs.regret` asks about, and the one run that measures all of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import impls
from attnbench.command.progress import Progress
from attnbench.core.machine import this_machine
from attnbench.sweep import start
from attnbench.sweep.places import Local
from attnbench.sweep.plan import Cell, Plan, make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.sweep import Interrupt, sweep
from impls.masks import Mask
from impls.problem import Problem

VARIANTS = (
    "baddbmm", "matmul", "chunked", "online", "sdpa", "sdpa.flash", "window.blocked",
)  # fmt: skip
"""What is exact, needs no compiler, and wins somewhere; and two names of one kernel."""
PHASES, MASKS = ("forward", "train", "decode"), ("none", "causal", "window:127,0")
LENGTHS = {"decode": (256, 501, 1024, 2003, 4096, 8192)}
SQUARE = (128, 251, 512, 1003, 2048)
"""Some are no multiples of anything: blocks that aren't full cost time, and problems have them."""
HEADS, WIDTHS = (2, 8), (32, 48, 64, 128)
WINDOWS, BEYOND = (63, 95, 127, 191, 255), 1.25
EACH, HELD, FAR, SEED = 18, 64, 10, 3
MOST_PAIRS = 8 * 1024**2
"""Scores of one problem, over its heads: beyond, a run would take hours."""
BUDGET_S = 0.1


def problem(phase: str, length: int, heads: int, width: int, mask: str) -> Problem:
    return Problem(
        heads=heads,
        kv_heads=heads,
        q_len=1 if phase == "decode" else length,
        kv_len=length,
        head_dim=width,
        v_head_dim=width,
        mask=Mask.parse(mask),
        phase=phase,
    )


def small_enough(p: Problem, most: float = MOST_PAIRS) -> bool:
    return p.heads * p.q_len * p.kv_len <= most


def grid(chance: random.Random) -> Iterator[Problem]:
    """Some of the corners of a grid, as many for each phase and mask."""
    for phase, mask in itertools.product(PHASES, MASKS):
        lengths = LENGTHS.get(phase, SQUARE)
        corners = [
            problem(phase, n, h, d, mask) for n, h, d in itertools.product(lengths, HEADS, WIDTHS)
        ]
        yield from chance.sample([p for p in corners if small_enough(p)], EACH)


def held_out(chance: random.Random) -> Iterator[Problem]:
    """Anywhere between the corners, and up to a quarter beyond."""
    while True:
        phase = chance.choice(PHASES)
        ends = LENGTHS.get(phase, SQUARE)
        low, high = (math.log(x) for x in (ends[0] / BEYOND, ends[-1] * BEYOND))
        length = round(math.exp(chance.uniform(low, high)))
        mask = chance.choice(("none", "causal", f"window:{chance.choice(WINDOWS)},0"))
        p = problem(
            phase,
            length,
            chance.choice((2, 3, 4, 5, 6, 8, 10)),
            chance.choice((32, 40, 48, 64, 80, 96, 112, 128)),
            mask,
        )
        if small_enough(p, 1.25 * MOST_PAIRS):
            yield p


def far_off(chance: random.Random) -> Iterator[Problem]:
    """Where nothing should be said."""
    while True:
        yield problem(
            chance.choice(PHASES),
            chance.randint(16, 40),
            chance.choice((1, 32, 64)),
            chance.choice((8, 12, 256)),
            chance.choice(MASKS),
        )


def drawn(source: Iterator[Problem], count: int, but: Sequence[Problem]) -> list[Problem]:
    fresh = (p for p in source if p not in but)
    return list(dict.fromkeys(itertools.islice(fresh, 2 * count)))[:count]


def all_problems(seed: int) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """The grid, what is held out, and what is far off."""
    chance = random.Random(seed)
    seen = list(dict.fromkeys(grid(chance)))
    held = drawn(held_out(chance), HELD, seen)
    return seen, held, drawn(far_off(chance), FAR, [*seen, *held])


def measured(out: Path, seed: int, rounds: int) -> list[Path]:
    """Runs of all of them, one after the other, each in an order of its own, so that a drift meets
    all alike. A choice rests on the first; what is true is the median of all.
    """
    problems = [p for some in all_problems(seed) for p in some]
    found = []
    for number in range(rounds):
        random.Random(seed + number).shuffle(problems)
        preset = Preset("regret", budget=BUDGET_S)
        begun = start.begin(["sdpa"], preset, [], out, seed=0, threads=1)
        cells = [cell for p in problems for cell in cells_of(p)]
        begun.plan = Plan(cells)
        print(f"round {number + 1}: {begun.plan.sentence()}", flush=True)
        with Local().slots(begun.settings, "cpu") as slots, Progress(len(cells)) as watching:
            sweep(begun.plan, begun.done, begun.folder, slots, watching, Interrupt(print))
        begun.folder.close()
        found.append(begun.folder.path)
    return found


def cells_of(p: Problem, names: Sequence[str] = VARIANTS) -> list[Cell]:
    """Of those that take it."""
    preset = Preset(
        "one",
        seq=(f"{p.q_len}x{p.kv_len}",),
        heads=(p.heads,),
        head_dim=(p.head_dim,),
        mask=(str(p.mask),),
        phase=(p.phase,),
        budget=BUDGET_S,
    )
    return make_plan(impls.table(), names, preset, this_machine()).to_run
