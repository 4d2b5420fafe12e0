"""Options that ``attnbench tune`` found faster on a device, in a file of the user's, one a line.

``attnbench/tuned/DEVICE.jsonl`` lies in ``$XDG_DATA_HOME``, or ``~/.local/share``, so that runs,
and programs that call ``attnbench.attention``, find it from any folder. A line is for one variant
and for problems alike: the same dtype, head_dim, v_head_dim, mask and phase, and lengths that the
same power of two is nearest to. It counts under the versions of torch and Triton that it was found
with.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from math import ceil, floor, log2
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from attnbench.core import disk
from attnbench.core import gpu as nvml
from attnbench.core.disk import short, unwritable
from attnbench.core.format import key_values
from attnbench.core.record import DamagedRun

if TYPE_CHECKING:
    from attnbench.core.machine import Machine
    from impls.problem import Problem
    from impls.spec import Variant

FORM = 1
"""Version of a line."""
DEPENDS_ON = ("torch", "triton")
"""The distributions whose version a line is for."""
ELSEWHERE = "set XDG_DATA_HOME to a folder that you can write to"
Kind = tuple[Any, ...]
Length = Annotated[int, Meta(ge=1)]


class TunedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of one variant for one kind of problem, and the pairs that they rest on."""

    tuned: int
    variant: str
    options: dict[str, bool | int | float | str]
    dtype: str
    head_dim: int
    v_head_dim: int
    mask: str
    phase: str
    q_len: Length
    kv_len: Length
    ratio: float
    """Of the defaults' time, with its interval."""
    low: float
    high: float
    pairs: int
    problem: str
    versions: dict[str, str]
    threads: int
    made: str

    @property
    def kind(self) -> Kind:
        """What a line must share with a call to be used for it."""
        return kind_of(self.variant, self)


def kind_of(label: str, p: Problem | TunedLine) -> Kind:
    """What decides which line a variant's call uses."""
    same = p.dtype, p.head_dim, p.v_head_dim, str(p.mask), p.phase
    return label, *same, nearest_power(p.q_len), nearest_power(p.kv_len)


def nearest_power(length: int) -> int:
    """The exponent of the power of two that is nearest, as a ratio."""
    return floor(log2(length) + 0.5)


def lengths_alike(length: int) -> tuple[int, int]:
    """The least and the largest length that the same power of two is nearest to."""
    middle = nearest_power(length)
    return ceil(2 ** (middle - 0.5)), ceil(2 ** (middle + 0.5)) - 1


def versions_of(machine: Machine) -> dict[str, str]:
    """What a line that is found now is for."""
    return {name: machine.versions[name] for name in DEPENDS_ON if name in machine.versions}


def file_of(device: str, machine: Machine) -> Path | None:
    """The file of a device of a machine; None where there is no folder for it."""
    name = f"{machine.cpu} {machine.cores}c"
    if device.split(":")[0] != "cpu":
        uuid = nvml.uuid_of(device)
        names = [gpu.name for gpu in machine.gpus if gpu.uuid == uuid]
        name = next(iter(names or [gpu.name for gpu in machine.gpus]), "gpu")
    above = os.environ.get("XDG_DATA_HOME", "")
    if not above.startswith("/"):  # what is not absolute counts for nothing, as the standard says
        if not (home := disk.home()):
            return None
        above = f"{home}/.local/share"
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Path(above) / "attnbench" / "tuned" / f"{name}.jsonl"


class TunedOptions:
    """What rows run with on a machine in place of their defaults; each file is read once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._by_device: dict[str, dict[Kind, TunedLine]] = {}

    def applied(self, row: Variant, problem: Problem) -> Variant:
        """The row with the options tuned for a problem; as it is where one of those that could be
        tuned was asked for, since the others were not tried beside it.
        """
        if not row.tunable or row.tunable & row.given.keys():
            return row
        line = self._of(problem.device).get(kind_of(row.label, problem))
        if line is None:
            return row
        if odd := [n for n, v in line.options.items() if not _takes(row, n, v)]:
            _ignore(f"the options tuned for {row.label}", f"{odd[0]} is none that can be tuned")
            return row
        return row.with_(tuned=line.options)

    def lines(self, device: str) -> list[str]:
        """All that holds on a device, a text a line, for what is kept of programs run there."""
        each = self._of(device).values()
        return [f"{x.variant}: {key_values(x.options)}, found on {x.problem}" for x in each]

    def _of(self, device: str) -> dict[Kind, TunedLine]:
        if device not in self._by_device:
            path = file_of(device, self._machine)
            lines = read_lines(path, versions_of(self._machine)) if path else ()
            self._by_device[device] = {line.kind: line for line in lines}
        return self._by_device[device]


def _takes(row: Variant, name: str, value: Any) -> bool:
    return name in row.tunable and type(value) is type(row.options[name])


def _ignore(what: str, why: str) -> None:
    text = f"{what} are not used: {why}; 'attnbench tune' writes them anew"
    warnings.warn(text, DamagedRun, stacklevel=2)


def read_lines(path: Path, versions: Mapping[str, str]) -> list[TunedLine]:
    """The lines of a file that count under these versions; others are warned of."""
    where = f"tuned options in {short(str(path))}"
    try:
        texts = path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _ignore(where, str(error.strerror))
        return []
    lines = [_line(text) for text in texts if text.strip()]
    if None in lines:
        _ignore(f"some {where}", "they can't be read as what this 'attnbench tune' writes")
    good = [line for line in lines if line is not None]
    if others := [line for line in good if line.versions != versions]:
        _ignore(f"some {where}", _other_versions(others[-1].versions, versions))
    return [line for line in good if line.versions == versions]


def _line(text: bytes) -> TunedLine | None:
    """A line; None for what is none, or of a newer form."""
    try:
        line = msgspec.json.decode(text, type=TunedLine)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return line if line.tuned <= FORM else None


def _other_versions(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = [name for name in DEPENDS_ON if then.get(name) != now.get(name)]
    return "; ".join(
        f"{n} was {then.get(n, 'absent')}, and is {now.get(n, 'absent')}" for n in names
    )


def save_lines(path: Path, new: Sequence[TunedLine], instead_of: Sequence[Kind]) -> None:
    """The file without the lines of some kinds and with new ones, whole or as it was; what can't
    be read stays. Raises StoreError where it can't be written.
    """
    try:
        texts = path.read_bytes().splitlines() if path.exists() else []
        lines = []
        for text in texts:
            line = _line(text)
            if line is None or line.kind not in instead_of:
                lines.append(text)
        lines += map(msgspec.json.encode, new)
        if lines == texts:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_whole(path, b"".join(text + b"\n" for text in lines))
    except OSError as error:
        raise unwritable(f"the tuned options {path}", error, ELSEWHERE) from None


def check_writable(path: Path) -> None:
    """Raise StoreError now where nothing could be kept later."""
    try:
        disk.writable_folder(path.parent)
    except OSError as error:
        raise unwritable(f"tuned options under {path.parent}", error, ELSEWHERE) from None
