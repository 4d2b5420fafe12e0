"""What is measured otherwise where the work is done by ranks: the second clock, and their record.

The process that asks does nothing but wait. How many processors it had busy, what it went on doing
after a call and by how much it grew say nothing of a variant here; each rank looks to its own
memory, its own inputs and what it shares with later variants.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from attnbench.measure.audit import Audit
from attnbench.measure.clocks import Clock
from attnbench.measure.team.clock import RanksClock, Spending
from attnbench.measure.team.together import Together
from attnbench.measure.timed import Timed
from attnbench.parts import Ranks, Time

CALLS = 3
NOT_ONE = (
    "several processes share a call, and a counter would count whoever deals out their shares too"
)


def audit_ranks(timed: Timed, together: Spending) -> Audit:
    """Calls from end to end by the worker's clock: no rank can have taken longer."""
    walls, reason = [], None
    for _ in range(CALLS):
        timed.before()
        together.begin()
        start = perf_counter()
        kept = timed.run()
        walls.append(perf_counter() - start)
        del kept
        slowest = max(together.spent)
        if slowest > walls[-1]:
            reason = (
                f"rank {together.spent.index(slowest)} says that it took {slowest * 1e3:.3g} ms of "
                f"a call that took {walls[-1] * 1e3:.3g} ms from end to end"
            )
        timed.settle()
    together.check()
    return Audit(median(walls), "e2e", [], reason)


def ranks_of(attend: Callable[..., object], clock: Clock, time: Time) -> Ranks | None:
    """What each rank did; None where a variant runs in one process."""
    if isinstance(attend, Together) and isinstance(clock, RanksClock):
        return attend.ranks(clock, time)
    return None
