"""Numbers, sizes and names as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

NONE = "–"
"""In a column, where there is no number."""
SIZES = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}


def positive(value: Any) -> float | None:
    """A number above 0 that is finite, as every axis of logarithms needs; None of all others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def three(value: float) -> str:
    """Three digits of it: ``1.31``, ``0.0042``, ``12,300``."""
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    if abs(value) >= 99.95:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """Three digits in the first unit that it reaches, or else in the last."""
    unit = next((unit for unit, size in units.items() if value >= 0.9995 * size), [*units][-1])
    return f"{three(value / units[unit])} {unit}"


def counted(n: int, noun: str) -> str:
    """``1 cell``, ``3 cells``"""
    return f"{n} {noun}{'s' if n != 1 else ''}"


def first_few(some: Sequence[str], most: int) -> str:
    """``a, b and 3 more``"""
    more = f" and {len(some) - most} more" if len(some) > most else ""
    return ", ".join(some[:most]) + more


def key_values(options: Mapping[str, object]) -> str:
    """``q_block=128, k_block=64``"""
    return ", ".join(f"{name}={value}" for name, value in options.items())


def duration(seconds: float) -> str:
    """In a sentence: ``45.6 µs``, ``523 ms``, ``4.09 s``, ``2.5 min``, ``24 h``."""
    if seconds < 119.5:
        return _in_units(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})
    unit, size = ("min", 60) if seconds < 5400 else ("h", 3600)
    return f"{three(float(f'{seconds / size:.2g}'))} {unit}"


def roughly(seconds: float) -> str:
    """A guess, or a wait: ``4 s``, ``3 min``, ``2.5 h``, and no less than a second."""
    step = 1 if seconds < 119.5 else 60
    return duration(step * max(1, round(seconds / step)))


def size(nbytes: float) -> str:
    """In a sentence: ``1.5 MiB``."""
    return _in_units(nbytes, SIZES)


def joules(value: float) -> str:
    """``1.2 mJ``"""
    return _in_units(value, {"kJ": 1e3, "J": 1.0, "mJ": 1e-3, "µJ": 1e-6})


def billions(flops: float) -> str:
    """``6.44 GFLOP``"""
    return f"{three(flops * 1e-9)} GFLOP"


