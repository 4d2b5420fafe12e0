"""Instructions of a call, counted by valgrind's callgrind: a figure without noise.

Started by ``features/commits/instructions`` under valgrind, in a folder with a commit's
``impls``. All cells are counted in one process, since loading torch under valgrind is most of what
it costs. Calls are built and made once before valgrind's instrumentation is switched on, and only
what happens between two marks is collected. Each mark writes a file of callgrind's, with a number
at the end of its name; the answer says which numbers are whose.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attnbench.core.settings import Settings, apply
from attnbench.gate.inputs import Call, make
from attnbench.meter.ranks import attend_of
from impls import table
from impls.problem import Problem

SEED = 0
WARM_UP, COUNTS = 3, 5
"""Calls of a cell under valgrind before it counts, and calls that are counted, each by itself. The
allocators' lists of what is free take a few calls to come to rest.
"""


def main(asked: str, answer: str) -> None:
    """Count the calls of the jobs in a file; write what became of each to another."""
    sent = json.loads(Path(asked).read_text())
    apply(Settings(threads=1))
    rows = table(sent["tables"])
    said: list[dict[str, Any]] = []
    calls: list[Callable[[], object] | None] = []
    for job in sent["jobs"]:
        try:
            calls.append(_call(rows.find(job["variant"]), Problem.from_dict(job["problem"])))
            said.append({})
        except Exception as error:
            calls.append(None)
            said.append({"why": f"{type(error).__name__}: {error}"})
    _instrument()
    gc.collect()
    gc.disable()  # for good: a collection frees what the next call would find ready
    marks = 0
    for call, each in zip(calls, said, strict=True):
        if call is None:
            continue
        try:
            for _ in range(WARM_UP):
                call()
        except Exception as error:
            each["why"] = f"{type(error).__name__}: {error}"
            continue
        for _ in range(COUNTS):
            torch._C._valgrind_toggle()
            call()
            torch._C._valgrind_toggle_and_dump_stats()
        each["files"] = list(range(marks + 1, marks + 1 + COUNTS))
        marks += COUNTS
    Path(answer).write_text(json.dumps(said))


def _call(variant: Any, problem: Problem) -> Callable[[], object]:
    """A variant's call in the problem's phase, made once."""
    if problem.phase == "backward":
        raise ValueError("backward alone is not counted; give forward or train")
    call = Call(problem, attend_of(variant, problem), make(problem, SEED))
    out = call.forward()
    if problem.phase != "train":
        return call.forward
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(SEED)).to(out.dtype)

    def both() -> object:
        return call.backward(call.forward(), upstream)

    both()
    return both


def _instrument() -> None:
    """Switch valgrind's instrumentation on: without it all that came before is much faster."""
    subprocess.run(
        ["callgrind_control", "--instr=on", str(os.getpid())], check=True, capture_output=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
