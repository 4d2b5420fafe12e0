"""The ruler tests itself: planted faults, through the same worker, gate and meters as any variant.

Each has to be caught, by the right status and by a reason that names the deed. A fault that can't
be planted here, for lack of a device, is reported and not counted. The faults are data until a
worker loads their code, so this needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from attnbench.core.disk import SELFCHECK
from attnbench.core.evidence import save_beside
from attnbench.core.format import percent
from attnbench.core.machine import Machine, pace, why_not
from attnbench.core.record import PROTOCOL, Record, Status
from attnbench.core.stats import Verdict
from attnbench.gate.plants import PLANTS, SLICES_PROBLEM, SLOW_DOWNS, Plant, slices
from attnbench.sweep.compare import Compared, compare_cell
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine, measure
from attnbench.sweep.plan import Cell
from attnbench.sweep.sweep import Watcher

SLOW, SLOW_DOWN_S = "slow-downs", 12.0
"""Their kind, and for how long pairs of one are measured."""
PART = f"part-{SELFCHECK}"
"""The file of a self-check that is running or was stopped."""
BUDGET_S = 0.03
"""Of sampling; short, since a fault needs no narrow interval."""
PLANT_S = 1.0
"""A guess at the seconds of a plant."""


@dataclass(frozen=True)
class PlantOutcome:
    """The result of one plant."""

    deed: str
    kind: str
    """``masks``, ``memories`` …; ``slow-downs`` for what is no fault but slower by so much."""
    caught: bool | None
    """None where it could not be planted here, or is too small to be seen on this machine now."""
    status: str
    said: str
    """The reason, or what the record shows."""
    wanted: str = ""
    """How it should have been caught, where it escaped."""
    spent_s: float = 0.0


@dataclass(frozen=True)
class SelfCheck:
    """All outcomes of one self-check on one machine."""

    outcomes: list[PlantOutcome]
    machine: str
    versions: dict[str, str]
    seed: int = 0
    spent_s: float = 0.0
    protocol: int = PROTOCOL
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def counted(self) -> int:
        """How many were planted."""
        return sum(o.caught is not None for o in self.outcomes)

    @property
    def caught(self) -> int:
        """How many of those were caught."""
        return sum(o.caught is True for o in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether everything was tried, something was planted and nothing escaped."""
        return 0 < self.counted == self.caught and not self.stopped

    @property
    def line(self) -> str:
        """``ruler self-check: 34/34 on this machine``"""
        left = len(self.outcomes) - self.counted
        rest = f"; {left} could not be tried or told here" if left else ""
        rest += "; stopped before its end" * self.stopped
        return f"ruler self-check: {self.caught}/{self.counted} on this machine{rest}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "n": self.counted, "caught": self.caught, "line": self.line}


def run_plants(
    machine: Machine,
    engine: LocalEngine,
    seed: int,
    watcher: Watcher,
    plants: Sequence[Plant] = PLANTS,
    *,
    on_gpu: LocalEngine | None = None,
) -> Iterator[PlantOutcome]:
    """The result of each plant, one after another, by the sweep's own way to measure a cell.

    One that cheats at nothing, and whose cost must be shown, is measured again where its times
    differed too much to be believed: noise, and nothing that escaped. ``on_gpu`` measures those
    that are planted on a GPU, where that is another engine.
    """
    question = {"ceilings": ["float32"], "device": "cpu"}
    ceilings = engine.ask(question, START_LIMIT_S)["ceilings"]
    header = {"seed": seed, "budget_s": BUDGET_S, "ceilings": ceilings}
    guess_s = PLANT_S * pace()
    for number, plant in enumerate(plants, 1):
        if (missing := why_not(plant.row, machine)) is not None:
            yield PlantOutcome(plant.deed, plant.kind, None, Status.UNAVAILABLE, missing.reason)
            continue
        began = monotonic()
        cell = Cell(plant.row, plant.problem, left_out=None, guess_s=1.0)
        own = engine if plant.problem.device == "cpu" else on_gpu or engine
        record = measure(cell, header, own, limit_s=plant.limit_s)
        outcome = judge(plant, record, monotonic() - began)
        if plant.shows is not None and record.status is Status.IMPLAUSIBLE:
            record = measure(cell, header, own, limit_s=plant.limit_s)
            outcome = _again(outcome, judge(plant, record, monotonic() - began - outcome.spent_s))
        watcher.cell(record, number, len(plants), guess_s, guess_s * (len(plants) - number))
        yield outcome


