"""Time by operator (CPU) or kernel (CUDA), forward and backward apart, from profiled calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from attnbench.measure.events import ALLOCATES, COMPILED, OPERATORS, Own, named, own_of, said

BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1, "long int": 8,
    "int": 4, "c10::complex<float>": 8, "unsigned char": 1,
}  # fmt: skip
"""Of one number, by the name the profiler has for its type; others are no tensors."""
OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")
"""They write what they are given and do not read it."""


class Window(NamedTuple):
    """A phase of one call: when it ran."""

    phase: str
    start_ns: int
    end_ns: int


@dataclass
class Spent:
    """An operator in a phase, all its calls together."""

    nanoseconds: int = 0
    calls: int = 0
    flops: int = 0
    moved: int = 0
    """Bytes of its operands and of what it made: what it must read and write at the least."""

    def to_dict(self, name: str, rounds: int, phase_ns: float) -> dict[str, Any]:
        """A call's share of it. ``flops`` and ``bytes`` are None where torch does not know them."""
        seconds = self.nanoseconds / rounds * 1e-9
        flops = self.flops / rounds or None
        return {
            "name": name, "self_s": seconds, "share": seconds * 1e9 / phase_ns if phase_ns else 0.0,
            "calls": self.calls / rounds, "flops": flops, "bytes": self.moved / rounds or None,
            "flop_rate": flops / seconds if flops and seconds else None,
        }  # fmt: skip


class When:
    """Finds the window that an instant falls into."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = sorted(windows, key=lambda w: w.start_ns)
        self._starts = [w.start_ns for w in self._windows]

    def phase(self, at_ns: int) -> str | None:
        """None outside of all."""
        number = bisect_right(self._starts, at_ns) - 1
        inside = number >= 0 and at_ns < self._windows[number].end_ns
        return self._windows[number].phase if inside else None


def operators(events: Sequence[Any], when: When) -> dict[str, dict[str, Spent]]:
    """Operators of the host, by phase and name."""
    found: dict[str, dict[str, Spent]] = {}
    for own in own_of(named(events), (*OPERATORS, COMPILED), allocations=True):
        if (phase := when.phase(own.event.start_ns())) is not None:
            spent = found.setdefault(phase, {}).setdefault(said(own.name), Spent())
            spent.nanoseconds += own.nanoseconds
            spent.calls += 1
            spent.flops += own.event.flops()
            spent.moved += _moved(own)
    return found


def kernels(events: Sequence[Any], when: When) -> dict[str, dict[str, Spent]]:
    """Kernels of the device, by the phase of the operator that launched each."""
    launched = {  # the driver's own calls are linked to an operator, and number themselves anew
        e.correlation_id(): e for e in events
        if _on(e, "CPU") and e.correlation_id() > 0 and not e.linked_correlation_id()
    }  # fmt: skip
    found: dict[str, dict[str, Spent]] = {}
    for event in events:
        if not _on(event, "CUDA") or event.is_user_annotation():
            continue
        by = launched.get(event.linked_correlation_id())
        phase = when.phase(by.start_ns()) if by is not None else None
        if by is not None and phase is not None:
            spent = found.setdefault(phase, {}).setdefault(event.name(), Spent())
            spent.nanoseconds += event.duration_ns()
            spent.calls += 1
            spent.flops += by.flops()
    return found


def _on(event: Any, device: str) -> bool:
    return bool(event.device_type() == getattr(torch.autograd.DeviceType, device))


def _moved(own: Own) -> int:
    """Bytes of what an operator was given and made, unless it handed all of it on to another."""
    given = _given(own.event)
    if not given or any(_given(event) >= given for event in own.called):
        return 0
    return given + own.allocated


def _given(event: Any) -> int:
    """Bytes of the tensors that an operator reads or writes over; twice where it does both."""
    name, kind = event.name(), _kind(event.name())
    if kind == "view" or name.startswith(ALLOCATES):
        return 0
    sizes = [
        prod(shape) * BYTES[dtype]
        for shape, dtype in zip(event.shapes(), event.dtypes(), strict=False)
        if dtype in BYTES
    ]
    if kind == "in place" and name not in OVERWRITES and sizes:
        sizes.append(sizes[0])
    return sum(sizes)


@cache
def _kind(name: str) -> str:
    """``view``, ``in place`` or ``new``, as the operator's own schema says."""
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    returned = [r.alias_info for schema in schemas for r in schema.returns]
    aliases = [alias for alias in returned if alias is not None]
    if aliases and not any(alias.is_write for alias in aliases):
        return "view"
    return "in place" if aliases and name.endswith("_") else "new"
