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
many as keys. An entry whose calls set parameters has them: ``"parameters": {"softcap": 50.0,
"sinks": true, "lse": true}``. ``inputs`` in ``made`` are the kinds of inputs on which the gate
passed each variant; it may be missing. Of the ranges that speak of a call the first counts. Only
what is exactly softmax attention may stand in a table: a program that calls it asked for no other
operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from attnbench import __version__
from attnbench.core.disk import unwritable, write_whole
from impls.errors import CantBeDone
from impls.masks import InvalidMask, Mask
from impls.operators import OPERATORS
from impls.problem import INPUTS, InvalidProblem, Problem
from impls.spec import DTYPES, InvalidRow, listed

if TYPE_CHECKING:
    from impls import Table
    from impls.spec import Variant

EARLIER_INPUTS = INPUTS[:4]
"""The kinds that a run checked whose header doesn't name them."""
SAME = "same"
"""As many queries as keys."""
AGAIN = "make one with 'attnbench choose --export'"

SOFTMAX = OPERATORS["softmax"]
SETTINGS = (*SOFTMAX.numbers, *SOFTMAX.further, *SOFTMAX.outputs)
"""What a call can set."""
PHASES = ("forward", "train", "decode")
"""Phases of a call; nobody calls a backward alone."""
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""A length, a batch or a number of heads."""


class InvalidTable(CantBeDone, ValueError):
    """No dispatch table, or one that contradicts itself; a sentence."""


class Range(
    Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}
):
    """Lengths next to each other, both ends included, that one variant takes."""

    first: Count
    last: Count
    queries: Count | Literal["same"]
    variant: Annotated[str, Meta(min_length=1)]

    def query_count(self, length: int) -> int:
        """The number of queries that a call of this length has."""
        return length if self.queries == SAME else int(self.queries)


def settings_key(parameters: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What is alike in calls that set the same, whatever their numbers' last digits."""
    rounded = {n: x if x is True else float(f"{x:.6g}") for n, x in parameters.items()}
    return tuple(sorted(rounded.items()))


class DispatchEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Calls that are alike but for their lengths, and who takes them at which. Raises
    :class:`InvalidTable` for what can't be one.
    """

    phase: Annotated[str, Meta(pattern=f"^({'|'.join(PHASES)})$")]
    mask: str
    dtype: str
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count
    batch: tuple[Count, Count]
    """The least and the most."""
    ranges: Annotated[tuple[Range, ...], Meta(min_length=1)]
    parameters: dict[str, float | bool] = {}
    """The parameters of softmax that its calls set."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidTable(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for low, high in (self.batch, *((each.first, each.last) for each in self.ranges)):
            if low > high:
                raise InvalidTable(f"{low} … {high}: the least is above the most")
        try:
            msgspec.structs.force_setattr(self, "mask", str(Mask.parse(self.mask)))
            if unknown := self.parameters.keys() - {*SETTINGS}:
                able = ", ".join(SETTINGS)
                raise InvalidTable(f"{listed(sorted(unknown))} can't be set: {able} can")
            some = [problem for _, problem in self.examples("cpu")]
            msgspec.structs.force_setattr(self, "parameters", some[0].parameters)
        except (InvalidProblem, InvalidMask) as error:
            raise InvalidTable(str(error)) from None

    @property
    def alike(self) -> tuple[Any, ...]:
        """The fields that two calls share to be the same entry's, but for batch and lengths."""
        return (*msgspec.structs.astuple(self)[:7], settings_key(self.parameters))

    def takes(self, batch: int, length: int, queries: int) -> str | None:
        """The variant for a call of this size; None where nothing was measured near it."""
        if self.batch[0] <= batch <= self.batch[1]:
            for each in self.ranges:
                if each.first <= length <= each.last and queries == each.query_count(length):
                    return each.variant
        return None

    def examples(self, device: str) -> Iterator[tuple[str, Problem]]:
        """Every variant with the least and the largest call that it is to take."""
        names = ("heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "phase")
        fixed: dict[str, Any] = {name: getattr(self, name) for name in names}
        fixed |= {"mask": Mask.parse(self.mask), "device": device, **self.parameters}
        for each in self.ranges:
            for batch, length in zip(self.batch, (each.first, each.last), strict=True):
                q_len = each.query_count(length)
                yield each.variant, Problem(batch=batch, q_len=q_len, kv_len=length, **fixed)


class Origin(Struct, frozen=True, omit_defaults=True):
    """The machine, the versions and the run that a table comes from."""

    device: str
    torch: str
    machine: str
    threads: int | None
    attnbench: str
    protocol: Any
    run: Any
    driver: str | None = None
    inputs: list[str] | None = None
    same_bits: bool = False
    """Its variants give an element the same bits whatever the batch, so an entry takes all."""


class DispatchTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Its origin and its entries."""

    made: Origin
    entries: Annotated[tuple[DispatchEntry, ...], Meta(min_length=1)]
    fallback: Literal["sdpa"] = "sdpa"
    """The variant of all that the table does not speak of: torch's own function."""
    dispatch_table: Literal[1] = 1
    """The version of the file."""

    def rows(self, table: Table) -> dict[str, Variant]:
        """The rows that it names, by label; raises InvalidTable for what may not stand here."""
        rows = {}
        for label in dict.fromkeys(r.variant for e in self.entries for r in e.ranges):
            try:
                row = table.find(label)
            except (CantBeDone, InvalidRow) as error:
                raise InvalidTable(
                    f"{error}; if it is of a file of your own, name that file too: tables=[FILE]"
                ) from None
            if not row.exact:
                raise InvalidTable(
                    f"{label} is not exactly softmax attention (it computes {row.computes!r}), and "
                    "a program that calls scaled_dot_product_attention asked for no other"
                )
            rows[label] = row
        return rows

    def write(self, path: str | Path) -> None:
        """The file: whole, or the one before; raises StoreError where it can't be written."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        try:
            write_whole(Path(path), text + b"\n")
        except OSError as error:
            raise unwritable(f"the dispatch table {path}", error, "give another file") from None

    @classmethod
    def read(cls, path: str | Path) -> DispatchTable:
        """From its file; raises InvalidTable, which names the file and what is wrong."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except FileNotFoundError:
            raise InvalidTable(f"there is no dispatch table {path}; {AGAIN}") from None
        except (OSError, ValueError, RecursionError) as error:  # which may quote any value
            raise InvalidTable(
                f"the dispatch table {path} can't be used: {error!s:.400}; {AGAIN}"
            ) from None


def made_of(header: Mapping[str, Any], *, same_bits: bool = False) -> Origin:
    """The origin of a table, from the header of the run behind it."""
    machine = header["machine"]
    device = header.get("grid", {}).get("device", "cpu").split(":")[0]
    return Origin(
        device=device,
        torch=machine["versions"].get("torch"),
        machine=machine["name"],
        threads=header.get("settings", {}).get("threads"),
        attnbench=machine["versions"].get("attnbench", __version__),
        protocol=header.get("protocol"),
        run=header.get("run", ""),
        driver=machine["gpus"][0]["driver"] if device == "cuda" and machine.get("gpus") else None,
        inputs=header.get("checked_inputs", list(EARLIER_INPUTS)),
        same_bits=same_bits,
    )
