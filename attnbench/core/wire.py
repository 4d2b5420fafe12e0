"""What travels between processes or lies on disk, as JSON has it: all of it goes through here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

Kind = TypeVar("Kind")


def plain(value: Any) -> Any:
    """A value as JSON has it; null for a number that is not finite."""
    return _finite(msgspec.to_builtins(value, enc_hook=_encoded, str_keys=True))


def convert(values: Any, kind: type[Kind]) -> Kind:
    """A value of a kind from its JSON; raises msgspec.ValidationError, a ValueError, for none."""
    return msgspec.convert(values, kind, dec_hook=_decoded)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [*map(_finite, value)] if isinstance(value, list | tuple) else value


def _encoded(value: Any) -> Any:
    """What msgspec doesn't know: a mask, kinds of text (a version of torch's) and of number
    (numpy's), a mapping that can't be changed.
    """
    if isinstance(value, Mask | str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is no value of JSON")


def _decoded(kind: type, value: Any) -> Any:
    if kind is Mask:
        return Mask.parse(value)
    raise TypeError(f"{kind.__name__} is read from no JSON")


class Job(msgspec.Struct, frozen=True):
    """A variant on a problem, and how long to measure what of it."""

    variant: Variant
    problem: Problem
    seed: int = 0
    budget_s: float = 0.3
    timed: bool = True
    """False: only the gate, and a record without a time."""
    bits_s: float = 0.0
    """Try whether the same values give the same bits; across batches, for which a variant is built
    again, only where that takes no more seconds than these."""
    energy: bool = False
    ceilings: Mapping[str, Any] = {}
