"""Names and numbers of a profile, as they are said."""

from __future__ import annotations


def plain(name: str) -> str:
    """An operator's name without its library's."""
    return name.removeprefix("aten::")


def short(name: str, width: int) -> str:
    """A name that fits, its middle left out."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def milliseconds(seconds: float) -> str:
    """``12.3 ms``, or ``45.6 µs``."""
    return f"{_three(seconds * 1e3)} ms" if seconds >= 1e-4 else f"{_three(seconds * 1e6)} µs"


def size(nbytes: float) -> str:
    """``32 MiB``"""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= bytes_:
            return f"{_three(nbytes / bytes_)} {unit}"
    return f"{nbytes:.0f} B"


def billions(flops: float) -> str:
    """``6.44 GFLOP``"""
    return f"{_three(flops * 1e-9)} GFLOP"


def _three(value: float) -> str:
    """Three digits, and never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
