"""One of the processes that share a call: it joins the others, builds variants, and times its part.

The time is between two readings of its own clock, after all ranks have met at a barrier that is
not the variant's. Before that it takes its share of the inputs; its results are copied the moment
that the clock has stopped, so nothing can be filled in afterwards.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.core import settings
from attnbench.core.device import device_for
from attnbench.core.lock import collector_off
from attnbench.core.wire import convert, plain
from attnbench.gate import watch
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_form, check_inputs_kept, wait_for_quiet
from attnbench.gate.inputs import TOKENS, Attend, Call, Inputs
from attnbench.meter import memory
from attnbench.meter.endings import failure
from attnbench.meter.ranks import PAGES, note_of, pages
from impls.loading import load_function
from impls.masks import Mask
from impls.operators import QKV
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

PATIENCE = timedelta(minutes=30)
"""For the others, in an exchange: longer than the worker's for any of them."""
_barrier = dist.barrier


class RankPart:
    """A variant, built by this rank for its share: its tokens, and the problem with those alone."""

    attend: Attend
    call: Call

    def __init__(
        self, whole: Problem, places: Sequence[int], device: str, tensors: Mapping[str, Tensor]
    ) -> None:
        n = len(places)
        self.problem = whole.with_(q_len=n, kv_len=n, mask=Mask(), device=device)
        self._pages, self._places = tensors, torch.tensor(places)
        self.out: Tensor | None = None
        self.dout = self.take("dout") if self.problem.gradients else None
        self.ranks: Any = None
        self.before: dict[str, Any] = {}

    def take(self, name: str) -> Tensor:
        """The share of a tensor that the worker wrote."""
        share = self._pages[name].index_select(self._tokens(name), self._places)
        return share.to(self.problem.device)

    def inputs(self) -> Inputs:
        """The inputs of the rank's tokens."""
        return Inputs({name: self.take(name) for name in QKV}, QKV)

    def put(self, name: str, result: Tensor) -> None:
        """Write a result to its place in the whole."""
        self._pages[name].index_copy_(self._tokens(name), self._places, result.detach().cpu())

    @staticmethod
    def _tokens(name: str) -> int:
        """The axis along which a tensor is shared out."""
        axes = PAGES[name].axes
        return next(axes.index(axis) for axis in TOKENS if axis in axes)


class Member:
    """This rank among the others, and what it has built."""

    def __init__(self) -> None:
        self._parts: dict[int, RankPart] = {}
        self._warm = False
        self._number, self._world, self._device = 0, 1, "cpu"
        self._own: Any = None  # the group at whose barrier all meet: no variant gets it

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question."""
        for number in question["over"]:
            self._parts.pop(number, None)
        match question["rank"]:
            case "join":
                self._join(question)
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

    def _join(self, question: Mapping[str, Any]) -> None:
        """Meet the others through a file that only the team's processes hold."""
        self._number, self._world = question["number"], question["world"]
        settings.apply(settings.Settings(**question["settings"]))
        if device_for(question["device"]).queued:
            self._device = f"{question['device']}:{self._number}"
        device_for(self._device).begin()
        file = os.open(question["file"], os.O_RDWR)  # for good: the store opens it again and again
        store = dist.FileStore(f"/proc/self/fd/{file}", self._world)
        place: dict[str, Any] = {"rank": self._number, "world_size": self._world}
        dist.init_process_group(question["backend"], store=store, timeout=PATIENCE, **place)
        self._own = dist.new_group(backend="gloo", timeout=PATIENCE)
        _barrier(group=self._own)

    def _build(self, question: Mapping[str, Any]) -> dict[str, Any]:
        from impls.parallel.ranks import Ranks

        row = convert(question["variant"], Variant)
        problem = convert(question["problem"], Problem)
        tensors = pages(problem, question["file"])
        assert row.shares is not None
        places = load_function(row.shares)(problem, self._world)[self._number]
        part = RankPart(problem, places, self._device, tensors)
        part.ranks = Ranks(self._number, self._world)
        options = {name: value for name, value in row.chosen.items() if name != "world"}
        build, here = load_function(row.build), problem.with_(device=self._device)
        part.before = watch.snapshot()
        part.attend = build(here, part.ranks, **options)
        if not callable(part.attend):
            raise TypeError(f"build returned {part.attend!r}; it must return attend(q, k, v)")
        part.call = Call(part.problem, part.attend, part.inputs())
        self._parts[question["of"]] = part
        return {"note": note_of(part.attend)}

    def _forward(self, part: RankPart) -> dict[str, Any]:
        """One forward pass; raises where the variant wrote to its share of the inputs."""
        part.out, inputs = None, part.inputs()
        part.call.load(inputs)
        versions = {name: leaf._version for name, leaf in part.call.leaves.items()}
        timing, out = self._timed(part, part.call.forward)
        out = check_form(part.problem, out)
        part.put("out", out)
        for name, x in part.call.besides.items():
            part.put(name, check_form(part.problem, x, name))
        check_inputs_kept(part.call, inputs, versions)
        part.out = out
        return timing

    def _backward(self, part: RankPart) -> dict[str, Any]:
        out, dout = part.out, part.dout
        assert out is not None and dout is not None
        dout.copy_(part.take("dout"))
        above = [part.take(f"d{name}") for name in part.call.besides]
        timing, gradients = self._timed(part, lambda: part.call.backward(out, dout, above))
        for name, gradient in zip(part.call.names, gradients, strict=True):
            part.put(name, gradient)
        part.out = None
        return timing

    def _timed(self, part: RankPart, run: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        """Seconds of a call from when all ranks begin, bytes sent meanwhile, and what it gave."""
        device, now = device_for(self._device), perf_counter_ns
        if device.queued:
            device.flush()  # as cold as one process alone is timed
        with collector_off():
            sent = part.ranks.sent
            device.synchronize()  # first: a flush goes on after the barrier
            _barrier(group=self._own)
            start = now()
            result = run()
            device.synchronize()
            seconds = (now() - start) * 1e-9
            return {"seconds": seconds, "sent": part.ranks.sent - sent}, result

    def _observe(self, part: RankPart) -> dict[str, Any]:
        """One call under the profiler; all ranks make as many calls, whatever each of them sees.

        A thread of gloo's that has reported the end of an exchange still has to free its tensors,
        and the profiler crashes if it ends before that.
        """
        part.out = None
        if not self._warm:
            memory.warm_profiler()
            self._warm = True
        dout = part.take("dout") if part.problem.gradients else None
        parts = part.problem, part.attend, part.inputs(), dout, None
        view = memory.observe(*parts, sure=1, settle=wait_for_quiet)
        for name, result in view.results.items():
            part.put("out" if name == "forward" else name, result)
        return {
            "memory": plain(view.memory),
            "kernels": view.kernels,
            "ran": sorted(view.ran),
        }


MEMBER = Member()  # what this process is


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """``{"done": …}``, or what went wrong; one that takes too long writes where it stands."""
    faulthandler.dump_traceback_later(question["limit_s"])
    try:
        return {"done": MEMBER.answer(question)}
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except Unsupported as why:
        return {"unsupported": str(why)}
    except Unavailable as why:
        return {"unavailable": [why.reason, why.remedy]}
    except Exception as error:
        return {"failed": failure(error)}
    finally:
        faulthandler.cancel_dump_traceback_later()
