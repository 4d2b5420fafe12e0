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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import __version__
from attnbench.answer.dispatch_entry import Entry, InvalidTable, Range, fields_of
from attnbench.store.disk import unwritable, write_whole
from impls.asked import CantBeDone
from impls.spec import InvalidRow

if TYPE_CHECKING:
    from impls import Table
    from impls.spec import Variant

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
    entries: Sequence[Entry] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        if missing := [name for name in MADE if name not in self.made]:
            raise InvalidTable(f"it does not say what it was made for: {', '.join(missing)}")
        if wrong := [name for name, kinds in TYPES.items()
                     if not isinstance(self.made.get(name), kinds)]:  # fmt: skip
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
        return {"dispatch_table": FORM, "made": dict(self.made), "fallback": self.fallback,
                "entries": entries}  # fmt: skip

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
        "device": kind, "torch": machine["versions"].get("torch"), "machine": machine["name"],
        "threads": header.get("settings", {}).get("threads"),
        "attnbench": machine["versions"].get("attnbench", __version__),
        "protocol": header.get("protocol"), "run": header.get("run", ""),
    }  # fmt: skip
    if kind == "cuda" and machine.get("gpus"):
        made["driver"] = machine["gpus"][0]["driver"]
    return made


def _entries(listed: Iterable[Any]) -> Iterator[Entry]:
    for number, values in enumerate(listed, 1):
        try:
            yield Entry.from_dict(values)
        except InvalidTable as error:
            raise InvalidTable(f"entry {number}: {error}") from None


def _never_two(entries: Iterable[Entry]) -> None:
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