def unit_of_rates(fastest: float) -> tuple[float, str]:
    """What rates are given in where the fastest is this: TFLOP/s from one on, else GFLOP/s."""
    return (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")


def flop_rate(rate: float) -> str:
    """``781 TFLOP/s``, ``12.3 GFLOP/s``"""
    unit, name = unit_of_rates(rate)
    return f"{three(rate / unit)} {name}"


def percent(value: float | None, sign: str = "") -> str:
    """``0.31 %``, ``8.2 %``, ``35 %``, in a column too; with a sign, a change: ``+3.2 %``."""
    if value is None or not math.isfinite(value):
        return NONE
    hundredths = 100 * value
    text = three(round(hundredths) if abs(hundredths) >= 9.95 else float(f"{hundredths:.2g}"))
    return f"{sign * (value >= 0)}{text}\N{NO-BREAK SPACE}%"


def tokens(value: int) -> str:
    """``4k`` of 4,096, where a length is a whole number of 1,024; other lengths in full."""
    return f"{value // 1024:,}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"


def figures(value: float | None) -> str:
    """In a column, three figures, all digits before the point: ``37.0``, ``12,345``."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-12))
    return f"{value:.1e}" if digits > 6 else f"{value:,.{digits}f}"


def ms(seconds: float | None) -> str:
    """Milliseconds in a column: ``1,240``, ``0.386``."""
    return figures(seconds * 1e3) if seconds is not None else NONE


def time_interval(middle: float, low: float, high: float) -> str:
    """``550 ms [466, 568]``"""
    return f"{ms(middle)} ms [{ms(low)}, {ms(high)}]"


def mib(nbytes: float | None) -> str:
    """MiB in a column: ``3.06``."""
    return figures(nbytes / 2**20) if nbytes is not None else NONE


def ratio(value: float | None) -> str:
    """``1.30×``, in a sentence and in a column."""
    if value is None:
        return NONE
    return f"{value:.2f}×" if 0.1 <= value < 10 else f"{figures(value)}×"


def ratio_interval(middle: float, low: float, high: float) -> str:
    """``1.30× [1.25, 1.36]``"""
    return f"{ratio(middle)} [{ratio(low)[:-1]}, {ratio(high)[:-1]}]"


NOT_SOFTMAX = "not softmax attention"
OTHER = "*"
"""Behind the names of what is not softmax attention, where a footnote says so."""


def name_and_kind(variant: str, computes: str) -> str:
    """``linear.elu (its own operator, not softmax)``; exact softmax has its name alone."""
    if computes in ("", "softmax"):
        return variant
    return f"{variant} ({computes}{', not softmax' if 'softmax' not in computes else ''})"


def name_with_star(variant: str, computes: str) -> str:
    """``linear.elu*``, for a table with a footnote; exact softmax has its name alone."""
    return variant + OTHER * (computes not in ("", "softmax"))


def doubt_words(flag: str) -> str:
    """A flag of a time in today's words."""
    return flag.replace("the canary", "the drift check")  # as older records have it


APPLIED = re.compile(
    r"\bCUDAFunctor_(\w+)|\b(?!AUnary|BUnary|Binary)(\w+)(?:Functor|_kernel_cuda)\b"
)
"""In the name of a kernel of torch's what it does to each number."""


def plain(name: str) -> str:
    """An operator's name without its library's; of a kernel in C++ what its function is called, or
    what it does to each number.
    """
    name = name.removeprefix("aten::")
    if not name.startswith("void "):
        return name
    what = re.split("[<(]", name[5:].replace("(anonymous namespace)", ""))[0].rpartition("::")[2]
    does = APPLIED.search(name) if "elementwise" in what else None
    return f"{(does[1] or does[2]).lower()}, elementwise" if does else what


def short(name: str, width: int) -> str:
    """A name that fits, its middle left out."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


BYTES: dict[str, float] = {"B": 1}
BYTES |= {f"{prefix}B": 1000**n for n, prefix in enumerate("KMGT", 1)}
BYTES |= {f"{prefix}IB": 1024**n for n, prefix in enumerate("KMGT", 1)}
SECONDS = {"US": 1e-6, "MS": 1e-3, "S": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0}
MOST_BYTES, MOST_SECONDS = 2**60, 86400.0
GIVE = "give a number above 0 with its unit, such as"


class NotAnAmount(ValueError):
    """The text is no size, or no time; a sentence."""


def parse_size(text: str) -> int:
    """Bytes, from a number above 0 with its unit; raises :class:`NotAnAmount` for other texts."""
    value = _read(text, BYTES)
    if not 1 <= value <= MOST_BYTES:
        raise NotAnAmount(f"{text!r} is not a size: {GIVE} 2GiB, 512MiB or 8GB")
    return int(value)


def parse_duration(text: str) -> float:
    """Seconds, from a number above 0 with its unit; raises :class:`NotAnAmount` for other texts."""
    value = _read(text, SECONDS)
    if not 0 < value <= MOST_SECONDS:
        raise NotAnAmount(f"{text!r} is not a time: {GIVE} 1s, 200ms or 50us, at most a day")
    return value


def _read(text: str, units: Mapping[str, float]) -> float:
    """A number times its unit; 0 where the text is none."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]+)", text.strip())
    return float(match[1]) * units.get(match[2].upper(), 0.0) if match else 0.0


Value = TypeVar("Value")
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x80-\x9f\N{LEFT-TO-RIGHT EMBEDDING}-\N{RIGHT-TO-LEFT OVERRIDE}"
    "\N{LEFT-TO-RIGHT ISOLATE}-\N{POP DIRECTIONAL ISOLATE}]"
)
"""What a terminal obeys (colours, cursor, clipboard, title) or what turns a line round."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of something to compute."""


def for_terminal(text: str) -> str:
    """The text with a mark in place of each control character but tab and end of line."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def for_sheet(value: Value) -> Value | str:
    """A cell of a CSV file: text that a spreadsheet would compute begins with an apostrophe."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


class Unchecked:
    """A stream of :mod:`attnbench.command.terminal` for text that is checked and has colours."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write = getattr(stream, "write_unchecked", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
