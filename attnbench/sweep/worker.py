"""The process that imports kernels and measures cells, one after another.

Started by an engine, with the environment already set. It reads a JSON object a line from one pipe
and answers on another; what a variant prints goes to the error stream and disturbs nobody.

    {"apply": settings}      -> {"ready": versions}
    {"ceilings": dtypes, "device": …} -> {"ceilings": …}
    {"job": …}               -> {"record": …}
    {"map": job, "words": …} -> {"map": weights}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def _answer(bench: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from attnbench.measure import ceilings, memory, settings
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
    return {"record": bench.measure(Job.from_dict(asked["job"])).to_dict()}


def main(read: int, write: int) -> None:
    """Answer until the pipe closes."""
    os.dup2(2, 1)
    with os.fdopen(read) as questions, os.fdopen(write, "w") as answers:
        from attnbench.measure.cell import Bench

        bench = Bench()
        for line in questions:
            answers.write(json.dumps(_answer(bench, json.loads(line)), allow_nan=False) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
