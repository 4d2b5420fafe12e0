"""The table of limits, and its picture."""

import re

import pytest

from attnbench.features.limits import verb


def look(size, why="", time_s=0.15, peak_bytes=100 << 20, reason="", flags=()):
    figures = {"time_s": time_s, "peak_bytes": peak_bytes, "flags": list(flags)}
    return {"size": size, "why": why, "reason": reason, **figures}


def row(variant="einsum", held=None, fails=None, **more):
    about = {"variant": variant, "computes": "softmax", "phase": "forward", "mask": "causal"}
    ends = {"held": held, "fails": fails, "limited_by": fails["why"] if fails else "", "why": ""}
    return {**about, **ends, **more}


def show(shown, *rows):
    return shown(verb.show, rows, {"peak_bytes": 2 << 30, "seconds": 0.2}, "seq")


CASES = [
    (
        row(held=look(3072), fails=look(3264, "time", time_s=0.516)),
        ["3,072", "time", "150 ms", "100 MiB", "3,264 (516 ms)"],
    ),
    (
        row(held=look(8192), fails=look(8256, "memory", peak_bytes=2081 << 20)),
        ["8,192", "memory", "150 ms", "100 MiB", "8,256 (2.03 GiB)"],
    ),
    (row(held=look(3072)), ["3,072", "–", "150 ms", "100 MiB", "nothing that was looked at"]),
    (
        row(held=look(64), fails=look(128, "time", time_s=None, reason="given up after 24 s")),
        ["64", "time", "150 ms", "100 MiB", "128 (given up after 24 s)"],
    ),
    (
        row(why="not looked at: the wall clock was spent"),
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
    flag = "it holds 1.5 MiB from call to call: it is not in its peak"
    died = row(held=look(2048), fails=look(4096, "crashed", reason="it died [x]", time_s=None))
    held = look(64, flags=[flag])
    text = show(shown, died, *(row(name, held, look(128, "time")) for name in ("v0", "v1")))
    assert "! einsum forward at 4,096: crashed: it died [x]" in text
    assert text.count("it holds") == 1 and f"! {flag}: v0 forward, v1 forward" in text
