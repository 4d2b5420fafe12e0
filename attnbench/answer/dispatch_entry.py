"""One entry of a dispatch table: calls that are alike, and who takes them at which lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from impls.asked import CantBeDone
from impls.masks import InvalidMask, Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import DTYPES

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
        return {"from": self.first, "to": self.last, "queries": self.queries,
                "variant": self.variant}  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Range:
        """Back from :meth:`to_dict`."""
        wanted = ("from", "to", "queries", "variant")
        return cls(*fields_of("a range", values, wanted))


@dataclass(frozen=True)
class Entry:
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
        return (self.phase, self.mask, self.dtype, self.heads, self.kv_heads, self.head_dim,
                self.v_head_dim)  # fmt: skip

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
                batch=batch, heads=self.heads, kv_heads=self.kv_heads, q_len=queries,
                kv_len=length, head_dim=self.head_dim, v_head_dim=self.v_head_dim,
                dtype=self.dtype, mask=Mask.parse(self.mask), phase=self.phase, device=device,
            )  # fmt: skip
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
        return {**asdict(self), "batch": list(self.batch),
                "ranges": [each.to_dict() for each in self.ranges]}  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
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
