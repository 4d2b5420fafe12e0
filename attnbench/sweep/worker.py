"""The process that imports kernels and measures cells, one after another.

Started by an engine, with the environment already set. It reads a JSON object a line from one pipe
and answers on another; what a variant prints goes to the error stream and disturbs nobody.

    {"apply": settings}      -> {"ready": versions}
    {"ceilings": dtypes, "device": …} -> {"ceilings": …}
    {"job": …}               -> {"record": …}
    {"map": job, "words": …} -> {"map": weights}
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from attnbench.record import Status

DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG: a parent that is killed takes the worker along, whatever it is at."""


def _answer(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.measure import ceilings, memory, settings, state
    from attnbench.measure.cell import Job

    if "apply" in asked:
        wanted = settings.Settings(**asked["apply"])
        settings.apply(wanted)
        memory.warm_profiler()
        return {"ready": {"wrong_environment": settings.wrong_environment(wanted)}}
    if "ceilings" in asked:
        return {"ceilings": ceilings.measure(asked["device"], asked["ceilings"])}
    if "map" in asked:
        from attnbench.measure.attention_map import attention_map

        job = Job.from_dict(asked["map"])
        try:
            return {"map": attention_map(job.variant, job.problem, asked["words"])}
        except Exception as error:
            return {"error": f"{job.variant.label} raised {type(error).__name__}: {error}"}
    before = state.snapshot()
    record = bench.measure(Job.from_dict(asked["job"]))
    left = state.changes(before)
    if left and record.status is Status.MEASURED:
        reason = f"it left changed what other variants share: {', '.join(left)}"
        record = replace(record, status=Status.WRONG, reason=reason, time=None)
    return {"record": record.to_dict(), "spoiled": bool(left)}


def main(read: int, write: int) -> None:
    """Answer until the pipe closes."""
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with os.fdopen(read) as questions, os.fdopen(write, "w") as answers:
        from attnbench.measure.cell import Bench

        bench, myself = Bench(), os.getpid()
        for line in questions:
            asked = json.loads(line)
            answer = _answer(bench, asked) | {"asked": asked["asked"]}
            if os.getpid() != myself:
                os._exit(1)  # a variant forked: its child must not answer too
            answers.write(json.dumps(answer, allow_nan=False) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
