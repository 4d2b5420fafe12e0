"""A dispatch table: which variant is to take which call, on the machine that it was made for.

As a file it is JSON::

    {"dispatch_table": 1,
     "made": {"device": "cpu", "torch": "2.13.0+cpu", "machine": "amd-epyc-2c", "threads": 1, …},
     "fallback": "sdpa",
     "entries": [{"phase": "forward", "mask": "causal", "dtype": "float32", "heads": 8,
                  "kv_heads": 8, "head_dim": 64, "v_head_dim": 64, "batch": [1, 4],
                  "ranges": [{"from": 128, "to": 1000, "queries": "same", "variant": "matmul"},
                             {"from": 1001, "to": 4096, "queries": "same", "variant": "sdpa"}]}]}

Lengths are of the keys, both ends included; ``queries`` is how many there are, ``"same"`` for as
many as keys. ``inputs`` in ``made`` are the kinds of inputs on which the gate passed each variant;
it may be missing. Of one call at most one range may speak. Only what is exactly softmax attention
may stand in a table: whoever calls it asked for no other operator.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnbench import __version__
from attnbench.core.disk import unwritable, write_whole
from impls.asked import CantBeDone
from impls.masks import InvalidMask, Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import DTYPES, InvalidRow

if TYPE_CHECKING:
    from impls import Table
    from impls.spec import Variant


SAME = "same"
"""As many queries as keys."""
LARGEST = 2**31 - 1
"""What a length, a batch or a number of heads may be."""
PHASES = ("forward", "train", "decode")
"""Of a call; nobody calls a backward alone."""


class InvalidTable(CantBeDone, ValueError):
    """What is no dispatch table, or one that contradicts itself; a sentence."""


@dataclass(frozen=True)
class Range:
    """Lengths next to each other that one variant takes."""

    first: int
    last: int
    """Included."""
    queries: int | Literal["same"]
    variant: str

    def shares(self, other: Range) -> int | None:
        """A length that both speak of; None where there is none."""
        low, high = max(self.first, other.first), min(self.last, other.last)
        if low > high:
            return None
        if self.queries == other.queries:
            return low
        counts = {self.queries, other.queries} - {SAME}
        if len(counts) == 1 and low <= (count := int(counts.pop())) <= high:
            return count  # where as many queries are asked as there are keys
        return None

    def to_dict(self) -> dict[str, Any]:
        """As in the file, where the ends are ``from`` and ``to``."""
        return {
            "from": self.first,
            "to": self.last,
            "queries": self.queries,
            "variant": self.variant,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Range:
        """Back from :meth:`to_dict`."""
        wanted = ("from", "to", "queries", "variant")
        return cls(*fields_of("a range", values, wanted))


@dataclass(frozen=True)
class DispatchEntry:
    """Calls that are alike but for their lengths, and who takes them at which."""

    phase: str
    mask: str
    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    batch: tuple[int, int]
    """The least and the most."""
    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise InvalidTable(f"phase {self.phase!r} is not one of {', '.join(PHASES)}")
        if self.dtype not in DTYPES:
            raise InvalidTable(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for name in ("heads", "kv_heads", "head_dim", "v_head_dim"):
            _whole(name, getattr(self, name))
        _span("batch", self.batch)
        for each in self.ranges:
            _span("a range from … to", (each.first, each.last))
            if each.queries != SAME:
                _whole("queries", each.queries)
            if not isinstance(each.variant, str) or not each.variant:
                raise InvalidTable(f"variant {each.variant!r} is not the name of one")
        if not self.ranges:
            raise InvalidTable("it has no ranges")
        object.__setattr__(self, "mask", _mask(self.mask))
        for batch, length, queries in self._corners():
            self.problem(batch, length, queries, "cpu")

    def _corners(self) -> Iterator[tuple[int, int, int]]:
        for each in self.ranges:
            for length in {each.first, each.last}:
                queries = length if each.queries == SAME else int(each.queries)
                yield from ((batch, length, queries) for batch in set(self.batch))

    @property
    def alike(self) -> tuple[Any, ...]:
        """What two calls must share to be the same entry's, but for batch and lengths."""
        return (
            self.phase,
            self.mask,
            self.dtype,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.v_head_dim,
        )

    def takes(self, batch: int, length: int, queries: int) -> str | None:
        """The variant for a call of this size; None where nothing was measured near it."""
        if self.batch[0] <= batch <= self.batch[1]:
            for each in self.ranges:
                fits = queries == (length if each.queries == SAME else each.queries)
                if fits and each.first <= length <= each.last:
                    return each.variant
        return None

    def problem(self, batch: int, length: int, queries: int, device: str) -> Problem:
        """One call that this entry speaks of; raises a sentence where there can't be one."""
        try:
            return Problem(
                batch=batch,
                heads=self.heads,
                kv_heads=self.kv_heads,
                q_len=queries,
                kv_len=length,
                head_dim=self.head_dim,
                v_head_dim=self.v_head_dim,
                dtype=self.dtype,
                mask=Mask.parse(self.mask),
                phase=self.phase,
                device=device,
            )
        except (InvalidProblem, InvalidMask) as error:
            raise InvalidTable(str(error)) from None

    def examples(self, device: str) -> Iterator[tuple[str, Problem]]:
        """Every variant with the least and the largest call that it is to take."""
        for each in self.ranges:
            for batch, length in ((self.batch[0], each.first), (self.batch[1], each.last)):
                queries = length if each.queries == SAME else int(each.queries)
                yield each.variant, self.problem(batch, length, queries, device)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **asdict(self),
            "batch": list(self.batch),
            "ranges": [each.to_dict() for each in self.ranges],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DispatchEntry:
        """Back from :meth:`to_dict`."""
        *alike, batch, ranges = fields_of("an entry", values, tuple(cls.__dataclass_fields__))
        if not isinstance(ranges, list) or not isinstance(batch, list):
            raise InvalidTable("batch and ranges are lists")
        known = dict(zip(cls.__dataclass_fields__, alike, strict=False))
        return cls(**known, batch=tuple(batch), ranges=tuple(map(Range.from_dict, ranges)))


