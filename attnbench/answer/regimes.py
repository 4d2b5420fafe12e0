"""Regimes: problems alike in all but their length, so that a line can be drawn through them.

A length is a number of keys. Queries are as many, or their number is part of the regime, as in
decoding. Where the batch shrinks as sequences grow, so that the tokens stay as many, it is the
tokens that are part of the regime. So are the kind of machine and how many processes took part:
unlike devices never share a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core.record import Record, Time
from impls.masks import Mask
from impls.problem import Problem, setting_words

FOLDERS = re.compile(r"((?:dense|bias|captured):)\S*/")
"""The folders that a file lies in."""
PHASES = ("train", "forward", "backward", "decode")
"""The order in which they are shown: what is asked about most comes first."""


@dataclass(frozen=True)
class Regime:
    """One of the problems, and the records by length, the shortest first, and variant. ``world``:
    over how many processes; ``node``: on which kind of machine, of several; ``tokens``: batch times
    length, where these are alike and the batch is not.
    """

    like: Problem
    cells: dict[int, dict[str, Record]]
    world: int | None = None
    node: str = ""
    tokens: int | None = None

    @property
    def phase(self) -> str:
        """Forward, train, backward or decode."""
        return self.like.phase

    @property
    def mask(self) -> str:
        """The mask, as it is written on the command line; of a file, its name alone."""
        return FOLDERS.sub(r"\1", str(self.like.mask))

    @property
    def dtype(self) -> str:
        """The type of its numbers."""
        return self.like.dtype

    @property
    def unit(self) -> str:
        """What a length is of: keys, where there are not as many queries."""
        return "keys" if queries_of(self.like) else "tokens"

    @property
    def lengths(self) -> list[int]:
        """Every length that anything was asked of."""
        return list(self.cells)

    @property
    def records(self) -> list[Record]:
        """All of them, the shortest first."""
        return [record for some in self.cells.values() for record in some.values()]

    @property
    def shape(self) -> str:
        """``batch 1, 4 heads of 64``: in words, what ``-b1-h4-d64`` would be."""
        p = self.like
        batch = f"{self.tokens:,} tokens a batch" if self.tokens else f"batch {p.batch}"
        heads = f"{p.heads} heads" + (f" on {p.kv_heads}" if p.kv_heads != p.heads else "")
        width = str(p.head_dim) + (f"/{p.v_head_dim}" if p.v_head_dim != p.head_dim else "")
        return f"{batch}, {heads} of {width}"

    def words(self) -> list[str]:
        """Everything that tells it from another, most telling first."""
        p = self.like
        parts = [self.phase]
        parts += [f"a {p.level}"] if p.level != "core" else []
        if queries_of(p) and (self.phase, p.q_len) != ("decode", 1):
            parts.append(f"{'one query' if p.q_len == 1 else f'{p.q_len} queries'} a call")
        parts += ["no mask" if self.mask == "none" else self.mask, self.dtype]
        inputs = FOLDERS.sub(r"\1", p.inputs)
        parts += [f"{inputs} inputs"] if inputs != "normal" else []
        parts += setting_words(p.parameters)
        parts += [self.shape, f"on {p.device}"]
        parts += [f"over {self.world} processes"] if self.world else []
        parts += [self.node] if self.node else []
        return parts

    def __str__(self) -> str:
        return ", ".join(self.words())

    def timed(self, length: int) -> dict[str, Record]:
        """The records at a length whose times can be compared."""
        return {name: r for name, r in self.cells.get(length, {}).items() if time_of(r)}

    def exact(self, length: int) -> dict[str, float]:
        """The medians at a length of what is exactly softmax, on inputs of every kind."""
        timed = [r for r in self.timed(length).values() if r.computes == "softmax"]
        return {r.variant: r.time.median_s for r in timed if r.time and not r.wrong_on}

    def longest(self) -> int | None:
        """The longest length at which at least half of what was timed anywhere has a time."""
        counts = {length: len(self.timed(length)) for length in self.cells}
        enough = [n for n, count in counts.items() if count and count * 2 >= max(counts.values())]
        return max(enough, default=None)


def queries_of(p: Problem) -> int:
    """How many queries a call has; 0 for as many as keys."""
    return 0 if p.q_len == p.kv_len and p.phase != "decode" else p.q_len


def line_of(p: Problem) -> tuple[Problem, str, int]:
    """All of a problem but its length, alike for those that a line can be drawn through; and how
    many queries. One query sees all keys under a causal mask too.
    """
    queries = queries_of(p)
    mask = "none" if queries == 1 and str(p.mask) == "causal" else str(p.mask)
    return p.with_(q_len=1, kv_len=1, mask=Mask()), mask, queries


def without_size(p: Problem) -> tuple[Any, ...]:
    """Alike for problems that differ in length, and in a batch that shrinks as they grow."""
    alike, *rest = line_of(p)
    return alike.with_(batch=1), *rest


def time_of(record: Record | None) -> Time | None:
    """Its time; None where that is none, or no number above zero."""
    time = record.time if record else None
    values = (time.median_s, time.low_s, time.high_s) if time else (None,)
    return time if all(x is not None and math.isfinite(x) and x > 0 for x in values) else None


Places = dict[tuple[int, int], list[Record]]


def regimes(records: Iterable[Record]) -> list[Regime]:
    """The regimes of one run, by phase and then in the order of the records."""
    alike: dict[Any, list[Record]] = {}
    for record in records:
        key = *without_size(record.problem), record.problem.mask
        alike.setdefault(key, []).append(record)
    on_devices: list[tuple[int | None, str, list[Record]]] = []
    for some in alike.values():
        by_device: dict[tuple[int | None, str], list[Record]] = {}
        rest: list[Record] = []  # what was never tried is missing on each device alike
        for record in some:
            world = record.ranks.world if record.ranks else None
            has_device = record.node or record.ranks or record.time  # older runs name no node
            (by_device.setdefault((world, record.node), []) if has_device else rest).append(record)
        by_device = by_device or {(None, ""): []}
        on_devices += [(*on, own + rest) for on, own in by_device.items()]
    several = len({node for _, node, some in on_devices if any(map(time_of, some))}) > 1
    results = []
    for world, node, some in on_devices:
        for tokens, places in _lines(some):
            cells: dict[int, dict[str, Record]] = {}
            for (_, length), here in sorted(places.items(), key=lambda each: each[0][1]):
                cells[length] = {record.variant: record for record in here}
            (like, *_), *_ = places.values()
            results.append(Regime(like.problem, cells, world, node if several else "", tokens))
    order = {phase: number for number, phase in enumerate(PHASES)}
    return sorted(results, key=lambda r: (r.like.level != "core", order.get(r.phase, 9)))


def _lines(records: Sequence[Record]) -> Iterable[tuple[int | None, Places]]:
    """Lines of one batch; what is in none of several lengths is a line of as many tokens.

    A place may lie on a line of either sort: a batch of one is the end of both.
    """
    by_batch: dict[int, Places] = {}
    by_tokens: dict[int, Places] = {}
    for record in records:
        batch, length = record.problem.batch, record.problem.kv_len
        for line in (by_batch.setdefault(batch, {}), by_tokens.setdefault(batch * length, {})):
            line.setdefault((batch, length), []).append(record)
    lonely = {batch for batch, line in by_batch.items() if len(line) == 1}
    crossed = {
        tokens: line
        for tokens, line in by_tokens.items()
        if len(line) > 1 and any(batch in lonely for batch, _ in line)
    }
    for batch, line in by_batch.items():
        _, length = next(iter(line))
        if batch not in lonely or batch * length not in crossed:
            yield None, line
    yield from crossed.items()


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats in one coordinate without losing in the other.

    In the order of the first coordinate; points that lie on each other are kept together. What
    is no number in either stands nowhere.
    """
    names: list[str] = []
    best = float("inf")
    finite = [name for name, point in points.items() if all(map(math.isfinite, point))]
    for name in sorted(finite, key=lambda name: (*points[name], name)):
        y = points[name][1]
        if y < best or (names and points[name] == points[names[-1]]):
            names.append(name)
            best = y
    return names
