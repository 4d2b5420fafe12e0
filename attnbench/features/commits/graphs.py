"""Which problems share a graph: those that differ in length and phase only.

A graph of asv's has one line for each variant, length and phase. Whatever else a problem says
(heads, dtype, mask …) is in the group, which is the first word of a benchmark's name: the suite's
own for what the suite asks on such a machine, and one that says the problem for the rest. So times
of unlike problems never meet in a graph.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from attnbench.features.commits import suite
from attnbench.sweep.plan import problems as asked
from impls.problem import SHORT, Problem

FROM_FILES = ("dense:", "bias:", "captured:")


def cell(variant: str, problem: Problem) -> tuple[str, ...]:
    """Where in a graph it stands: the suite's parameters as asv writes them.

    The length is that of the keys, which in decoding are the tokens so far.
    """
    return tuple(suite.written((variant, problem.kv_len, problem.phase)))


def group_on(machine: Mapping[str, Any], problem: Problem, threads: int | None = None) -> str:
    """The suite's own group, or another, for what a machine measured."""
    there = "cuda" if "cuda" in machine.get("devices", ()) else "cpu"
    found = group(problem, threads)
    return suite.MODULE if found == _of_suite(there) else found


@cache
def _of_suite(device: str) -> str:
    return group(next(asked(suite.grid(device))))


def group(problem: Problem, threads: int | None = None) -> str:
    """All of a problem but its length and phase, as a word: ``b2-h16-d128-bf16-causal-cuda``.

    ``threads``: how many, where they are not as many as a measurement takes by itself.
    """
    p = problem
    heads, width = f"h{p.heads}", f"d{p.head_dim}"
    if p.kv_heads != p.heads:
        heads += f"of{p.kv_heads}"
    if p.v_head_dim != p.head_dim:
        width += f"v{p.v_head_dim}"
    words = [f"b{p.batch}", heads, width, SHORT[p.dtype], _plain(str(p.mask))]
    if p.q_len != (1 if p.phase == "decode" else p.kv_len):
        words.append(f"q{p.q_len}")
    words += [_plain(p.inputs)] * (p.inputs != "normal")
    words += [p.level] * (p.level != "core")
    kind = p.device.partition(":")[0]  # one GPU of a machine is as good as another
    words += [kind] * (kind != "cpu")
    words += [f"{threads}-threads"] * bool(threads)
    return "-".join(words)


def _plain(text: str) -> str:
    """A mask or a kind of inputs, in letters that a file name and an address may have."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", text)
    if any(kind in text for kind in FROM_FILES):  # of a file's name, letters may be lost
        plain += "_" + hashlib.sha256(text.encode()).hexdigest()[:6]
    return plain
