"""A call as a dispatch table has it: which entry speaks of it, or a sentence why none does.

torch's ``is_causal`` puts the first query at the first key, which is ``causal@upper-left``; with
as many queries as keys that is ``causal`` too. One query that nothing is said of sees all keys, as
it does under ``causal``, where it stands at the last key: so decoding is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Size

from attnbench.answer.dispatch_entry import SAME, Entry
from attnbench.models.problem_of import is_usual

ANY_QUERIES = ("none", "causal@upper-left")
"""Masks that a call can name, whatever its lengths."""
FEATURES = {
    0: "phase", 1: "mask", 2: "dtype", 3: "heads", 4: "kv_heads", 5: "head_dim", 6: "v_head_dim",
}  # fmt: skip
"""Of what makes calls alike."""


class Unseen(Exception):
    """No entry speaks of the call; ``cause`` is the same for calls that it is the same for."""

    def __init__(self, cause: str, sentence: str) -> None:
        super().__init__(sentence)
        self.cause = cause


@dataclass(frozen=True)
class Call:
    """What a table asks of a call."""

    phases: tuple[str, ...]
    """That it may be looked for under, the best first."""
    masks: tuple[str, ...]
    """That mean the same for it."""
    dtype: str
    widths: tuple[int, int, int, int]
    """heads, kv_heads, head_dim, v_head_dim"""
    batch: int
    keys: int
    queries: int

    @classmethod
    def of(cls, shapes: tuple[Size, Size, Size], dtypes: Sequence[torch.dtype], *, causal: bool,
           scale: float | None, grouped: bool, gradient: bool) -> Call:  # fmt: skip
        """From what the tensors are; raises :class:`Unseen` for what no table has."""
        _check(shapes, dtypes, scale, grouped)
        (batch, heads, queries, width), (_, kv_heads, keys, _), (*_, value_width) = shapes
        return cls(
            _phases(queries, keys, gradient), _masks(queries, keys, causal),
            str(dtypes[0]).removeprefix("torch."), (heads, kv_heads, width, value_width), batch,
            keys, queries,
        )  # fmt: skip

    def entry_of(self, entries: Mapping[tuple[Any, ...], Sequence[Entry]]) -> tuple[Entry, str]:
        """The entry and the variant; ``entries`` by what makes calls alike."""
        alike = [
            entry for phase, mask in product(self.phases, self.masks)
            for entry in entries.get((phase, mask, self.dtype, *self.widths), ())
        ]  # fmt: skip
        for entry in alike:
            if (variant := entry.takes(self.batch, self.keys, self.queries)) is not None:
                return entry, variant
        raise self._outside(alike) if alike else self._unlike(list(entries))

    def _outside(self, alike: Sequence[Entry]) -> Unseen:
        spans = [f"{r.first} to {r.last} keys with {_queries(r.queries)} (batch {e.batch[0]} to "
                 f"{e.batch[1]})" for e in alike for r in e.ranges]  # fmt: skip
        more = f" and {len(spans) - 3} ranges more" * (len(spans) > 3)
        return Unseen(
            f"lengths {alike[0].alike}",
            f"{self.queries} queries on {self.keys} keys, batch {self.batch}, are outside of what "
            f"was measured ({alike[0].phase}, mask {alike[0].mask}): {'; '.join(spans[:3])}{more}",
        )

    def _unlike(self, known: Sequence[tuple[Any, ...]]) -> Unseen:
        """Name what the table has of no call, or that it has not all of it together."""
        mine = (self.phases, self.masks, (self.dtype,), *((n,) for n in self.widths))
        for place, name in FEATURES.items():
            there = {alike[place] for alike in known}
            if not there & set(mine[place]):
                has = ", ".join(map(str, sorted(there)))
                return Unseen(name, f"{name} {mine[place][0]} is not in the table, which has {has}")
        heads, kv_heads, width, value_width = self.widths
        what = (
            f"{self.phases[0]}, mask {self.masks[0]}, {self.dtype}, h{heads}/{kv_heads} "
            f"d{width}/{value_width}"
        )
        return Unseen(what, f"the table has no entry for {what} together")


def reachable(entry: Entry) -> bool:
    """Whether any call can mean this entry; a mask that only a tensor can say, none does."""
    if entry.mask in ANY_QUERIES:
        return True
    return entry.mask == "causal" and any(
        r.queries in (SAME, 1) or r.first <= int(r.queries) <= r.last for r in entry.ranges
    )


def _check(shapes: tuple[Size, Size, Size], dtypes: Sequence[torch.dtype], scale: Any,
           grouped: bool) -> None:  # fmt: skip
    """Raise for what is in no table, and for what torch's own function refuses better."""
    q, k, v = shapes
    if not len(q) == len(k) == len(v) == 4:
        raise Unseen("dimensions", f"tensors of {len(q)} dimensions were not measured; the table "
                     "is for [batch, heads, length, width]")  # fmt: skip
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or q[1] % (k[1] or 1):
        raise Unseen("shapes", f"q {list(q)}, k {list(k)} and v {list(v)} are no problem of the "
                     "table's kind")  # fmt: skip
    if q[1] != k[1] and not grouped:
        raise Unseen("grouped", f"{q[1]} heads on {k[1]} key/value heads without enable_gqa")
    if len(set(dtypes)) > 1:
        raise Unseen("dtypes", "q, k and v of unlike dtypes were not measured")
    if scale is not None and q[3]:
        known = q[3] ** -0.5
        if not isinstance(scale, int | float) or not is_usual(scale, q[3]):
            raise Unseen("scale", f"scale={scale} was not measured; the table's is "
                         f"head_dim**-0.5, {known:.6g}")  # fmt: skip


def _phases(queries: int, keys: int, gradient: bool) -> tuple[str, ...]:
    if gradient:
        return ("train",)
    return ("decode", "forward") if queries < keys or queries == 1 else ("forward",)


def _masks(queries: int, keys: int, causal: bool) -> tuple[str, ...]:
    if not causal:
        return ("none", "causal") if queries == 1 else ("none",)
    if queries == keys:
        return ("causal", "causal@upper-left", *["none"] * (queries == 1))
    return ("causal@upper-left",)


def _queries(count: int | str) -> str:
    return "as many queries" if count == SAME else f"{count} quer{'y' if count == 1 else 'ies'}"
