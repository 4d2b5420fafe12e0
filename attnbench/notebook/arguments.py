"""What a notebook gives, read by what reads the command line's options."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.command.arguments import GRID, READERS
from impls.errors import CantBeDone

NOT_SEVERAL = (str, bytes, Mapping)
COMMAND = (*GRID, "preset", "problems", "seed", "threads", "energy", "devices")
"""The options of ``attnbench run`` in a command, in their order."""


class BadWord(CantBeDone, ValueError):
    """A value that an argument doesn't take; a sentence."""


def plain(value: Any) -> Any:
    """A generator or an array as a list, which can be read twice; anything else as it is."""
    to_list: Any = getattr(value, "tolist", None)
    if to_list is not None and not isinstance(value, type):
        return to_list()  # NumPy's, pandas' or torch's; a number if it has no dimensions
    keeps = not isinstance(value, Iterable) or isinstance(value, (*NOT_SEVERAL, Sequence))
    return value if keeps else list(value)


def grid_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a grid that are given; None stands for what is not. Raises :class:`BadWord`."""
    names = [name for name in GRID if given.get(name) is not None]
    changes = {name: read(name, given[name]) for name in names if name != "mask"}
    if "mask" in names:  # a mask holds commas of its own
        changes["mask"] = several("mask", given["mask"])
    return changes


def read(name: str, value: Any) -> Any:
    """The value of one option; raises :class:`BadWord`, which names the option."""
    try:
        return READERS[name](text(value))
    except argparse.ArgumentTypeError as error:
        raise BadWord(f"{name}: {error}") from None


def several(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several, each as it is; raises :class:`BadWord` where there is none."""
    one = isinstance(value, str) or not isinstance(value, Iterable)
    texts = (value,) if one else tuple(value)
    if not texts:
        raise BadWord(f"{name} holds nothing: give one at the least, or leave it out")
    return tuple(map(str, texts))


def text(value: Any) -> str:
    """As the command line has it: ``[256, 512]`` is ``256,512``, ``torch.float32`` is float32."""
    if isinstance(value, Iterable) and not isinstance(value, NOT_SEVERAL):
        return ",".join(map(text, value))
    return str(value).removeprefix("torch.")


def command(variants: Sequence[str], given: Mapping[str, Any], tables: Sequence[str]) -> str:
    """The command that measures the same."""
    words = ["attnbench", "run", *variants]
    for name in COMMAND:
        value, option = given.get(name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif name == "mask" and value is not None:
            words += [word for mask in several("mask", value) for word in (option, mask)]
        elif name == "problems" and not isinstance(value, str | Path | None):
            words += [option, "CALLS.json"]  # they were captured in the same program
        elif value not in (None, False, ()):
            words += [option, text(value)]
    return shlex.join([*words, *(word for table in tables for word in ("--table", table))])
