"""What is drawn against the length, and in which units: each read off a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.record import Record
from attnbench.report import numbers
from attnbench.report.figures import ticks
from attnbench.report.figures.labels import shorten
from attnbench.report.numbers import positive

Point = tuple[float, float, float]
"""A value and its interval."""
Read = Callable[[Record, "float | None"], "Point | None"]
"""From a record and the baseline's median at its length."""


@dataclass(frozen=True)
class Measure:
    """One way to draw what records say."""

    name: str
    """time, memory, error or energy"""
    title: str
    read: Read
    say: Callable[[float], str]
    at: Callable[[float, float], Sequence[float]] = ticks.decimal
    unit: str = ""
    """Of times: ms, tflops, share or baseline."""
    grows: bool = True
    """Whether it grows as a power of the length."""


def median(record: Record) -> float | None:
    """A call's median, where there is one to draw."""
    return positive(record.time.median_s) if record.time else None


def taken(record: Record) -> Point | None:
    """A call's median and interval, in seconds."""
    value = median(record)
    if value is None or record.time is None:
        return None
    low, high = positive(record.time.low_s) or value, positive(record.time.high_s) or value
    return value, min(low, value), max(high, value)


def _over(amount: float | None, point: Point | None) -> Point | None:
    """What is done by the second: where the time is short it is much."""
    if amount is None or point is None:
        return None
    value, low, high = point
    return amount / value, amount / high, amount / low


def _time(record: Record, _: float | None) -> Point | None:
    return taken(record)


def _tflops(record: Record, _: float | None) -> Point | None:
    return _over(positive(record.cost.flops / 1e12) if record.cost else None, taken(record))


def _share(record: Record, _: float | None) -> Point | None:
    share, point = positive(record.share_of_ceiling), taken(record)
    return _over(share * point[0], point) if share and point else None


def _of_baseline(record: Record, baseline: float | None) -> Point | None:
    point = taken(record)
    if point is None or baseline is None:
        return None
    return point[0] / baseline, point[1] / baseline, point[2] / baseline


def peak(record: Record) -> float | None:
    """Bytes above the inputs at the worst instant."""
    return positive(record.memory.peak_bytes) if record.memory and record.time else None


def _memory(record: Record, _: float | None) -> Point | None:
    return _alone(peak(record))


def _error(record: Record, _: float | None) -> Point | None:
    """The worst of the output's and the gradients', or how far it is from softmax."""
    if record.time is None:
        return None
    if record.computes != "softmax":
        return _alone(distance(record))
    found = [value for e in (record.error or {}).values() if (value := positive(e.relative))]
    return _alone(max(found, default=None))


def distance(record: Record) -> float | None:
    """How far the output is from softmax attention: of what is exact, by its error."""
    if record.computes != "softmax":
        return positive(record.distance.relative) if record.distance else None
    forward = (record.error or {}).get("forward")
    return positive(forward.relative) if forward else None


def _energy(record: Record, _: float | None) -> Point | None:
    return _alone(positive(record.energy.joules) if record.energy and record.time else None)


def _alone(value: float | None) -> Point | None:
    return None if value is None else (value, value, value)


def measures(kind: str, baseline: str) -> list[Measure]:
    """All, of exact softmax or of what is not."""
    error = ("worst relative error" if kind == "exact" else
             "distance from softmax")  # fmt: skip
    return [
        Measure("time", "median time", _time, numbers.seconds, unit="ms"),
        Measure("time", "TFLOP/s", _tflops, numbers.three, unit="tflops", grows=False),
        Measure("time", "share of the ceiling", _share, numbers.percent, unit="share",
                grows=False),
        Measure("time", f"time as a multiple of {shorten(baseline, 90, 9.5)}'s", _of_baseline,
                numbers.times, unit="baseline", grows=False),
        Measure("memory", "peak memory", _memory, numbers.nbytes, ticks.binary),
        Measure("error", error, _error, numbers.three, grows=False),
        Measure("energy", "energy a call", _energy, numbers.joules),
    ]  # fmt: skip


Series = Mapping[int, Point]
"""By length, the shortest first."""
