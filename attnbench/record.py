"""What a measurement may say, and what it can't.

A record is one JSON object on one line. Its status is one of a closed list; anything but
``measured`` carries a reason; a time can't be constructed without ``measured``. Numbers that are
not finite are said as null. ``record.schema.json`` publishes the same for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attnbench.parts import (
    Determinism,
    Distance,
    Energy,
    Error,
    InvalidRecord,
    Memory,
    Part,
    Ranks,
    Time,
    Work,
)

if TYPE_CHECKING:
    from impls.cost import Cost
    from impls.problem import Problem
    from impls.spec import Variant

__all__ = [
    "PROTOCOL", "SCHEMA", "Determinism", "Distance", "Energy", "Error", "InvalidRecord", "Memory",
    "Ranks", "Record", "Status", "Time", "Work", "cell_key",
]  # fmt: skip

PARTS: dict[str, type[Part]] = {
    "time": Time, "memory": Memory, "distance": Distance, "cost": Work, "energy": Energy,
    "determinism": Determinism, "ranks": Ranks,
}  # fmt: skip
"""The fields of a record that are parts of it. ``error`` is several, by name."""

SCHEMA = 3
"""Version of the record's form."""

PROTOCOL = 2
"""Version of the ruler: how things are measured. Numbers of unlike protocols are never compared."""


TOO_FAST = 0.8
"""A median below this share of the least time that the ceilings allow is not believed."""


class DamagedRun(UserWarning):
    """Something is amiss with some of a run's records; a sentence."""


class NewerRecord(InvalidRecord):
    """A record that a later attnbench wrote."""


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


FINDINGS = frozenset({Status.WRONG, Status.IMPLAUSIBLE, Status.FAILED, Status.CRASHED})
"""Where a variant was not what it says it is: what nobody ought to use before it is mended."""
NOT_TRIED = frozenset({Status.UNSUPPORTED, Status.UNAVAILABLE})
"""Where nothing was asked of it, which says nothing against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Part):
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
    """The operators that ran, by the host's time; in older records of a GPU its kernels."""
    energy: Energy | None = None
    determinism: Determinism | None = None
    ranks: Ranks | None = None
    """Of a variant that runs over several processes: what each of them did."""
    note: str = ""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Where the cell's own wall time went."""
    seed: int = 0
    detail: str = ""
    """The end of a traceback or of the worker's last words."""
    run: str = ""
    node: str = ""
    """The kind of machine that measured it, as the run's header names and describes it."""
    canary_s: float | None = None
    """What the run's canary took on that machine next to this cell."""
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
        if not isinstance(schema, int):
            raise InvalidRecord(
                "it doesn't say of which schema it is: measure again with this attnbench"
            )
        if schema > SCHEMA:
            raise NewerRecord(
                f"it is of schema {schema}, newer than the {SCHEMA} this attnbench reads: "
                "update attnbench, or measure again with this one"
            )
        given = dict(values)
        try:
            for name, part in PARTS.items():
                if given.get(name) is not None:
                    given[name] = part.from_dict(given[name])
            if given.get("error") is not None:
                given["error"] = {k: Error.from_dict(v) for k, v in given["error"].items()}
            if unknown := sorted(set(given).difference(cls.__dataclass_fields__)):
                raise InvalidRecord(f"a record has no field {', '.join(unknown)}")
            return cls(**given)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRecord(str(error)) from error


def cell_key(variant: str, problem: Mapping[str, Any]) -> str:
    """One text for a variant on a problem."""
    return variant + " " + json.dumps(dict(problem), sort_keys=True)


def least_time(cost: Work | Cost, dtype: str, ceilings: Mapping[str, Any]) -> float | None:
    """The least seconds that a device's measured ceilings allow for some work, on one device.

    None where the product was not measured. A copy that fits a cache is faster than memory, so the
    fastest of the copies counts that are at least as large.
    """
    rate = ceilings.get("flops", {}).get(dtype)
    if rate is None:
        return None
    copies = {int(size): speed for size, speed in ceilings["copy"].items()}
    reachable = [speed for size, speed in copies.items() if size >= cost.bytes]
    bandwidth: float = max(reachable or [copies[max(copies)]])
    return float(max(cost.flops / rate, cost.bytes / bandwidth))


def variant_of(key: str) -> str:
    """The variant that a cell's key is of."""
    return key.partition(" {")[0]
