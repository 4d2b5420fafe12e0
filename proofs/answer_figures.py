"""What ``docs/answer.md`` is made of: figures of committed runs and evidence, as words.

A lead counts where the intervals of both times are apart by more than the run's own margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.answer.regimes import Regime, time_of
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.core.record import Record, Time
from attnbench.features.quality import model_results
from attnbench.features.quality.model_results import summarize
from attnbench.features.quality.model_view import format_cosine
from attnbench.features.quality.recall_view import (
    OPEN,
    REACHES,
    RecallResult,
    recall_results,
)
from attnbench.features.report.provenance import commands
from attnbench.report.scenes import Scene, gather, scenes

BY = "–"
NEVER = "not here"
PAIRS_OF_RECALL = 32


@dataclass(frozen=True)
class Step:
    """A variant at one length, beside the fastest that is exact."""

    variant: str
    computes: str
    ratio: tuple[float, float, float]
    """How many times as fast, and between what."""
    ahead: bool
    """Beyond both intervals and the run's margin."""

    def __str__(self) -> str:
        value, low, high = self.ratio
        said = f"{_times(value)} [{_times(low)}, {_times(high)}]"
        return f"**{said}**" if self.ahead else said


class Speed:
    """One regime of the long run: who is faster than exact softmax, from which length on."""

    def __init__(self, scene: Scene) -> None:
        self.regime: Regime = scene.regime
        self.margin = scene.run.margin
        self.standings = {s.length: s for s in scene.standings}
        self.lengths = sorted(n for n, s in self.standings.items() if s.answer)
        self.longest = self.lengths[-1]

    def winner(self, length: int) -> str:
        """The fastest exact variant at a length, or those that tie for it."""
        leaders = self._times(length, *self.standings[length].leaders)
        return " or ".join(f"`{name}`" for name in leaders)

    def fastest_exact(self, length: int) -> Time:
        """The time of the fastest of these, under any name of its kernel."""
        answer = self.standings[length].answer
        assert answer is not None
        return next(iter(self._times(length, *answer.leaders, *answer.same).values()))

    def _times(self, length: int, *variants: str) -> dict[str, Time]:
        """The times of some of them, the fastest first."""
        timed = self.regime.timed(length)
        found = {name: time_of(timed[name]) for name in variants}
        known = {name: time for name, time in found.items() if time is not None}
        return dict(sorted(known.items(), key=lambda each: each[1].median_s))

    def others(self, length: int) -> list[Step]:
        """What is not exact softmax at a length, the fastest first."""
        some = self.regime.timed(length).values()
        found = [self._step(r, length) for r in some if r.computes != "softmax"]
        return sorted(found, key=lambda s: -s.ratio[0])

    def ahead(self, length: int) -> list[Step]:
        """Those that are faster beyond doubt."""
        return [step for step in self.others(length) if step.ahead]

    def of(self, variant: str, length: int) -> Step | None:
        """One of them."""
        return next((s for s in self.others(length) if s.variant == variant), None)

    def against(self, variant: str, other: str, length: int) -> tuple[float, float, float]:
        """How many times as fast one is as the other."""
        one, than = (time_of(self.regime.timed(length)[name]) for name in (variant, other))
        assert one is not None and than is not None
        return _ratio(than, one)

    def rows(self) -> Iterator[tuple[str, str, list[str]]]:
        """For a table: the variant, what it computes, a cell for each length."""
        for step in self.others(self.longest):
            cells = [str(self.of(step.variant, n) or BY) for n in self.lengths]
            yield step.variant, step.computes, cells

    def kept(self, variant: str) -> float | None:
        """Its skill at the longest length, on the run's own inputs."""
        distance = self.regime.timed(self.longest)[variant].distance
        return distance.skill if distance else None

    def overtakes(self, variant: str) -> str:
        """The first measured length from which on it is faster beyond doubt."""
        behind = [n for n in self.lengths if not ((s := self.of(variant, n)) and s.ahead)]
        later = [n for n in self.lengths if not behind or n > behind[-1]]
        return f"{later[0]:,}" if later else NEVER

    def _step(self, record: Record, length: int) -> Step:
        own, exact = time_of(record), self.fastest_exact(length)
        assert own is not None
        ahead = own.high_s * (1 + self.margin) < exact.low_s
        return Step(record.variant, record.computes, _ratio(exact, own), ahead)


