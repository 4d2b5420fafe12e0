"""What one measurement says: a record, its parts, and the forms they have as JSON.

A record is one JSON object on one line. Its status is one of a closed list; every status but
``measured`` has a reason, and only ``measured`` can have a time. A number that is not finite is
written as null. ``record.schema.json`` publishes the form for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, field

from attnbench.core.format import key_values
from attnbench.core.protocol import FINDINGS as FINDINGS
from attnbench.core.protocol import NOT_TRIED as NOT_TRIED
from attnbench.core.protocol import PROTOCOL as PROTOCOL
from attnbench.core.protocol import Status as Status
from attnbench.core.wire import convert, plain
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.operators import OUTPUTS, PARAMETERS
from impls.problem import Problem
from impls.spec import Computes

if TYPE_CHECKING:
    from impls.cost import Cost
    from impls.spec import Variant

    OwnProblem = Problem
else:
    OwnProblem = Any  # its values are read by recorded_problem, which looks at no mask's file

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SLOW_HOST = ("launch-bound: ", " from end to end")
"""How a flag begins and ends that says by how much a call takes longer for its host."""
Figure = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
"""A reader takes any: what no clock could have said is for the store to find."""

ERRORS = f"^(forward|d.+|{'|'.join(OUTPUTS)})$"
"""The names of what is judged."""
SCHEMA = 4
"""Version of a record's form."""
TOO_FAST = 0.8
"""A median below this share of the least time that the ceilings allow is not believed."""


class InvalidRecord(ValueError):
    """Values that no record can have; a sentence."""


class DamagedRun(UserWarning):
    """Some of what was kept can't be used; a sentence."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A record, or a part of one."""

    def with_(self, **changes: Any) -> Self:
        """The same with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class Time(Part, frozen=True):
    """Seconds a call, by one clock. Every sample is kept."""

    median_s: Figure
    low_s: Figure
    high_s: Figure
    """The 95 % interval of the median, from order statistics."""
    q25_s: Figure
    q75_s: Figure
    min_s: Figure
    n: Annotated[int, Meta(ge=1)]
    clock: str
    stop: Annotated[str, Meta(extra_json_schema={"enum": ["converged", "plateau", "budget"]})]
    """Why sampling ended."""
    samples_s: Annotated[list[Figure], Meta(min_length=1)]
    discarded: Count = 0
    """Samples thrown away because the device was slowed down while they were taken."""
    audit_s: Amount | None = None
    """A call by the second clock, from end to end; None where there is none."""
    audit_clock: str = ""
    clocks: Mapping[str, float | None] = {}
    """A GPU's clock at the ends of batches, still under load: ``sm_mhz`` (median), ``sm_mhz_min``.
    Up to protocol 3 the driver was asked, after the load."""
    sustained_s: Amount | None = None
    """A call among others without a pause, for a second; None where that was not tried."""
    sustained_share: Amount | None = None
    """The least time by products back to back, over ``sustained_s``."""
    flags: list[str] = []

    @property
    def doubts(self) -> list[str]:
        """The flags that make it unsure. A GPU's own time is sure where its host is slower: calls
        were queued ahead.
        """
        return [
            f for f in self.flags if not (f.startswith(SLOW_HOST[0]) and f.endswith(SLOW_HOST[1]))
        ]


class Memory(Part, frozen=True):
    """Bytes above the inputs."""

    peak_bytes: Count
    """The most that was live at once, output included."""
    saved_bytes: Count | None
    """Live between forward and backward besides the output; None where nothing runs backward."""
    expected_bytes: Count | None
    """The peak by the variant's own formula; None where it has none."""
    method: str
    flags: list[str] = []
    cache_bytes: Count | None = None
    """In decode: keys and values of all tokens, or what the variant keeps in their place."""


class Error(Part, frozen=True):
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
    worst_at: Annotated[list[int], Meta(min_length=3, max_length=3)] | None = None
    """Batch, head and row of the worst row."""


class Distance(Part, frozen=True):
    """How far another operator's output is from softmax attention."""

    relative: float | None
    max: float | None
    worst_row: float | None
    cosine: float | None
    skill: Annotated[float, Meta(le=1)] | None
    """One minus the distance over that of ``mean_v``: 0 ignores the scores, 1 is exact."""
    kept: float | None = None
    """The share of softmax's weight that lies on the keys a variant selects; None of one that
    selects none."""


class Energy(Part, frozen=True):
    """Joules a call, from the device's own counter, or why there is no figure."""

    joules: float | None = None
    """A call, idle subtracted."""
    gross_joules: Amount | None = None
    """A call, the device's idle draw included."""
    tokens_per_joule: float | None = None
    idle_w: Amount | None = None
    calls: Count = 0
    """How many calls the loop made."""
    call_s: Amount | None = None
    """Seconds of one of them: back to back for seconds, under the clocks that the device's power
    and heat then leave it, its inputs in whatever cache they stay in."""
    method: str = ""
    """``nvml counter`` or ``rapl counter``, with what it covers."""
    why: str = ""
    """Where there is no figure: the reason, in a sentence."""
    flags: list[str] = []


