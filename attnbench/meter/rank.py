"""One of the processes that share a call: it joins the others, builds variants, and times its part.

The time is between two readings of its own clock, after all ranks have met at a barrier that is
not the variant's. Before that it takes its share of the inputs; its results are copied the moment
that the clock has stopped, so nothing can be filled in afterwards.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.core import settings
from attnbench.core.lock import collector_off
from attnbench.gate import watch
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_form
from attnbench.gate.inputs import Attend, Call, Inputs
from attnbench.meter import memory
from attnbench.meter.cell import failure
from attnbench.meter.clocks import cuda_gpu
from attnbench.meter.ranks import EXCHANGE, Pages, note_of
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

PATIENCE = timedelta(minutes=30)
"""For the others, in an exchange: longer than the worker's for any of them."""

REST_S, LOOK_S, STILL = 2.0, 1e-3, 3
"""How long at most other threads are waited for, and how often in a row they must be at rest."""

_barrier, _synchronize = dist.barrier, torch.cuda.synchronize


def _threads_rest() -> None:
    """Wait until no other thread is at work or about to be.

    A thread of gloo's that has reported the end of an exchange still has to free its tensors, and
    the profiler crashes if it ends before that.
    """
    myself, still = threading.get_native_id(), 0
    until = monotonic() + REST_S
    while still < STILL and monotonic() < until:
        sleep(LOOK_S)
        others = (t for t in Path("/proc/self/task").iterdir() if int(t.name) != myself)
        still = 0 if any(_runs(thread) for thread in others) else still + 1


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False


class RankPart:
    """A variant, built by this rank for its share: its tokens, and the problem with those alone."""

    def __init__(self, whole: Problem, places: Sequence[int], device: str, pages: Pages) -> None:
        n = len(places)
        self.problem = whole.with_(q_len=n, kv_len=n, mask=Mask(), device=device)
        self._pages, self._places = pages, torch.tensor(places)
        self.out: Tensor | None = None
        self.dout = self.take("dout") if self.problem.gradients else None

    def built(self, attend: Attend, ranks: Any, before: dict[str, Any]) -> None:
        """Keep what was built, with what was there before."""
        self.attend, self.ranks, self.before = attend, ranks, before
        self.call = Call(self.problem, attend, self.inputs())

    def take(self, name: str) -> Tensor:
        """The share of a tensor that the worker wrote."""
        return self._pages[name].index_select(2, self._places).to(self.problem.device)

    def inputs(self) -> Inputs:
        """Queries, keys and values of the rank's tokens."""
        return Inputs(*(self.take(name) for name in Inputs._fields))

    def put(self, name: str, result: Tensor) -> None:
        """Write a result to its place in the whole."""
        self._pages[name].index_copy_(2, self._places, result.detach().cpu())

    def check_kept(self, inputs: Inputs, versions: Sequence[int]) -> None:
        """Raise where the variant wrote to its share of the inputs."""
        kept = zip(Inputs._fields, self.call.leaves, inputs, versions, strict=True)
        for name, leaf, given, version in kept:
            if not torch.equal(leaf.detach(), given):
                raise Wrong(f"it changed its input {name}")
            if leaf._version != version:
                raise Wrong(f"it wrote to its input {name} and put it back")


