"""The process that imports kernels and measures cells, one after another.

Started by an engine, with the environment already set. It reads a JSON object a line from one pipe
and answers on another; what a variant prints goes to the error stream and disturbs nobody.

    {"apply": settings}      -> {"ready": versions}
    {"ceilings": dtypes, "device": …} -> {"ceilings": …}
    {"job": …}               -> {"record": …}
    {"compare": [job, job], …} -> {"pairs": …} or {"stopped": who and why}
    {"hold": …}, {"fresh": true}, {"sample": n} -> see measure.asked
    {"noise": dtype, "device": …} -> {"noise": floors}
    {"map": job, "words": …} -> {"map": weights}
    {"profile": job, "trace": file} -> {"profile": …}, or {"record": …} that says why not
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import IO, Any

from attnbench.record import Status

DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG: a parent that is killed takes the worker along, whatever it is at."""


def _answer(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.measure import ceilings, memory, settings
    from attnbench.measure.job import Job

    if "apply" in asked:
        wanted = settings.Settings(**asked["apply"])
        settings.apply(wanted)
        memory.warm_profiler()
        return {"ready": {"wrong_environment": settings.wrong_environment(wanted)}}
    if "ceilings" in asked:
        return {"ceilings": ceilings.measure(asked["device"], asked["ceilings"])}
    if "noise" in asked:
        from attnbench.measure.noise import floors

        return {"noise": floors(asked["device"], asked["noise"])}
    if {"compare", "hold", "fresh", "sample"} & set(asked):
        return _pairs(bench, asked)
    if "map" in asked:
        from attnbench.measure.attention_map import attention_map

        job = Job.from_dict(asked["map"])
        try:
            return {"map": attention_map(job.variant, job.problem, asked["words"])}
        except Exception as error:
            return {"error": f"{job.variant.label} raised {type(error).__name__}: {error}"}
    if "profile" in asked:
        from attnbench.measure.profile import looks

        return looks.answer(bench, Job.from_dict(asked["profile"]), asked["trace"])
    return _measured(bench, Job.from_dict(asked["job"]))


def _measured(bench: Any, job: Any) -> dict[str, Any]:
    """A cell's record, and whether the next one needs another process."""
    from attnbench.measure.job import Spent
    from attnbench.measure.shared import state

    watching = Spent()
    with watching.on("gate"):
        before = bench.shared or state.snapshot()
        broken, threads = state.sealed(), threading.active_count()
    record = bench.measure(job, before)
    with watching.on("gate"):
        guards = broken()  # asked first: the rest goes by them
        deed = f"it replaced {', '.join(guards)}" if guards else state.said(before) or ""
        bench.shared = None if deed else state.still(before)
    if deed and record.status in (Status.MEASURED, Status.WRONG, Status.IMPLAUSIBLE):
        record = replace(record, status=Status.WRONG, reason=deed, time=None, detail=record.reason)
    left_running = not record.time and threading.active_count() > threads
    spent, gate = record.spent_s, watching.seconds["gate"]
    more = {part: round(spent.get(part, 0.0) + gate, 6) for part in ("gate", "total")}
    record = replace(record, spent_s={**spent, **more})
    return {"record": record.to_dict(), "spoiled": bool(deed) or left_running}


def _pairs(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.measure.asked import HELD, two

    if "compare" in asked:
        return two(bench, asked)
    if "fresh" in asked:
        return HELD.fresh()
    return HELD.sample(asked["sample"]) if "sample" in asked else HELD.hold(bench, asked)


class Answers:
    """The way back to the parent, for this process alone."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe, self._myself = pipe, os.getpid()
        self.asked = 0
        """The number of the question that is being answered."""

    def send(self, answer: dict[str, Any]) -> None:
        """One line. A child that a variant forked must not answer too."""
        if os.getpid() != self._myself:
            os._exit(1)
        self._pipe.write(json.dumps({**answer, "asked": self.asked}, allow_nan=False) + "\n")
        self._pipe.flush()


def main(read: int, write: int) -> None:
    """Answer until the pipe closes."""
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with os.fdopen(read) as questions, os.fdopen(write, "w") as pipe:
        from attnbench.measure.cell import Bench

        answers = Answers(pipe)
        bench = Bench(announce=lambda doing: answers.send({"doing": doing}))
        for line in questions:
            asked = json.loads(line)
            answers.asked = asked["asked"]
            if "settle" in asked:
                answers.send({"settled": asked["settle"]})
            else:
                answers.send(_answer(bench, asked))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