class Determinism(Part, frozen=True):
    """Whether the same values give the same bits. None: not tried, for the reason in ``why``."""

    repeats: bool | None = None
    """Output and gradients over calls with the same values."""
    batch: bool | None = None
    """A batch element alone gives what it gives among others."""
    place: bool | None = None
    """A batch element gives the same at every place in the batch."""
    mode_repeats: bool | None = None
    mode_cost: Amount | None = None
    """Of torch's deterministic mode, in records of an earlier attnbench."""
    why: str = ""

    def words(self) -> str:
        """``same bits``, or where they differ: a few words for a table."""
        if self.repeats is None:
            return "not tried" + (f": {self.why}" if self.why else "")
        if not self.repeats:
            return "not over repeats"
        across = {"batches": self.batch, "places": self.place}
        if differ := [name for name, same in across.items() if same is False]:
            return f"not across {' or '.join(differ)}"
        if None in across.values():
            return "same bits over repeats; batch not tried" + (f": {self.why}" if self.why else "")
        return "same bits"


class Work(Part, frozen=True):
    """What the mathematics needs: see :mod:`impls.cost`."""

    flops: Count
    bytes: Count


class Ranks(Part, frozen=True):
    """What each process did of a call that several share, in the order of their ranks."""

    world: Annotated[int, Meta(ge=2)]
    time_s: list[Amount]
    """A call's median, by each rank's own clock; the record's time is of the slowest, call by
    call."""
    peak_bytes: list[Count]
    """Above the rank's own share of the inputs."""
    sent_bytes: list[Count]
    """Sent to other ranks in a call."""
    backend: str
    """``gloo`` or ``nccl``."""


class Record(Part, frozen=True):
    """The result of one cell: a variant on a problem."""

    status: Status
    variant: str
    """The row's name, with options where they differ from the defaults."""
    problem: OwnProblem
    """Its JSON values are accepted too."""
    reason: str = ""
    remedy: str = ""
    family: str = ""
    computes: Literal["", Computes] = ""
    options: dict[str, Any] = {}
    time: Time | None = None
    parts: Mapping[str, Amount] = {}
    """Seconds of each part of a call that its row names, timed apart."""
    memory: Memory | None = None
    error: dict[Annotated[str, Meta(pattern=ERRORS)], Error] | None = None
    """From what the variant says it computes: ``forward``, ``lse`` where the problem asks for it,
    and ``dNAME`` for each gradient.
    """
    distance: Distance | None = None
    entropy: float | None = None
    """Mean entropy of the attention, as a share of that of uniform weights; 0 is saturated."""
    cost: Work | None = None
    share_of_ceiling: float | None = None
    """The least time this device's measured ceilings allow, over the median."""
    setup_s: float | None = None
    """Building, and what the first call took above a later one: paid once."""
    kernels: list[str] = []
    """The operators that ran, by the host's time; in older records of a GPU its kernels."""
    energy: Energy | None = None
    determinism: Determinism | None = None
    ranks: Ranks | None = None
    """Of a variant that runs over several processes: what each of them did."""
    note: str = ""
    spent_s: Mapping[str, float | None] = {}
    """What the cell's own wall time was spent on."""
    seed: int = 0
    detail: str = ""
    """The end of a traceback or of the worker's output."""
    wrong_on: str = ""
    """Other kinds of inputs on which the variant is wrong, and how: its time counts, and it is
    never advised."""
    run: str = ""
    allocator: Literal["", "plain", "kept"] = ""
    """What became of freed pages: one of :data:`.settings.ALLOCATORS`; empty in older records."""
    node: str = ""
    """The kind of machine that measured it, as the run's header names and describes it."""
    canary_s: Annotated[float, Meta(gt=0)] | None = None
    """What the run's canary took on that machine next to this cell."""
    started: str = ""
    schema: Annotated[int, Meta(ge=1, extra_json_schema={"maximum": SCHEMA})] = SCHEMA
    protocol: Annotated[int, Meta(ge=1)] = PROTOCOL

    def __post_init__(self) -> None:
        if type(self.status) is not Status:
            msgspec.structs.force_setattr(self, "status", Status(self.status))
        if not isinstance(self.problem, Problem):
            msgspec.structs.force_setattr(self, "problem", recorded_problem(self.problem))
        if self.options and (variant := under_present_name(self.variant, self.options)):
            msgspec.structs.force_setattr(self, "variant", variant)
        if self.time is not None and self.status is not Status.MEASURED:
            raise InvalidRecord(f"a record that is {self.status} can't carry a time")
        if self.status is not Status.MEASURED and not self.reason:
            raise InvalidRecord(f"a record that is {self.status} must say why")
        if self.status is Status.MEASURED and self.reason:
            raise InvalidRecord("a measured record has no reason to give; use note")

    @classmethod
    def of(
        cls, variant: Variant, problem: Problem, status: Status, reason: str = "", **more: Any
    ) -> Record:
        """A record about a variant on a problem."""
        note = f"tuned: {key_values(variant.tuned)}" if variant.tuned else ""
        return cls(
            status=status,
            reason=reason,
            variant=variant.label,
            problem=problem,
            family=variant.family,
            computes=variant.computes,
            options={**variant.options, **variant.tuned, **variant.given},
            **{"note": note, **more},
        )

    @property
    def key(self) -> str:
        """One text for its cell, for resuming and merging."""
        return cell_key(self.variant, self.problem)

    @property
    def worst_error(self) -> float | None:
        """The largest relative error of its tensors, against its definition."""
        errors = (self.error or {}).values()
        return max((e.relative for e in errors if e.relative is not None), default=None)

    @property
    def bytes_a_token(self) -> float | None:
        """What decoding keeps of each token, over all heads; None in other phases."""
        if self.memory is None or self.memory.cache_bytes is None:
            return None
        return self.memory.cache_bytes / (self.problem.batch * self.problem.kv_len)

    def line(self) -> str:
        """One line of records.jsonl."""
        return json.dumps(plain(self), allow_nan=False, separators=(",", ":"))


