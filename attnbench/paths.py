"""Paths as they are written into files that are committed: without the user's name in them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]


def short(text: str) -> str:
    """A text in which paths are relative to this checkout, or else begin with ``~``."""
    for pattern, instead in _long_forms(home()):
        text = pattern.sub(instead, text)
    return text


def short_in(value: Any) -> Any:
    """A plain value whose texts, however deep, are as :func:`short` gives them."""
    if isinstance(value, str):
        return short(value)
    if isinstance(value, Mapping):
        return {short(str(name)): short_in(each) for name, each in value.items()}
    return [short_in(each) for each in value] if isinstance(value, list | tuple) else value


def long(path: str) -> Path:
    """A path that :func:`short` wrote, as it is on this machine."""
    return CHECKOUT / re.sub(r"^~(?=/|$)", lambda _: home(), path)


def home() -> str:
    """The user's own folder; empty where there is none, or all there is lies in it."""
    found = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where it is not known
    return found if found.startswith("/") and len(found) > 1 else ""


def named(path: str) -> str:
    """How a file is named where it is found from the current folder alone.

    A path below the current folder is relative to it, and one below the home begins with ``~``.
    """
    if not Path(path).is_absolute():
        return path
    if Path(path).is_relative_to(Path.cwd()):
        return str(Path(path).relative_to(Path.cwd()))
    if (own := home()) and Path(path).is_relative_to(own):
        return str("~" / Path(path).relative_to(own))
    return path


@cache
def _long_forms(own: str) -> list[tuple[re.Pattern[str], str]]:
    """What to look for, the longest first, and what to put there."""
    found = {str(CHECKOUT): ""} if (CHECKOUT / ".git").exists() else {}
    found |= {place: "~" for place in (own, str(Path(own).resolve())) if own}
    pairs = []
    for place in sorted(found, key=len, reverse=True):
        begins, ends = r"(?<![\w.~-])", r"(?![\w.-])"
        if found[place]:
            pairs.append((re.compile(begins + re.escape(place) + ends), found[place]))
        else:
            pairs.append((re.compile(begins + re.escape(place) + "/"), ""))
            pairs.append((re.compile(begins + re.escape(place) + ends), "."))
    return pairs
