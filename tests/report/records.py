"""Records made by hand for whoever shows them."""

import re

from attnbench.core.record import Error, Memory, Record, Status, Time
from impls.problem import Problem
from tests.times import around, figures

PROBLEM = Problem(heads=2, kv_heads=2, q_len=32, kv_len=32)
MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def at(length, **more):
    return PROBLEM.with_(q_len=length, kv_len=length, **more)


def timed(variant, median, problem=PROBLEM, **more):
    time = Time(clock="host", stop="budget", **figures(around(median, 0.02)))
    given = {
        "memory": Memory(peak_bytes=3 << 20, saved_bytes=None, expected_bytes=None, method="m"),
        "error": {"forward": Error(relative=2e-7, max=1.0, worst_row=1.0, cosine=1.0, ratio=1.25)},
        "share_of_ceiling": 0.42,
        "computes": "softmax",
        **more,
    }
    return Record(status=Status.MEASURED, variant=variant, problem=problem, time=time, **given)


def untimed(variant, status, problem=PROBLEM, reason="the reason", **more):
    return Record(status=status, reason=reason, variant=variant, problem=problem, **more)


def grid(text):
    """The cells of the first table in a text: rows of words that two spaces part."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("variant"))
    rows = []
    for line in lines[first:]:
        if not line.strip() or re.match(r"\w+: ", line):
            break
        rows.append(re.split(r"\s{2,}", line.strip()))
    return rows