def read_record(values: Any) -> Record:
    """The record from its JSON values; raises InvalidRecord for what is none."""
    if not isinstance(values, Mapping):
        raise InvalidRecord("it is no JSON object")
    schema = values.get("schema")
    if not isinstance(schema, int):
        raise InvalidRecord(
            "it doesn't say of which schema it is: measure again with this attnbench"
        )
    if schema > SCHEMA:
        raise InvalidRecord(
            f"it is of schema {schema}, newer than the {SCHEMA} this attnbench reads: "
            "update attnbench, or measure again with this one"
        )
    try:
        return convert(values, Record)
    except msgspec.ValidationError as error:
        raise InvalidRecord(str(error)) from error


FORMER_GATES = {"gla": "key", "delta": "key", "ssd": "key", "retention": "fixed"}
"""By row, the gates that it had before they became inputs."""


def under_present_name(variant: str, options: Mapping[str, Any]) -> str | None:
    """The name now of a variant of an older record; None where it has not changed."""
    name, _, given = variant.partition("?")
    if name not in FORMER_GATES or options.get("gates", "") == "input" or "gates=" in given:
        return None
    words = [*filter(None, given.split("&")), f"gates={FORMER_GATES[name]}"]
    return f"{name}?{'&'.join(sorted(words))}"


def recorded_problem(values: Any) -> Problem:
    """The problem from the JSON values that a record has; raises InvalidRecord for others.

    A mask's file is not looked at: it may be on another machine. The same values give the same
    object.
    """
    try:
        for name, value in values.items():
            if type(value) not in (str, int) and name not in PARAMETERS:
                raise InvalidRecord(f"its problem's {name} is {value!r}")
        return _problem(tuple(values.items()))
    except KeyError as missing:
        raise InvalidRecord(f"its problem has no {missing.args[0]}") from None
    except (AttributeError, TypeError, CantBeDone) as error:
        raise InvalidRecord(f"its problem can't be read: {error}") from None


@lru_cache(maxsize=4096)
def _problem(items: tuple[tuple[str, Any], ...]) -> Problem:
    values = dict(items)
    names = [name for name in Problem.__struct_fields__ if name not in PARAMETERS]
    values = {name: values.pop(name) for name in names} | values
    mask = Mask.parse(values["mask"])
    problem = Problem(**{**values, "mask": mask.of(part for part in mask.parts if not part.file)})
    msgspec.structs.force_setattr(problem, "mask", mask)
    return problem


def cell_key(variant: str, problem: Problem) -> str:
    """One text for a variant on a problem."""
    return variant + " " + json.dumps(plain(problem), sort_keys=True)


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


class Probed(Part, frozen=True):
    """One look at one problem. Figures stand only where what was computed is right."""

    status: Status
    reason: str = ""
    remedy: str = ""
    detail: str = ""
    """The end of a traceback."""
    time_s: float | None = None
    """The median of the calls below."""
    samples_s: list[float] = field(default_factory=list)
    clock: str = ""
    peak_bytes: int | None = None
    """Live above the inputs at the worst instant; None where the time alone had told enough."""
    method: str = ""
    flags: list[str] = field(default_factory=list)
    rows: int = 0
    """How many rows were held against what they should be."""
    spent_s: Mapping[str, float | None] = {}
    """Where the probe's own wall time went."""
