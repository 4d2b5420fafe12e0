"""The process that imports kernels and measures cells, one after another.

Started by an engine, with the environment already set. It reads a JSON object a line from one pipe
and answers on another; what a variant prints goes to the error stream and disturbs nobody.

    {"apply": settings}      -> {"ready": versions}
    {"ceilings": dtypes, "device": …} -> {"ceilings": …}
    {"job": …}               -> {"record": …}
    {"compare": [job, job], …} -> {"pairs": …} or {"stopped": who and why}
    {"hold": …}, {"fresh": true}, {"sample": n} -> see measure.asked
    {"noise": dtype, "device": …} -> {"noise": floors}
    {"canary": device}       -> {"canary": seconds}
    {"map": job, "words": …} -> {"map": weights}
    {"probe": job, "max_time_s": …, "expected": bytes} -> {"probe": …}
    {"profile": job, "trace": file} -> {"profile": …}, or {"record": …} that says why not
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from attnbench.core.record import Status

GONE = "it was measured, but after it no call to the GPU works any more"
FIRST_TO_GO = "1000"
"""Whom the system ends when memory runs out: rather this process than any other."""


def _answer(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.meter import ceilings
    from attnbench.meter.timed import Job

    if "apply" in asked:
        return _ready(asked["apply"])
    if "ceilings" in asked:
        return {"ceilings": ceilings.measure(asked["device"], asked["ceilings"])}
    if "canary" in asked:
        from attnbench.meter import ceilings as canary

        return {"canary": canary.reading(asked["canary"])}
    if "noise" in asked:
        from attnbench.meter.pairs import floors

        return {"noise": floors(asked["device"], asked["noise"])}
    if {"compare", "hold", "fresh", "sample"} & set(asked):
        return _pairs(bench, asked)
    if "map" in asked:
        from attnbench.meter.probe import attention_map

        job = Job.from_dict(asked["map"])
        try:
            return {"map": attention_map(job.variant, job.problem, asked["words"])}
        except Exception as error:
            return {"error": f"{job.variant.label} raised {type(error).__name__}: {error}"}
    if "probe" in asked:
        from attnbench.meter import probe

        return probe.answer(asked)
    if "profile" in asked:
        from attnbench.meter import profile

        return profile.answer(bench, Job.from_dict(asked["profile"]), asked["trace"])
    return _measured(bench, Job.from_dict(asked["job"]))


def _ready(asked: dict[str, Any]) -> dict[str, Any]:
    """The settings applied."""
    from attnbench.core import settings
    from attnbench.meter import memory

    wanted = settings.Settings(**asked)
    settings.apply(wanted)
    if wanted.warm_profiler:
        memory.warm_profiler()
    return {"ready": {"wrong_environment": settings.wrong_environment(wanted)}}


def _measured(bench: Any, job: Any) -> dict[str, Any]:
    """A cell's record, and whether the next one needs another process."""
    from attnbench.gate import process_state, watch
    from attnbench.meter import clocks
    from attnbench.meter.cell import clipped, poisoned
    from attnbench.meter.timed import TimeSpent

    watching = TimeSpent()
    clocks.begin(job.problem.device)
    with watching.on("gate"):
        before = bench.shared or watch.snapshot()
        broken, process_before = watch.sealed(), process_state.now()
    record = clipped(bench.measure(job, before))
    if getattr(job.variant, "swaps", ()):
        gc.collect()  # it puts torch's kernels back when it is dropped, and they are compared below
    gone = poisoned(job.problem.device)
    with watching.on("gate"):
        try:
            guards = broken()  # asked first: the rest goes by them
            deed = f"it replaced {', '.join(guards)}" if guards else watch.said(before) or ""
            left = bool(process_state.disturbed(process_before))
        except Exception as error:  # it left nothing to look with
            deed, left = f"nobody could look at what it left: {type(error).__name__}: {error}", True
        bench.shared = None if deed else watch.still(before)
    if gone and record.status is Status.MEASURED:
        record = record.with_(status=Status.FAILED, reason=GONE, time=None, detail=deed)
    elif deed and record.status in (Status.MEASURED, Status.WRONG, Status.IMPLAUSIBLE):
        record = record.with_(status=Status.WRONG, reason=deed, time=None, detail=record.reason)
    spent, gate = record.spent_s, watching.seconds["gate"]
    more = {part: round((spent.get(part) or 0.0) + gate, 6) for part in ("gate", "total")}
    record = record.with_(spent_s={**spent, **more})
    return {"record": record.to_dict(), "spoiled": bool(deed) or left or gone}


def _pairs(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.meter.pairs import SIDES, two

    return two(bench, asked) if "compare" in asked else SIDES.answer(bench, asked)


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


def main(questions: int, answer: int, life: int, report: int, memory: int) -> None:
    """Answer until the pipe closes."""
    from attnbench.core.process import keep

    keep(life, report, (questions, answer))
    os.dup2(2, 1)
    _limit(memory)
    with os.fdopen(questions) as asking, os.fdopen(answer, "w") as pipe:
        from attnbench.meter.cell import Bench

        answers = Answers(pipe)
        bench = Bench(announce=lambda doing: answers.send({"doing": doing}))
        for line in asking:
            asked = json.loads(line)
            answers.asked = asked["asked"]
            if "settle" in asked:
                answers.send({"settled": asked["settle"]})
            else:
                answers.send(_answer(bench, asked))


def _limit(memory: int) -> None:
    """Bytes that this process may hold, where that is limited; and who goes first without."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