class Data:
    """All that is told from, and by which command each was measured."""

    def __init__(self, machine: Path, run: str) -> None:
        self.machine, self.run = machine, run
        (self.ran,) = gather([machine / run])
        self.scenes = scenes([self.ran])
        self.evidence = {k: _newest(machine, k) for k in ("reproduce", "recall", "model", "real")}
        original = self.evidence["model"].made["original"]
        rows = [summarize(row, original) for row in self.evidence["model"].rows]
        self.model_rows = model_results.with_ranks(rows, original)

    def speed(self, phase: str, mask: str = "none") -> Speed:
        """A regime of the run."""
        (scene,) = (s for s in self.scenes if s.regime.phase == phase and s.regime.mask == mask)
        return Speed(scene)

    def noisy(self) -> tuple[int, int]:
        """How many times are marked as noisy, and how many there are."""
        times = [record.time for record in self.ran.records if record.time]
        return sum(bool(time.flags) for time in times), len(times)

    def command(self, kind: str) -> str:
        """Of the evidence, or of the run."""
        said = commands(self.ran)[0] if kind == "run" else self.evidence[kind].made["command"]
        return str(said)

    def verdict(self, claim: str) -> str:
        """Of a claim."""
        return str(self._claim(claim)["verdict"])

    def claims(self, verdict: str) -> list[str]:
        """Those with a verdict."""
        return [row["name"] for row in self.evidence["reproduce"].rows if row["verdict"] == verdict]

    def kept(self, variant: str) -> tuple[float, float] | None:
        """The least and the most skill on the layers of the trained model."""
        found = [
            row["skill"]
            for row in self.evidence["real"].rows
            if row["variant"] == variant
            and row["source"].startswith("layer")
            and row["skill"] is not None
        ]
        return (min(found), max(found)) if found else None

    def levels(self) -> tuple[int, list[model_results.Level]]:
        """The longest text whose step was timed, and who is fastest at each quality."""
        (*_, length) = model_results.lengths_of(self.model_rows)
        return length, model_results.levels_of(model_results.points(self.model_rows, length))

    def points(self) -> dict[str, model_results.CostPoint]:
        """Variants of the trained model with their quality and their step."""
        return {p.variant: p for p in model_results.points(self.model_rows, self.levels()[0])}

    def floor(self) -> Mapping[str, Any]:
        """What the step takes of its time without any attention."""
        (*_, last) = self.evidence["model"].made["original"]["floor"]
        return dict(last)

    def recalls(self) -> list[RecallResult]:
        """The variants of the recall task."""
        found = self.evidence["recall"]
        return recall_results(found.rows, found.made["baseline"])

    def _claim(self, name: str) -> Mapping[str, Any]:
        return next(row for row in self.evidence["reproduce"].rows if row["name"] == name)


def recall_cell(each: RecallResult, budget: str) -> str:
    """``86.5 ± 2.3``, with what is known of it."""
    found = each.accuracy[budget][PAIRS_OF_RECALL]
    mark = {REACHES: " ✓", OPEN: " ?"}.get(found.standing, "")
    return f"{100 * found.mean:.1f} ± {100 * found.half:.1f}{mark}"


def model_rows(data: Data) -> Iterator[Sequence[str]]:
    """What is not exact in the trained model, the nearest to the original first."""
    for p in sorted(data.points().values(), key=lambda p: -p.cosine[0]):
        if p.computes != "softmax":
            value, low, high = p.cosine
            step = "{:.2f} [{:.2f}, {:.2f}]".format(*p.ratio)
            yield (
                p.variant,
                p.computes,
                f"{format_cosine(value)} [{format_cosine(low)}, {format_cosine(high)}]",
                step,
            )


def kept_said(found: tuple[float, float] | float | None) -> str:
    """``45 to 55 %`` of what softmax does beyond averaging."""
    if found is None:
        return BY
    some = found if isinstance(found, tuple) else (found,)
    if round(100 * max(some)) <= 0:
        return "nothing"
    return " to ".join(f"{100 * x:.0f}" for x in some) + " %"


def times_said(found: tuple[float, float, float]) -> str:
    """``6.7 times [6.1, 7.2]``"""
    value, low, high = found
    return f"{_times(value)} times [{_times(low)}, {_times(high)}]"


def _ratio(of: Time, to: Time) -> tuple[float, float, float]:
    return of.median_s / to.median_s, of.low_s / to.high_s, of.high_s / to.low_s


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _newest(machine: Path, kind: str) -> Evidence:
    return read_evidence(next(evidence_of(machine, kind)))
