"""A machine whose times are known: what ``python proofs/regret.py --made-up NOISE`` asks about.

Nothing here is what a choice's own model assumes: calls cost more than their start, products run
at a rate that depends on width and on whether blocks are full, softmax costs by the pair, and what
is moved comes from one of two memories with a soft border between. Each variant differs in all of
it. Measured times scatter about the true ones by the share that is given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.core.record import Memory, Record, Status, Time
from impls.problem import Problem
from proofs.regret_problems import VARIANTS, cells_of

NEAR_BYTES, NEAR_RATE, FAR_RATE = 6e6, 3e10, 9e9
"""The border between the memories, and the bytes a second of each."""
BACKWARD = 2.6
BLOCK = 16


@dataclass(frozen=True)
class Made:
    """What one variant is like on this machine."""

    start_s: float
    rate: float
    """Of products at full width, FLOPs a second."""
    pair_s: float
    skips: bool
    """Whether it leaves out what the mask hides."""
    stores: bool
    """Whether it writes all scores down, and reads them."""


def variants(chance: random.Random) -> dict[str, Made]:
    """Each with figures of its own."""
    return {
        name: Made(
            start_s=chance.uniform(8e-6, 60e-6),
            rate=chance.uniform(3e10, 7e10),
            pair_s=chance.uniform(4e-10, 12e-10),
            skips=name in ("window.blocked", "chunked"),
            stores=name in ("baddbmm", "matmul"),
        )
        for name in VARIANTS
    }


def true_s(made: Made, p: Problem) -> float:
    """Seconds of a call."""
    heads, width = p.batch * p.heads, p.head_dim
    pairs = heads * p.q_len * p.kv_len
    if made.skips:
        pairs = min(pairs, int(1.1 * p.mask.pairs(p.shape)) + 16 * heads * p.q_len)
    filled = math.ceil(p.kv_len / BLOCK) * BLOCK / p.kv_len * (1.06 if p.kv_len % BLOCK else 1.0)
    products = 4 * pairs * width * filled / (made.rate * width / (width + 24))
    ends = 4 * heads * width * (2 * p.q_len + 2 * p.kv_len)
    moved = ends + (8 * pairs if made.stores else 0)
    far = 1 / (1 + (NEAR_BYTES / moved) ** 3)
    moving = moved * ((1 - far) / NEAR_RATE + far / FAR_RATE)
    whole = products + made.pair_s * pairs + moving
    return made.start_s + whole * (1 + BACKWARD * (p.phase == "train"))


def measured(problems: Sequence[Problem], noise: float, seed: int) -> list[Record]:
    """A run of this machine: what the plan has of the variants, each with a time."""
    chance = random.Random(seed)
    table = variants(random.Random(7))
    found = []
    for p in problems:
        for cell in cells_of(p):
            if cell.variant.name == "window.blocked" and "window" not in p.mask.kinds:
                continue  # it says so itself, when it is built
            seconds = true_s(table[cell.variant.name], p) * math.exp(chance.gauss(0, noise))
            time = Time(
                median_s=seconds,
                low_s=seconds * 0.99,
                high_s=seconds * 1.01,
                q25_s=seconds * 0.995,
                q75_s=seconds * 1.005,
                min_s=seconds * 0.98,
                n=1,
                clock="host",
                stop="budget",
                samples_s=[seconds],
            )
            memory = Memory(
                peak_bytes=1 << 20, saved_bytes=None, expected_bytes=None, method="made up"
            )
            found.append(Record.of(cell.variant, p, Status.MEASURED, time=time, memory=memory))
    return found
