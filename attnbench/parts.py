"""The parts of a record: time, memory, accuracy, energy, determinism and the work of a cell.

Each holds plain values by name. Names that nobody knows are refused, and numbers that are
not finite are said as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


class InvalidRecord(ValueError):
    """A record that says what no record may say."""


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


class Part:
    """A piece of a record: to and from plain values, unknown names refused."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Back from plain values."""
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]
        if unknown := sorted(set(values).difference(known)):
            raise InvalidRecord(f"{cls.__name__.lower()} has no field {', '.join(unknown)}")
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return _number(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Time(Part):
    """Seconds a call, by one named clock. Every sample is kept."""

    median_s: float
    low_s: float
    high_s: float
    """The 95 % interval of the median, from order statistics."""
    q25_s: float
    q75_s: float
    min_s: float
    n: int
    clock: str
    stop: str
    """Why sampling ended: ``converged``, ``plateau`` or ``budget``."""
    samples_s: list[float]
    discarded: int = 0
    """Samples thrown away because the device was slowed down while they were taken."""
    audit_s: float | None = None
    """A call by the second clock, from end to end; None where there is none."""
    audit_clock: str = ""
    clocks: dict[str, float] = field(default_factory=dict)
    """The device's clocks while sampling, as observed: ``sm_mhz`` (median), ``sm_mhz_min``."""
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Part):
    """Bytes above the inputs."""

    peak_bytes: int
    """Live at the worst instant, output included."""
    saved_bytes: int | None
    """Live between forward and backward besides the output; None where nothing runs backward."""
    expected_bytes: int | None
    """The peak by the variant's own formula; None where it has none."""
    method: str
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Part):
    """How far a tensor is from what it should be. None: not finite."""

    relative: float | None
    """Frobenius norm of the difference over that of the reference."""
    max: float | None
    """Largest absolute difference."""
    worst_row: float | None
    """Largest norm of a row's difference, over the root mean square norm of the rows."""
    cosine: float | None
    ratio: float | None = None
    """``relative`` over that of the plain form in the same dtype on the same inputs."""
    worst_at: list[int] | None = None
    """Batch, head and row of the worst row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance(Part):
    """How far another operator's output is from softmax attention."""

    relative: float | None
    max: float | None
    worst_row: float | None
    cosine: float | None
    skill: float | None
    """One minus the distance over that of ``mean_v``: 0 knows nothing of the scores, 1 is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy(Part):
    """Joules a call, from the device's own counter; where it can't be had, why."""

    joules: float | None = None
    """A call, idle subtracted."""
    gross_joules: float | None = None
    """A call, the device's idle draw included."""
    tokens_per_joule: float | None = None
    idle_w: float | None = None
    calls: int = 0
    """How many calls the loop made."""
    call_s: float | None = None
    """What one of them took: back to back for seconds, under the clocks that the device's power and
    heat then leave it, its inputs in whatever cache they stay in."""
    method: str = ""
    """``nvml counter`` or ``rapl counter``, with what it covers."""
    why: str = ""
    """Where there is no figure: the reason, in a sentence."""
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism(Part):
    """Whether the same values give the same bits. None: not tried, and ``why`` says why."""

    repeats: bool | None = None
    """Output and gradients over calls with the same values."""
    batch: bool | None = None
    """A batch element alone gives what it gives among others."""
    place: bool | None = None
    """A batch element gives the same wherever in the batch it stands."""
    mode_repeats: bool | None = None
    """Over calls under torch's deterministic mode; tried only where ``repeats`` is false."""
    mode_cost: float | None = None
    """The median of a call under that mode over one without."""
    why: str = ""

    def said(self) -> str:
        """``same bits``, or where they differ: a few words for a table."""
        if self.repeats is None:
            return "not tried" + f": {self.why}" * bool(self.why)
        if not self.repeats:
            return "not over repeats"
        across = {"batches": self.batch, "places": self.place}
        if differ := [name for name, same in across.items() if same is False]:
            return f"not across {' or '.join(differ)}"
        if None in across.values():
            return "same bits over repeats; batch not tried" + f": {self.why}" * bool(self.why)
        return "same bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Part):
    """What the mathematics needs: see :mod:`impls.cost`."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(Part):
    """What each process did of a call that several share, in the order of their ranks."""

    world: int
    time_s: list[float]
    """A call's median, by each rank's own clock; the record's time is of the slowest, call by
    call."""
    peak_bytes: list[int]
    """Above the rank's own share of the inputs."""
    sent_bytes: list[int]
    """Handed to other ranks in a call."""
    backend: str
    """``gloo`` or ``nccl``."""
