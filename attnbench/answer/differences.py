"""How two runs differ besides their numbers: the machines, the versions, the settings, the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COMPARED = ("machine", "settings", "code", "seed", "budget_s", "tables")
"""Of a header: what numbers may depend on."""
SAID_SHORT = {
    "machine.name": "machine", "machine.torch_cuda": "torch's CUDA", "budget_s": "budget",
    "machine.memory_bytes": "memory, bytes", "code.dirty": "uncommitted changes",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One thing that the two headers have otherwise."""

    what: str
    a: str
    b: str


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Each value that two headers have otherwise, one at a time."""
    flat_a, flat_b = (dict(_flat({k: h.get(k) for k in COMPARED})) for h in (a, b))
    for path in dict.fromkeys([*flat_a, *flat_b]):
        one, other = (str(flat.get(path, "nothing")) for flat in (flat_a, flat_b))
        if one != other:
            yield Difference(_said(path), one, other)
    files_a, files_b = (h.get("files") or {} for h in (a, b))
    same = {*files_a.values()} & {*files_b.values()}  # though it may lie elsewhere
    for file in dict.fromkeys([*files_a, *files_b]):
        if not {h[file] for h in (files_a, files_b) if file in h} <= same:
            yield Difference(file, *(h.get(file, "not read") for h in (files_a, files_b)))
    if any(h.get("legs") for h in (a, b)):
        yield Difference("later legs", *(
            "; ".join(each for leg in h.get("legs") or () for each in leg["changes"]) or "none"
            for h in (a, b)
        ))  # fmt: skip


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value with the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(x, Mapping) for x in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{number}")
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value)) or "nothing"
    else:
        yield path, "nothing" if value is None else value


def _said(path: str) -> str:
    """``OMP_NUM_THREADS`` for ``settings.environment.OMP_NUM_THREADS``."""
    if path in SAID_SHORT:
        return SAID_SHORT[path]
    rooms = ("machine", "settings", "code", "versions", "environment")
    return " ".join(part for part in path.split(".") if part not in rooms).replace("gpus", "gpu")
