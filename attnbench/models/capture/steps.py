"""A training step: from one call of an optimizer's ``step`` to the next.

Of several optimizers the first seen counts, so that those of one step are not taken for several.
What comes before its first (loading, compiling, the first forward pass) belongs to none. The time
that its thread spent on looking at calls is taken off.
"""

from __future__ import annotations

import weakref
from collections import deque
from statistics import median
from time import perf_counter
from typing import Any

from attnbench.models.capture.tally import Tally
from attnbench.statistics import median_interval

KEPT = 10_000
"""The last so many steps are looked at."""


class Steps:
    """How long steps took, and how much of them was attention."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._optimizer: weakref.ref[Any] | None = None
        self._last: tuple[float, float] | None = None
        self._found: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """After an optimizer's step."""
        first = self._optimizer and self._optimizer()
        if first is None:  # none yet, or it is gone
            self._optimizer, self._last = weakref.ref(optimizer), None
        elif first is not optimizer:
            return
        now = (perf_counter() - self._tally.mine().looked, self._tally.attention_s())
        if self._last is not None:
            self._found.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    def told(self, *, by_host: bool = True) -> dict[str, Any]:
        """How many, their median, the median of attention's part and its interval; nothing of none.

        A GPU's seconds are read later than its steps end, so its part of each is not known.
        """
        some = [(took, part) for took, part in list(self._found) if took > 0]
        if not some:
            return {"steps": 0, "step_s": None, "step_share": None, "step_share_between": None}
        shares = [part / took for took, part in some]
        known = by_host and any(shares)
        return {
            "steps": len(some), "step_s": median(s for s, _ in some),
            "step_share": median(shares) if known else None,
            "step_share_between": list(median_interval(shares)) if known else None,
        }  # fmt: skip
