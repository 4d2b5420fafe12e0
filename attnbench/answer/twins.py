"""Twins: variants of one problem whose time is that of one and the same fused kernel.

Whatever is between their times is no difference between them: it is how far this run's numbers can
be trusted, with the drift and the neighbours that it had. So no smaller lead counts in that run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from attnbench.answer.regimes import time_of
from attnbench.record import Record
from attnbench.store.skim import Seen

FUSED = re.compile("attention|flash|fmha|sdpa", re.IGNORECASE)
"""In the name of a kernel that is the whole of attention, on a CPU or a GPU."""
CALLING = "aten::scaled_dot_product_attention"
"""Only calls one of them, and is seen where it was called by that name."""
LEAST_S = 1e-3
"""In shorter calls, what leads up to the kernel shows too."""


@dataclass(frozen=True)
class Twins:
    """Two of them."""

    one: str
    other: str
    problem: dict[str, Any]
    apart: float
    """The larger median over the smaller, less one."""

    def sentence(self) -> str:
        """What it means for the answers."""
        where = f"{self.problem['phase']}, {self.problem['kv_len']:,} tokens"
        return (
            f"leads up to {self.apart:.0%} are said to be none: {self.one} and {self.other} were "
            f"one and the same kernel and came out that far apart ({where})"
        )


def furthest(records: Iterable[Record | Seen]) -> Twins | None:
    """Those that are furthest apart, of all that nothing was amiss with; None if there are none."""
    return max(_twins(records), key=lambda twins: twins.apart, default=None)


def _twins(records: Iterable[Record | Seen]) -> Iterator[Twins]:
    alike: dict[str, list[tuple[Record | Seen, float]]] = {}
    for record in records:
        time = time_of(record)
        if time is None or time.flags or time.median_s < LEAST_S or record.ranks is not None:
            continue
        if fused := sorted({k for k in record.kernels if _is_fused(k)}):
            peak = record.memory.peak_bytes if record.memory else None
            what = (record.problem, record.node, record.computes, fused, peak)
            key = json.dumps(what, sort_keys=True, default=str)
            alike.setdefault(key, []).append((record, time.median_s))
    for some in alike.values():
        for (a, x), (b, y) in combinations(some, 2):
            yield Twins(a.variant, b.variant, a.problem, max(x, y) / min(x, y) - 1)


@cache
def _is_fused(kernel: str) -> bool:
    return kernel != CALLING and FUSED.search(kernel) is not None
