"""Instructions of a call, counted by valgrind's callgrind: a figure without noise.

Started by ``features/commits/instructions`` under valgrind, in a folder with a commit's ``impls``.
All cells are counted in one process, since most of the cost is loading torch under valgrind. Calls
are built and made once before valgrind's instrumentation is switched on, and only what happens
between two marks is collected. Each mark writes a file of callgrind's, with a number at the end of
its name; the answer lists the numbers of each cell.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attnbench.core.process import Program
from attnbench.core.settings import Settings, apply
from attnbench.gate.inputs import Call, make
from attnbench.meter.ranks import attend_of
from impls import table
from impls.problem import Problem

SEED = 0
CONTROL_S = 300.0  # for callgrind_control to switch the instrumentation on
WARM_UP, COUNTS = 3, 5
"""Calls of a cell before it counts, as the allocators' free lists take a few calls to settle, and
calls that are counted, each by itself."""


def main(question: str, answer: str) -> None:
    """Count the calls of the jobs in a file; write the results to another."""
    sent = json.loads(Path(question).read_text())
    apply(Settings(threads=1))
    rows = table(sent["tables"])
    answers: list[dict[str, Any]] = []
    calls: list[Callable[[], object] | None] = []
    for job in sent["jobs"]:
        try:
            calls.append(_call(rows.find(job["variant"]), Problem.from_dict(job["problem"])))
            answers.append({})
        except Exception as error:
            calls.append(None)
            answers.append({"why": f"{type(error).__name__}: {error}"})
    # not before: without it all the rest is much faster
    with Program(["callgrind_control", "--instr=on", str(os.getpid())]) as control:
        if control.wait(CONTROL_S) != 0:
            raise OSError(f"callgrind_control: {control.last_line()}")
    gc.collect()
    gc.disable()  # for good: a collection frees what the next call would find ready
    marks = 0
    for call, each in zip(calls, answers, strict=True):
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
    Path(answer).write_text(json.dumps(answers))


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


if __name__ == "__main__":
    main(*sys.argv[1:])
