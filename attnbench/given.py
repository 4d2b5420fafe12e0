"""What a word of the command line may hold, and a sentence for what it may not."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from attnbench import amounts


def numbers(text: str) -> tuple[int, ...]:
    """``1,2,4``"""
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers split by commas") from None


def words(text: str) -> tuple[str, ...]:
    """``forward,train``"""
    found = tuple(w.strip() for w in text.split(",") if w.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} holds nothing")
    return found


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def seed(text: str) -> int:
    """A whole number that fits a random generator's state."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**62):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**62")
    return int(text)


def seconds(text: str) -> float:
    """A number above zero."""
    return _from_nought_to(86400, text, "a number of seconds above 0")


def size(text: str) -> int:
    """Bytes: ``2GiB``."""
    return int(_amount(amounts.size, text))


def duration(text: str) -> float:
    """Seconds: ``200ms``."""
    return _amount(amounts.duration, text)


def _amount(read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except amounts.NotAnAmount as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def share(text: str) -> float:
    """A share between 0 and 1."""
    return _from_nought_to(1, text, "a share between 0 and 1, such as 0.02")


def above_nought(text: str) -> float:
    """An error: a number above 0."""
    return _from_nought_to(float("inf"), text, "a number above 0, such as 1e-2")


def factor(text: str) -> float:
    """How many times as much: a number above 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 1, such as 1.05")
    return value


def _from_nought_to(end: float, text: str, what: str) -> float:
    """A number between nought and the end, neither of them."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
