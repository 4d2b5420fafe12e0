"""Has the machine become another since? A canary is measured through the run, and tells.

Its reading is held against the median of those before. Where it is off by more than this machine's
noise, twice, what was measured since the reading before is spoiled, and is measured again at the
end, once, and not more of the run than a share. Every record keeps the reading it was taken after.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

EVERY_CELLS, EVERY_S = 8, 20.0
"""A reading after so many cells, or so long, whichever comes first."""
MARGIN = 0.05
"""Two readings minutes apart differ by that much on a quiet machine, one time in twenty."""
LOOKS, WAIT_S = 3, 0.3
"""So often in a row it must be off: a burst of somebody else's is over before."""
AGAIN = 0.1
"""Of a run's cells, how many are measured again at the most."""


class Canary:
    """The readings of one device through a run."""

    def __init__(self, read: Callable[[], float], noise: Iterable[Mapping[str, Any]]) -> None:
        """``noise``: this machine's floors, as its header has them."""
        self._read, self._noise = read, list(noise)
        self._cells, self._since = 0, time.monotonic()
        self.readings: list[float] = []
        self.off = 0.0
        """By what share the latest reading was off, signed; nought where that is noise."""

    @property
    def latest(self) -> float | None:
        """Seconds."""
        return self.readings[-1] if self.readings else None

    def margin(self) -> float:
        """What is noise: the machine's floor for calls about as long, if that is more."""
        if not self._noise or not self.readings:
            return MARGIN
        usual = statistics.median(self.readings)
        nearest = min(self._noise, key=lambda floor: abs(floor["call_s"] - usual))
        return max(MARGIN, float(nearest["floor"]))

    def count(self) -> None:
        """A cell has ended."""
        self._cells += 1

    def due(self) -> bool:
        """Whether it is time for a reading."""
        return self._cells >= EVERY_CELLS or time.monotonic() - self._since > EVERY_S

    def look(self) -> float:
        """Take a reading; by how much it is off, nought where that is noise."""
        for each in range(LOOKS):
            if each:
                time.sleep(WAIT_S)
            seconds = self._read()
            usual = statistics.median([*self.readings, seconds])
            off = seconds / usual - 1.0
            if abs(off) <= self.margin():
                off = 0.0
                break
        self.readings.append(seconds)
        self._cells, self._since, self.off = 0, time.monotonic(), off
        return off


class Drift:
    """What all canaries of a run told, for its end."""

    def __init__(self, cells: int) -> None:
        self._may = max(EVERY_CELLS, int(AGAIN * cells))
        self._seen: set[str] = set()
        self.worst = 0.0
        self.again = 0
        """So many cells were measured again."""

    def spoiled(self, keys: Iterable[str], off: float) -> list[str]:
        """Those of some cells that are to be measured again."""
        self.worst = max(self.worst, off, key=abs)
        new = [key for key in keys if key not in self._seen][: max(0, self._may - self.again)]
        self._seen.update(new)
        self.again += len(new)
        return new

    def sentence(self, marked: int) -> str:
        """What became of it; empty where the machine stood still."""
        if not self.worst:
            return ""
        way = "slower" if self.worst > 0 else "faster"
        said = f"the machine drifted: at the worst its canary was {abs(self.worst):.0%} {way}"
        if self.again:
            said += f"; {self.again} cell{'s' * (self.again > 1)} measured again"
        if marked:
            said += f"; {marked} taken meanwhile {'are' if marked > 1 else 'is'} marked"
        return said
