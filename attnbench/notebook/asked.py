"""What Python hands over, as the command line's words: a number, a text, or several of them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench import given
from impls.asked import CantBeDone

AXES: dict[str, Callable[[str], Any]] = {
    "seq": given.words, "batch": given.numbers, "heads": given.numbers, "kv_heads": given.numbers,
    "head_dim": given.numbers, "v_head_dim": given.numbers, "dtype": given.words,
    "phase": given.words, "inputs": given.words, "level": given.words,
}  # fmt: skip
"""Values of a grid that may be several; masks too, but these hold commas of their own."""
SINGLE: dict[str, Callable[[str], Any]] = {
    "device": str, "world": given.count, "budget": given.seconds,
}  # fmt: skip
"""Values of a grid that are one."""
NOT_PLAIN = (str, bytes, Mapping)


class BadWord(CantBeDone, ValueError):
    """What was given is nothing that can be asked; a sentence."""


def held(value: Any) -> Any:
    """What can be read as often as one likes: a generator, or an array, is a list from here on."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()  # NumPy's, pandas' or torch's; of nought dimensions it is a number
    plain = not isinstance(value, Iterable) or isinstance(value, (*NOT_PLAIN, Sequence))
    return value if plain else list(value)


def changes(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a preset, what the words change; what is None is not asked."""
    found = {
        name: read(name, parse, value)
        for name, parse in (AXES | SINGLE).items()
        if (value := asked.get(name)) is not None
    }
    if asked.get("mask") is not None:
        found["mask"] = several("mask", asked["mask"])
    return found


def read(name: str, parse: Callable[[str], Any], value: Any) -> Any:
    """One word's value; raises a sentence that names the word."""
    try:
        return parse(text(value))
    except argparse.ArgumentTypeError as error:
        raise BadWord(f"{name}: {error}") from None


def several(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several of them, as they are."""
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not found:
        raise BadWord(f"{name} holds nothing: give one at the least, or leave it out")
    return tuple(map(str, found))


def text(value: Any) -> str:
    """As the command line has it: ``[256, 512]`` is ``256,512``, ``torch.float32`` is float32."""
    if isinstance(value, Iterable) and not isinstance(value, NOT_PLAIN):
        return ",".join(map(text, value))
    return str(value).removeprefix("torch.")


def command(variants: Sequence[str], asked: Mapping[str, Any], tables: Sequence[str]) -> str:
    """The command that measures the same."""
    words = ["attnbench", "run", *variants]
    for name, value in asked.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif name == "mask" and value is not None:
            words += [word for mask in several("mask", value) for word in (option, mask)]
        elif name == "problems" and not isinstance(value, str | Path | None):
            words += [option, "CALLS.json"]  # they were captured in the same program
        elif value not in (None, False, ()):
            words += [option, text(value)]
    return shlex.join([*words, *(word for table in tables for word in ("--table", table))])
