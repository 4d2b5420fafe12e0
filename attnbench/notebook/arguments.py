"""What a notebook gives, put as a command line and read by what reads that."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnbench.command.arguments import BadWord, parser

NOT_SEVERAL = (str, bytes, Mapping)
AGAIN = {"mask": "mask", "tables": "table", "runs": "from"}
"""What is given again for each value, and by which option."""
ASIDE = ("variants", "out", "quiet")
"""What is no option of the command."""


def plain(value: Any) -> Any:
    """A generator or an array as a list, which can be read twice; anything else as it is."""
    to_list: Any = getattr(value, "tolist", None)
    if to_list is not None and not isinstance(value, type):
        return to_list()  # NumPy's, pandas' or torch's; a number if it has no dimensions
    keeps = not isinstance(value, Iterable) or isinstance(value, (*NOT_SEVERAL, Sequence))
    return value if keeps else list(value)


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


def words(verb: str, options: Mapping[str, Any]) -> list[str]:
    """The command that asks the same; None stands for what is not given. Raises BadWord."""
    command = [verb]
    if options.get("variants"):
        command += several("variants", options["variants"])
    for name, value in options.items():
        option = f"--{AGAIN.get(name, name).replace('_', '-')}"
        if name in ASIDE or value is None or value is False or value == ():
            continue
        if value is True:
            command.append(option)
        elif name in AGAIN and (value or name == "mask"):
            command += [word for each in several(name, value) for word in (option, each)]
        elif name not in AGAIN:
            command += [option, text(value)]
    return command


def parse(verb: str, options: Mapping[str, Any]) -> argparse.Namespace:
    """What the verb is asked for, as the command line gives it; raises :class:`BadWord`."""
    options = {name: plain(value) for name, value in options.items()}
    command = words(verb, options)
    arguments: argparse.Namespace = parser().parse_args(command)
    arguments.out, arguments.command = str(options["out"]), shlex.join(["attnbench", *command])
    return arguments