def judge(plant: Plant, record: Record, spent_s: float = 0.0) -> PlantOutcome:
    """What became of a plant: whether its record shows that its fault was caught."""
    message, expected = record.reason or record.wrong_on, f"{plant.status}, matching {plant.said!r}"
    good = record.status is plant.status and re.search(plant.said, message) is not None
    if plant.shows is not None:
        where, least = plant.shows
        value: Any = record.to_dict()
        for name in where.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        expected = f"{plant.status}, with {where} at least {least:g}"
        good = good and value is not None and value >= least
        message = record.reason or f"{where} is {value if value is None else format(value, '.4g')}"
    expected, status = "" if good else expected, str(record.status)
    return PlantOutcome(plant.deed, plant.kind, good, status, message, expected, round(spent_s, 3))


def _again(first: PlantOutcome, second: PlantOutcome) -> PlantOutcome:
    """What was asked twice: the second outcome, which tells of the first."""
    message = f"{second.said}; asked again, at first {first.status}: {first.said}"
    return replace(second, said=message, spent_s=round(first.spent_s + second.spent_s, 3))


def run_slow_downs(engine: LocalEngine, seed: int) -> Iterator[PlantOutcome]:
    """Code against the same code with a known share more of its work, in pairs.

    One verdict in a hundred is wrong by chance alone, so a wrong one is measured again; it escaped
    where it is wrong twice. The margin is measured once.
    """
    none = Cell(slices(0), SLICES_PROBLEM, left_out=None, guess_s=1.0)
    how: dict[str, Any] = {"seed": seed, "margin": None, "floors": [], "budget_s": SLOW_DOWN_S}

    def ask(extra: int) -> tuple[PlantOutcome, bool]:
        """An outcome, and whether it is one of a comparison that was made."""
        began, more = monotonic(), replace(none, variant=slices(extra))
        cell = compare_cell(more, none, engine, **how)
        if cell.comparison is not None:
            how["margin"] = cell.comparison.margin
        return judge_slow_down(extra, cell, monotonic() - began), cell.comparison is not None

    for extra in SLOW_DOWNS:
        outcome, compared = ask(extra)
        if compared and outcome.caught is False:
            outcome = _again(outcome, ask(extra)[0])
        yield outcome


def judge_slow_down(extra: int, cell: Compared, spent_s: float = 0.0) -> PlantOutcome:
    """What became of a slow-down: whether the verdict is right at its margin.

    More than the margin is SLOWER. It may be INCONCLUSIVE only where so little could not have been
    seen, or where the interval holds both what was planted and the margin; then it counts neither
    way. Less than the margin is no difference. FASTER is always wrong.
    """
    deed = f"{extra} % more work" if extra else "no more work"
    if (c := cell.comparison) is None:
        return PlantOutcome(deed, SLOW, False, str(cell.status), cell.why, "a verdict", spent_s)
    may = {Verdict.EQUIVALENT, Verdict.INCONCLUSIVE}
    clear = c.smallest_effect <= extra / 100
    if extra / 100 > c.margin:
        may = {Verdict.SLOWER}
        if not clear or c.low <= 1 + extra / 100 <= c.high:
            may.add(Verdict.INCONCLUSIVE)
    message = f"{c.ratio:.3f} of the time [{c.low:.3f}, {c.high:.3f}], {c.n} pairs, "
    message += f"margin {percent(c.margin)}"
    good = c.verdict in may
    expected = "" if good else " or ".join(sorted(may))
    caught = None if good and c.verdict is Verdict.INCONCLUSIVE else good
    if caught is None:
        only = f"the smallest detectable difference was {percent(c.smallest_effect)}"
        message += f"; {'its interval holds what was injected, and the margin' if clear else only}"
    return PlantOutcome(deed, SLOW, caught, str(c.verdict), message, expected, round(spent_s, 3))


def save(result: SelfCheck, out: Path) -> Path:
    """Write it beside the machine's runs, as ``save_beside`` does; its file. A stopped one replaces
    only another stopped one.
    """
    if result.stopped:
        return save_beside(out, result.machine, PART, result.to_dict())
    path = save_beside(out, result.machine, SELFCHECK, result.to_dict())
    path.with_name(PART).unlink(missing_ok=True)
    return path
