"""The process that imports kernels and measures cells, one after another.

Started by :class:`attnbench.sweep.engine.LocalEngine`, with the environment already set. What a
variant prints goes to the output that the engine keeps, and disturbs nothing.

    {"apply": settings}      -> {"ready": true}
    {"ceilings": dtypes, "device": …} -> {"ceilings": …}
    {"job": …}               -> {"record": …}
    {"compare": [job, job], …} -> {"pairs": …} or {"stopped": which and why}
    {"answer": "package.module:function", …} -> what that function answers
    {"hold": …}, {"fresh": true}, {"sample": n} -> see meter.pairs
    {"noise": dtype, "device": …} -> {"noise": floors}
    {"canary": device}       -> {"canary": seconds}
    {"map": job, "words": …} -> {"map": weights}
    {"probe": job, "max_time_s": …, "expected": bytes} -> {"probe": …}
    {"rank": deed, …}        -> see meter.rank_process
"""

from __future__ import annotations

import gc
from typing import Any

from attnbench.core.process_child import Answers, serve
from attnbench.core.record import Status
from attnbench.core.wire import convert, plain

GONE = "it was measured, but after it no call to the GPU works any more"


def main() -> None:
    """Answer until the engine closes the pipe."""
    benches: list[Any] = []

    def respond(question: dict[str, Any], answers: Answers) -> dict[str, Any]:
        if "rank" in question:
            from attnbench.meter import rank_process

            return rank_process.answer(question)
        if not benches:
            from attnbench.meter.cell import Bench

            benches.append(Bench(announce=lambda doing: answers.send({"doing": doing})))
        return _answer(benches[0], question)

    serve(respond)


def _answer(bench: Any, question: dict[str, Any]) -> dict[str, Any]:  # noqa: C901 - a table
    from attnbench.core.wire import Job
    from attnbench.meter import clocks, pairs, probe
    from impls.loading import load_function

    match question:
        case {"apply": settings}:
            return _apply(settings)
        case {"ceilings": dtypes, "device": device}:
            return {"ceilings": clocks.measure_ceilings(device, dtypes)}
        case {"canary": device}:
            return {"canary": clocks.canary_s(device)}
        case {"noise": dtype, "device": device}:
            return {"noise": pairs.floors(device, dtype)}
        case {"compare": _}:
            return pairs.two(bench, question)
        case {"answer": function}:  # of a package that stands below this one
            return dict(load_function(function)(bench, question))
        case {"hold": _} | {"fresh": _} | {"sample": _}:
            return pairs.SIDES.reply(bench, question)
        case {"map": asked, "words": words}:
            return _map(convert(asked, Job), words)
        case {"probe": _}:
            return probe.answer(question)
        case {"job": job}:
            return _measured(bench, convert(job, Job))
    raise ValueError(f"no such question: {', '.join(question)}")


def _map(job: Any, words: Any) -> dict[str, Any]:
    from attnbench.meter.probe import attention_map

    try:
        return {"map": attention_map(job.variant, job.problem, words)}
    except Exception as error:
        return {"error": f"{job.variant.label} raised {type(error).__name__}: {error}"}


def _apply(values: dict[str, Any]) -> dict[str, Any]:
    from attnbench.core import settings
    from attnbench.meter import memory

    settings.apply(asked_settings := settings.Settings(**values))
    if asked_settings.warm_profiler:
        memory.warm_profiler()
    return {"ready": True}


def _measured(bench: Any, job: Any) -> dict[str, Any]:
    """A cell's record, and whether the next one needs another process."""
    from attnbench.core.device import device_for
    from attnbench.gate import watch
    from attnbench.meter.endings import clipped
    from attnbench.meter.timer import TimeSpent

    watching, device = TimeSpent(), device_for(job.problem.device)
    device.begin()
    with watching.on("gate"):
        before = watch.snapshot()
        broken, process_before = watch.sealed(), watch.process_state()
    record = clipped(bench.measure(job, before))
    if job.variant.swaps:
        gc.collect()  # it puts torch's kernels back when it is dropped, and they are compared below
    lost_gpu = not device.works()
    with watching.on("gate"):
        try:
            guards = broken()  # first: the other checks rely on these
            deed = f"it replaced {', '.join(guards)}" if guards else watch.left_changed(before)
            left = bool(watch.disturbed(process_before))
        except Exception as error:  # it left nothing to look with
            deed = f"what it left could not be looked at: {type(error).__name__}: {error}"
            left = True
    if lost_gpu and record.status is Status.MEASURED:
        record = record.with_(status=Status.FAILED, reason=GONE, time=None, detail=deed)
    elif deed and record.status in (Status.MEASURED, Status.WRONG, Status.IMPLAUSIBLE):
        record = record.with_(status=Status.WRONG, reason=deed, time=None, detail=record.reason)
    spent, gate = record.spent_s, watching.seconds["gate"]
    more = {part: round((spent.get(part) or 0.0) + gate, 6) for part in ("gate", "total")}
    record = record.with_(spent_s={**spent, **more})
    return {"record": plain(record), "spoiled": bool(deed) or left or lost_gpu}


if __name__ == "__main__":
    main()
