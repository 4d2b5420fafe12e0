"""The table of limits, and its picture."""

import re

import pytest

from attnbench.features.limits import view


def look(size, why="", time_s=0.15, peak_bytes=100 << 20, reason="", flags=()):
    return {
        "size": size,
        "why": why,
        "reason": reason,
        "time_s": time_s,
        "peak_bytes": peak_bytes,
        "probe": {"flags": list(flags)},
    }


def row(variant="einsum", held=None, fails=None, **more):
    given = {
        "variant": variant,
        "computes": "softmax",
        "family": "dense",
        "phase": "forward",
        "mask": "causal",
        "by": "seq",
        "held": held,
        "fails": fails,
        "limited_by": fails["why"] if fails else "time",
        "predicted": {},
        "gate": "measured",
        "why": "",
        "looks": [],
    }
    return {**given, **more}


def show(shown, *rows):
    return shown(view.show, rows, {"peak_bytes": 2 << 30, "seconds": 0.2}, "seq")


CASES = [
    (
        row(held=look(3072), fails=look(3264, "time", time_s=0.516), predicted={"memory": 8192}),
        ["3,072", "time", "150 ms", "100 MiB", "3,264 (516 ms)", "≈ 8,192"],
    ),
    (
        row(held=look(8192), fails=look(8256, "memory", peak_bytes=2081 << 20)),
        ["8,192", "memory", "150 ms", "100 MiB", "8,256 (2.03 GiB)"],
    ),
    (
        row(held=look(3072), predicted={"time": 5000, "memory": 8192}),
        ["3,072", "time ≈", "150 ms", "100 MiB", "≈ above 5,000 (time, predicted)"],
    ),
    (
        row(held=look(64), fails=look(128, "time", time_s=None, reason="given up after 24 s")),
        ["64", "time", "150 ms", "100 MiB", "128 (given up after 24 s)"],
    ),
    (
        row(why="not looked at: the wall clock was spent", limited_by=""),
        ["none", "–", "not looked at: the wall clock was spent"],
    ),
    (row(fails=look(64, "memory", peak_bytes=5 << 20)), ["none", "memory", "64 (5 MiB)"]),
]


@pytest.mark.parametrize(("one", "cells"), CASES)
def test_a_line_says_what_held_what_holds_it_back_and_what_did_not_hold(shown, one, cells):
    (line,) = (x for x in show(shown, one).splitlines() if x.startswith("einsum"))
    found = [x for x in re.split(r"\s{2,}", line)[1:] if x != "–" or "–" in cells]
    assert found[: len(cells)] == cells


def test_what_crashed_and_what_the_meters_say_is_told_once_below(shown):
    flags = "it holds {} from call to call: it is not in its peak"
    held = [look(64, flags=[flags.format(size)]) for size in ("900 KiB", "1.5 MiB")]
    died = row(held=look(2048), fails=look(4096, "crashed", reason="it died [x]", time_s=None))
    text = show(shown, died, *(row(f"v{n}", h, look(128, "time")) for n, h in enumerate(held)))
    assert "! einsum forward at 4,096: crashed: it died [x]" in text
    most = (
        "! it holds up to 1.5 MiB from call to call: it is not in its peak: v0 forward, v1 forward"
    )
    assert text.count("it holds") == 1 and most in text