def fields_of(what: str, values: Any, wanted: Sequence[str]) -> list[Any]:
    """The values by their names, no more and no fewer."""
    if not isinstance(values, Mapping):
        raise InvalidTable(f"{what} is an object, not {values!r}")
    if missing := [name for name in wanted if name not in values]:
        raise InvalidTable(f"{what} needs {', '.join(missing)}")
    if unknown := sorted(set(values) - set(wanted)):
        raise InvalidTable(f"{what} has no {', '.join(map(str, unknown))}")
    return [values[name] for name in wanted]


def _mask(value: object) -> str:
    """The mask as it prints; raises :class:`InvalidTable` where it isn't one."""
    if not isinstance(value, str):
        raise InvalidTable(f"mask is {value!r}; it must be a name, such as causal")
    try:
        return str(Mask.parse(value))
    except InvalidMask as error:
        raise InvalidTable(f"mask {value!r}: {error}") from None


def _whole(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= LARGEST:
        raise InvalidTable(f"{name} is {value!r}; it must be a whole number from 1 to {LARGEST:,}")


def _span(name: str, ends: Sequence[Any]) -> None:
    if len(ends) != 2:
        raise InvalidTable(f"{name} is {list(ends)}; it must be the least and the most")
    for end in ends:
        _whole(name, end)
    if ends[0] > ends[1]:
        raise InvalidTable(f"{name} is {ends[0]} … {ends[1]}: the least is above the most")


FORM = 1
"""Version of the file."""
FALLBACK = "sdpa"
"""Who takes what the table does not speak of: torch's own function."""
MADE = ("device", "torch", "machine", "threads", "attnbench", "protocol", "run")
"""What a table says of where it comes from, at the least."""
TYPES: Mapping[str, Any] = {
    "device": str, "torch": str, "machine": str, "attnbench": str, "threads": int | None,
    "inputs": list | None,
}  # fmt: skip
AGAIN = "make one with 'attnbench choose --export'"


@dataclass(frozen=True)
class DispatchTable:
    """Where it was made, and its entries. Raises :class:`InvalidTable` for what can't be one."""

    made: Mapping[str, Any]
    fallback: str = FALLBACK
    entries: Sequence[DispatchEntry] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        if missing := [name for name in MADE if name not in self.made]:
            raise InvalidTable(f"it does not say what it was made for: {', '.join(missing)}")
        if wrong := [
            name for name, kinds in TYPES.items() if not isinstance(self.made.get(name), kinds)
        ]:
            raise InvalidTable(
                f"made says {wrong[0]} is {self.made.get(wrong[0])!r}, which is of another type "
                f"than 'choose --export' writes; {AGAIN}"
            )
        if self.fallback != FALLBACK:
            raise InvalidTable(
                f"fallback {self.fallback!r} is not {FALLBACK!r}, torch's own function, which "
                "takes all that the table does not speak of"
            )
        if not self.entries:
            raise InvalidTable("it has no entries")
        _never_two(self.entries)

    def rows(self, known: Table) -> dict[str, Variant]:
        """The rows that it names, by label; raises a sentence for what may not stand here."""
        found = {}
        for label in dict.fromkeys(r.variant for e in self.entries for r in e.ranges):
            try:
                row = known.find(label)
            except (CantBeDone, InvalidRow) as error:
                raise InvalidTable(
                    f"{error}; if it is of a file of your own, name that file too: tables=[FILE]"
                ) from None
            if not row.exact:
                raise InvalidTable(
                    f"{label} is not exactly softmax attention (it computes {row.computes!r}), and "
                    "whoever calls scaled_dot_product_attention asked for no other"
                )
            found[label] = row
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        entries = [entry.to_dict() for entry in self.entries]
        return {
            "dispatch_table": FORM,
            "made": dict(self.made),
            "fallback": self.fallback,
            "entries": entries,
        }

    def write(self, path: str | Path) -> None:
        """The file: whole, or the one before."""
        try:
            write_whole(Path(path), (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        except OSError as error:
            raise unwritable(f"the dispatch table {path}", error) from None

    @classmethod
    def read(cls, path: str | Path) -> DispatchTable:
        """From its file; raises a sentence that names the file and what is amiss."""
        try:
            text = Path(path).read_text("utf-8")
        except FileNotFoundError:
            raise InvalidTable(f"there is no dispatch table {path}; {AGAIN}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidTable(f"the dispatch table {path} can't be read: {error}") from None
        try:
            return cls.from_dict(json.loads(text))
        except InvalidTable as error:
            said = f"{error!s:.400}"  # which may quote a value of any length
            raise InvalidTable(f"the dispatch table {path} can't be used: {said}") from None
        except (ValueError, RecursionError):  # also of 5,000 digits, or nested 100,000 deep
            raise InvalidTable(
                f"{path} was cut off, or is no dispatch table at all; {AGAIN}"
            ) from None

    @classmethod
    def from_dict(cls, values: Any) -> DispatchTable:
        """Back from :meth:`to_dict`."""
        if not isinstance(values, dict) or "dispatch_table" not in values:
            raise InvalidTable(f"it is no dispatch table; {AGAIN}")
        if values["dispatch_table"] != FORM:
            raise InvalidTable(
                f"it has form {values['dispatch_table']!r}, and this attnbench ({__version__}) "
                f"reads form {FORM}; {AGAIN}"
            )
        _, made, fallback, entries = fields_of(
            "a dispatch table", values, ("dispatch_table", "made", "fallback", "entries")
        )
        if not isinstance(made, dict) or not isinstance(entries, list):
            raise InvalidTable("made is an object, and entries is a list")
        return cls(made, fallback, tuple(_entries(entries)))


def made_of(header: Mapping[str, Any], device: str | None = None) -> dict[str, Any]:
    """What a table says of where it was made, from the header of the run behind it.

    ``device``: that of the problems, where it is another than the grid's.
    """
    machine = header["machine"]
    kind = (device or header.get("grid", {}).get("device", "cpu")).split(":")[0]
    made = {
        "device": kind,
        "torch": machine["versions"].get("torch"),
        "machine": machine["name"],
        "threads": header.get("settings", {}).get("threads"),
        "attnbench": machine["versions"].get("attnbench", __version__),
        "protocol": header.get("protocol"),
        "run": header.get("run", ""),
    }
    if kind == "cuda" and machine.get("gpus"):
        made["driver"] = machine["gpus"][0]["driver"]
    return made


def _entries(listed: Iterable[Any]) -> Iterator[DispatchEntry]:
    for number, values in enumerate(listed, 1):
        try:
            yield DispatchEntry.from_dict(values)
        except InvalidTable as error:
            raise InvalidTable(f"entry {number}: {error}") from None


def _never_two(entries: Iterable[DispatchEntry]) -> None:
    """Raise a sentence where two ranges speak of the same call."""
    said: dict[tuple[Any, ...], list[tuple[Range, tuple[int, int]]]] = defaultdict(list)
    for entry in entries:
        for each in entry.ranges:
            for other, batch in said[entry.alike]:
                meet = max(batch[0], entry.batch[0]) <= min(batch[1], entry.batch[1])
                if meet and (at := each.shares(other)) is not None:
                    raise InvalidTable(
                        f"two ranges speak of {at} keys ({' '.join(map(str, entry.alike[:3]))}): "
                        f"{other.first} to {other.last} gives {other.variant}, and {each.first} to "
                        f"{each.last} gives {each.variant}"
                    )
            said[entry.alike].append((each, entry.batch))