class Member:
    """This rank among the others, and what it has built."""

    def __init__(self) -> None:
        self._parts: dict[int, RankPart] = {}
        self._warm = False
        self._rank, self._world, self._device = 0, 1, "cpu"
        self._own: Any = None
        """The group at whose barrier all meet: no variant gets it."""

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question."""
        for number in question["over"]:
            self._parts.pop(number, None)
        match question["do"]:
            case "join":
                return self._join(question)
            case "load":
                load_function(question["build"])
            case "build":
                return self._build(question)
            case "look":
                watch.check(self._parts[question["of"]].before)
            case "forward" | "backward" | "observe" as deed:
                done: dict[str, Any] = getattr(self, f"_{deed}")(self._parts[question["of"]])
                return done
        return {}

    def _join(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Meet the others through a file that only the team's processes hold."""
        self._rank, self._world = question["rank"], question["world"]
        settings.apply(settings.Settings(**question["settings"]))
        if question["device"] != "cpu":
            self._device = f"cuda:{self._rank}"
            torch.cuda.set_device(self._device)
        file = os.open(question["file"], os.O_RDWR)  # for good: the store opens it again and again
        store = dist.FileStore(f"/proc/self/fd/{file}", self._world)
        dist.init_process_group(
            question["backend"],
            store=store,
            rank=self._rank,
            world_size=self._world,
            timeout=PATIENCE,
        )
        self._own = dist.new_group(backend="gloo", timeout=PATIENCE)
        _barrier(group=self._own)
        return {}

    def _build(self, question: Mapping[str, Any]) -> dict[str, Any]:
        from impls.parallel.ranks import Ranks

        row = Variant.from_dict(question["variant"])
        problem = Problem.from_dict(question["problem"])
        file = os.open(question["file"], os.O_RDWR)
        pages = Pages(problem, file)
        os.close(file)
        assert row.shares is not None
        places = load_function(row.shares)(problem, self._world)[self._rank]
        part, ranks = RankPart(problem, places, self._device, pages), Ranks(self._rank, self._world)
        options = {name: value for name, value in row.chosen.items() if name != "world"}
        build, here = load_function(row.build), problem.with_(device=self._device)
        before = watch.snapshot()
        attend = build(here, ranks, **options)
        if not callable(attend):
            raise TypeError(f"build returned {attend!r}; it must return attend(q, k, v)")
        part.built(attend, ranks, before)
        self._parts[question["of"]] = part
        return {"note": note_of(attend)}

    def _forward(self, part: RankPart) -> dict[str, Any]:
        part.out, inputs = None, part.inputs()
        part.call.load(inputs)
        versions = [leaf._version for leaf in part.call.leaves]
        seconds, sent, out = self._timed(part, part.call.forward)
        out = check_form(part.problem, out)
        part.put("out", out)
        part.check_kept(inputs, versions)
        part.out = out
        return {"seconds": seconds, "sent": sent}

    def _backward(self, part: RankPart) -> dict[str, Any]:
        out, dout = part.out, part.dout
        assert out is not None and dout is not None
        dout.copy_(part.take("dout"))
        seconds, sent, gradients = self._timed(part, lambda: part.call.backward(out, dout))
        for name, gradient in zip(part.call.names, gradients, strict=True):
            part.put(name, gradient)
        part.out = None
        return {"seconds": seconds, "sent": sent}

    def _timed(self, part: RankPart, run: Callable[[], Any]) -> tuple[float, int, Any]:
        """Seconds of a call from when all ranks begin, bytes sent meanwhile, what it returned."""
        cuda, now = self._device != "cpu", perf_counter_ns
        if cuda:
            cuda_gpu(self._device).flush()  # as cold as one process alone is timed
        with collector_off():
            sent = part.ranks.sent
            if cuda:
                _synchronize(self._device)  # first: a flush goes on after the barrier
            _barrier(group=self._own)
            start = now()
            result = run()
            if cuda:
                _synchronize(self._device)
            return (now() - start) * 1e-9, part.ranks.sent - sent, result

    def _observe(self, part: RankPart) -> dict[str, Any]:
        """One call under the profiler; all ranks make as many calls, whatever each of them sees."""
        part.out = None
        if not self._warm:
            memory.warm_profiler()
            self._warm = True
        dout = part.take("dout") if part.problem.gradients else None
        given = part.problem, part.attend, part.inputs(), dout, None
        seen = memory.observe(*given, sure=1, settle=_threads_rest)
        for name, result in seen.results.items():
            part.put("out" if name == "forward" else name, result)
        return {"memory": seen.memory.to_dict(), "kernels": seen.kernels, "ran": sorted(seen.ran)}


def answer(member: Member, question: Mapping[str, Any]) -> dict[str, Any]:
    """``{"done": …}``, or what went wrong; one that takes too long writes where it stands."""
    faulthandler.dump_traceback_later(question["limit_s"])
    try:
        return {"done": member.answer(question)}
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except Unsupported as why:
        return {"unsupported": str(why)}
    except Unavailable as why:
        return {"unavailable": [why.reason, why.remedy]}
    except Exception as error:
        failed = failure(error)
        return {"failed": failed, "exchanging": bool(EXCHANGE.search(failed.get("detail", "")))}
    finally:
        faulthandler.cancel_dump_traceback_later()
