"""What a measurement may say, and what it can't.

A record is one JSON object on one line. Its status is one of a closed list; anything but
``measured`` carries a reason; a time can't be constructed without ``measured``. Numbers that are
not finite are said as null. ``record.schema.json`` publishes the same for other programs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from impls.problem import Problem
    from impls.spec import Variant

SCHEMA = 2
"""Version of the record's form."""

PROTOCOL = 2
"""Version of the ruler: how things are measured. Numbers of unlike protocols are never compared."""


class Status(StrEnum):
    """How a cell ended."""

    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    WRONG = "wrong"
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


class InvalidRecord(ValueError):
    """A record that says what no record may say."""


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


class _Part:
    """A piece of a record: to and from plain values, unknown names refused."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidRecord(f"{cls.__name__.lower()} has no field {', '.join(unknown)}")
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, _Part):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return _number(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Time(_Part):
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
class Memory(_Part):
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
class Error(_Part):
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
class Distance(_Part):
    """How far another operator's output is from softmax attention."""

    relative: float | None
    max: float | None
    worst_row: float | None
    cosine: float | None
    skill: float | None
    """One minus the distance over that of ``mean_v``: 0 knows nothing of the scores, 1 is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy(_Part):
    """Joules a call, from the device's own counter; where it can't be had, why."""

    joules: float | None = None
    """A call, idle subtracted."""
    gross_joules: float | None = None
    """A call, the device's idle draw included."""
    tokens_per_joule: float | None = None
    idle_w: float | None = None
    calls: int = 0
    """How many calls the loop made."""
    method: str = ""
    """``nvml counter`` or ``rapl counter``, with what it covers."""
    why: str = ""
    """Where there is no figure: the reason, in a sentence."""
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism(_Part):
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
class Work(_Part):
    """What the mathematics needs: see :mod:`impls.cost`."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Part):
    """What one cell says."""

    status: Status
    variant: str
    """The row's name, with options where they differ from the defaults."""
    problem: dict[str, Any]
    reason: str = ""
    remedy: str = ""
    family: str = ""
    computes: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    time: Time | None = None
    memory: Memory | None = None
    error: dict[str, Error] | None = None
    distance: Distance | None = None
    entropy: float | None = None
    """Mean entropy of the attention, as a share of that of uniform weights; 0 is saturated."""
    cost: Work | None = None
    share_of_ceiling: float | None = None
    """The least time this device's measured ceilings allow, over the median."""
    setup_s: float | None = None
    """Building, and what the first call took above a later one: paid once."""
    kernels: list[str] = field(default_factory=list)
    """The kernels (CUDA) or operators (CPU) that ran, by time."""
    energy: Energy | None = None
    determinism: Determinism | None = None
    note: str = ""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Where the cell's own wall time went."""
    seed: int = 0
    detail: str = ""
    """The end of a traceback or of the worker's last words."""
    run: str = ""
    started: str = ""
    schema: int = SCHEMA
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        if self.time is not None and self.status is not Status.MEASURED:
            raise InvalidRecord(f"a record that is {self.status} can't carry a time")
        if self.status is not Status.MEASURED and not self.reason:
            raise InvalidRecord(f"a record that is {self.status} must say why")
        if self.status is Status.MEASURED and self.reason:
            raise InvalidRecord("a measured record has no reason to give; use note")

    @classmethod
    def of(cls, variant: Variant, problem: Problem, status: Status, reason: str = "",
           **more: Any) -> Record:  # fmt: skip
        """A record about a variant on a problem."""
        return cls(
            status=status, reason=reason, variant=variant.label, problem=problem.to_dict(),
            family=variant.family, computes=variant.computes,
            options={**variant.options, **variant.given}, **more,
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Which cell this is, for resuming and merging."""
        return cell_key(self.variant, self.problem)

    def line(self) -> str:
        """One line of records.jsonl."""
        return json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """The record back from plain values; what isn't a record is refused in a sentence."""
        if not isinstance(values, Mapping):
            raise InvalidRecord("it is no JSON object")
        schema = values.get("schema")
        if not isinstance(schema, int) or schema > SCHEMA:
            raise InvalidRecord(
                f"it is of schema {schema}, newer than the {SCHEMA} this attnbench reads: "
                "update attnbench, or measure again with this one"
            )
        given = dict(values)
        parts: dict[str, type[_Part]] = {
            "time": Time,
            "memory": Memory,
            "distance": Distance,
            "cost": Work,
            "energy": Energy,
            "determinism": Determinism,
        }
        try:
            for name, part in parts.items():
                if given.get(name) is not None:
                    given[name] = part.from_dict(given[name])
            if given.get("error") is not None:
                given["error"] = {k: Error.from_dict(v) for k, v in given["error"].items()}
            unknown = sorted(set(given) - {f.name for f in fields(cls)})
            if unknown:
                raise InvalidRecord(f"a record has no field {', '.join(unknown)}")
            return cls(**given)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRecord(str(error)) from error


def cell_key(variant: str, problem: Mapping[str, Any]) -> str:
    """One text for a variant on a problem."""
    return variant + " " + json.dumps(dict(problem), sort_keys=True)
