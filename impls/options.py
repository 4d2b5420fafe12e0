"""What a row's words may be, and an option's text as what it stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from impls.asked import CantBeDone

MOST = 2.0**63
"""Numbers beyond this are no option's."""
SWAPPABLE = re.compile(r"aten::_(scaled_dot_product|flash|efficient|cudnn)_\w+")


class InvalidRow(CantBeDone, ValueError):
    """A row that says something no row may say. The message is a sentence."""


def typed(row: str, key: str, text: str, default: Any) -> Any:
    """An option's text as the type of its default."""
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "yes", "false", "0", "no"):
            return text.lower() in ("true", "1", "yes")
        raise InvalidRow(f"{row}: option {key}={text!r} is neither true nor false")
    try:
        value = type(default)(text)
    except ValueError:
        kind = type(default).__name__
        raise InvalidRow(f"{row}: option {key}={text!r} is not {kind}, like {default!r}") from None
    if isinstance(value, int | float) and not abs(value) < MOST:
        raise InvalidRow(f"{row}: option {key}={text} is not a number below 2^63")
    return value


def listed(words: Sequence[str]) -> str:
    """``a, b, c``, or ``nothing``."""
    return ", ".join(words) or "nothing"


def one_of(row: str, what: str, given: Sequence[str], valid: Sequence[str]) -> None:
    """Refuse what is not among the valid words."""
    wrong = [g for g in given if g not in valid]
    if wrong:
        raise InvalidRow(f"{row}: {what} {wrong[0]!r} is not one of {listed(valid)}")


def check_runs(row: str, runs: Any, devices: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse what names no operator by ``device`` or ``device?option=value``."""
    if not isinstance(runs, Mapping):
        raise InvalidRow(f"{row}: runs is {runs!r}, not operators by device")
    for where, operator in runs.items():
        device, _, choice = where.partition("?")
        one_of(row, "device of runs", [device], devices)
        key, _, text = choice.partition("=")
        if choice and key not in options:
            raise InvalidRow(f"{row}: runs names an option {key!r}, which it has not")
        if choice:
            typed(row, key, text, options[key])
        if not isinstance(operator, str) or not operator:
            raise InvalidRow(f"{row}: runs on {where} is {operator!r}, not an operator's name")


def check_swaps(row: str, swaps: Sequence[str]) -> None:
    """Refuse an operator that is no fused attention of torch's: the ruler uses the others."""
    for operator in swaps:
        if not isinstance(operator, str) or not SWAPPABLE.fullmatch(operator):
            raise InvalidRow(
                f"{row}: swaps names {operator!r}; a row may replace only torch's fused attention, "
                "such as aten::_scaled_dot_product_flash_attention"
            )


def check_ranks(row: str, level: str, ranks: Any, shares: str | None,
                options: Mapping[str, Any]) -> None:  # fmt: skip
    """Refuse a row of ranks that does not say over how many, or who holds what; and shares of a row
    that runs in one process.
    """
    if not isinstance(ranks, bool):
        raise InvalidRow(f"{row}: ranks={ranks!r} is neither true nor false")
    if not ranks and shares is not None:
        raise InvalidRow(f"{row}: shares are of a row that runs over several processes: ranks=True")
    if ranks and level != "core":
        raise InvalidRow(f"{row} runs over several processes and is a {level}: only a core can")
    if ranks and (shares is None or type(options.get("world")) is not int):
        raise InvalidRow(
            f"{row} runs over several processes, so it needs an option world, a whole number, and "
            "shares: who holds which tokens"
        )


def operator_on(device: str, runs: Mapping[str, str], chosen: Mapping[str, Any]) -> str | None:
    """The operator that a row's ``runs`` names for a device under the options chosen."""
    for where, operator in runs.items():
        on, _, choice = where.partition("?")
        key, _, text = choice.partition("=")
        if on == device and (not choice or chosen[key] == typed("", key, text, chosen[key])):
            return operator
    return None
