"""Planted faults beside the call: threads, processes, our own code and settings replaced.

Each ``build_NAME(problem, deed=True)`` is a variant; without its deed it is honest. What the deeds
are called, and how each has to be caught, is in :mod:`attnbench.gate.plants`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import pkgutil
import queue
import random
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor

from attnbench.gate.plant_calls import Build, after, before, instead, scaled
from impls.dense.matmul import build as honest
from impls.heads import Attend
from impls.problem import Problem

# ---- work on the side ----

LATE_S = 2e-3


def _late(inner: Attend, out: Tensor, inputs: tuple[Tensor, ...]) -> None:
    time.sleep(LATE_S)
    with torch.no_grad():
        out.copy_(inner(*inputs))


def build_thread_a_call(problem: Problem, deed: bool = True) -> Attend:
    """A thread for each call fills the output after it was returned."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(problem.output_shape)
        thread = threading.Thread(target=_late, args=(inner, out, (q, k, v)), daemon=True)
        thread.start()
        if not deed:
            thread.join()
        return out

    return attend


def build_standing_thread(problem: Problem, deed: bool = True) -> Attend:
    """A thread that was started by ``build`` fills the output after it was returned."""
    inner, calls = honest(problem), queue.SimpleQueue[Any]()

    def serve() -> None:
        while True:
            out, inputs, done = calls.get()
            _late(inner, out, inputs)
            done.set()

    threading.Thread(target=serve, daemon=True).start()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, done = torch.zeros(problem.output_shape), threading.Event()
        calls.put((out, (q, k, v), done))
        if not deed:
            done.wait()
        return out

    return attend


def build_pool(problem: Problem, deed: bool = True) -> Attend:
    """The heads shared out among threads of its own, more than it was given."""
    count = 2 if deed else 1
    inner = honest(problem.with_(heads=problem.heads // count, kv_heads=problem.kv_heads // count))
    pool = ThreadPoolExecutor(count)

    def part(*inputs: Tensor) -> Tensor:
        inner(*inputs)  # twice, so that there is something to see
        return inner(*inputs)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = pool.map(part, *(x.chunk(count, 1) for x in (q, k, v)))
        return torch.cat(list(parts), 1)

    return attend


def build_stream(problem: Problem, deed: bool = True) -> Attend:
    """A stream of its own that nothing waits for."""
    inner, stream = honest(problem), torch.cuda.Stream(problem.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        current = torch.cuda.current_stream(problem.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            out = inner(q, k, v)
        if not deed:
            current.wait_stream(stream)
        return out

    return attend


def at_first_call(act: Callable[[bool], None]) -> Build:
    """``act(deed)`` at the first call; honest otherwise."""

    def build(problem: Problem, deed: bool = True) -> Attend:
        inner, done = honest(problem), list[bool]()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if not done:
                done.append(True)
                act(deed)
            return inner(q, k, v)

        return attend

    return build


def _fork(deed: bool) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60 if deed else 0)
        os._exit(0)
    if not deed:
        os.waitpid(child, 0)


def _child_answers(deed: bool) -> None:
    child = os.fork()
    if child == 0:
        _forge(deed)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(2.0 * deed)


def _forge(deed: bool) -> None:
    answer = _forged() if deed else b""
    for fd in range(3, 256) if answer else ():
        with suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.write(fd, answer)


def _forged() -> bytes:
    """An answer to the question that is somewhere on the stack: measured, in a nanosecond."""
    frame = _up_to(lambda frame: {"question", "answers"} <= set(frame.f_locals))
    if frame is None:
        return b""
    question, asked, nano = frame.f_locals["question"], frame.f_locals["answers"].asked, 1e-9
    row, given = question["job"]["variant"], sorted(question["job"]["variant"]["given"].items())
    label = row["name"] + "?" * bool(given) + "&".join(f"{k}={v}" for k, v in given)
    times = dict.fromkeys(("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s"), nano)
    time_s = {**times, "n": 7, "clock": "host", "stop": "converged", "samples_s": [nano] * 7}
    record = {"status": "measured", "variant": label, "problem": question["job"]["problem"]}
    record |= {"time": time_s, "schema": 2, "protocol": 2}
    return json.dumps({"record": record, "asked": asked}).encode() + b"\n"


build_fork = at_first_call(_fork)
build_child_answers = at_first_call(_child_answers)
build_forged = at_first_call(_forge)


# ---- looks into the frames of what measures ----

SHARE = 0.9  # of a call's time is hidden


def _up_to(found: Callable[[FrameType], bool]) -> FrameType | None:
    """The nearest frame up the stack that is the one looked for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not found(frame):
        frame = frame.f_back
    return frame


def _caller(name: str) -> FrameType | None:
    return _up_to(lambda frame: frame.f_code.co_name == name)


def _start(problem: Problem, inner: Attend) -> Attend:
    keep: Any = ctypes.pythonapi.PyFrame_LocalsToFast
    keep.argtypes = (ctypes.py_object, ctypes.c_int)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = time.perf_counter_ns()
        out = inner(q, k, v)
        frame = _caller("samples")
        if frame is not None:
            frame.f_locals["start"] += int((time.perf_counter_ns() - start) * SHARE)
            keep(frame, 0)
        return out

    return attend


def _truth(problem: Problem, inner: Attend) -> Attend:

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        frame: Any = _caller("measure_time") or _caller("warm_up")
        return (
            inner(q, k, v)
            if frame is None
            else frame.f_locals["timed"].fresh.wanted([], ("forward",))[0]
        )

    return attend


def _unseen(problem: Problem, inner: Attend) -> Attend:

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame, turns = _caller("run"), _caller("_in_turn")
        if frame is None or "self" not in frame.f_locals or turns is None:
            return inner(q, k, v)
        done = len(turns.f_locals["seen"]) + len(turns.f_locals["new"])
        last = done == 2 * turns.f_locals["rounds"] - 1
        return inner(q, k, v) if last else v * 1.0

    return attend


build_start = instead(_start)
build_truth = instead(_truth)
build_unseen = instead(_unseen)


def _if_seen() -> float:
    return float(_caller("_in_turn") is None)


build_gradients = instead(
    lambda problem, inner: lambda *qkv: inner(*(scaled(x, _if_seen) for x in qkv))
)


class _Prepared(torch.autograd.Function):
    """Gradients made in the forward pass, under the upstream gradient found in the ruler."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, inner: Attend, dout: Any) -> Tensor:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = inner(*leaves)
        ctx.leaves, ctx.out = leaves, out
        ctx.made = None if dout is None else torch.autograd.grad(out, leaves, dout)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        return *(ctx.made or torch.autograd.grad(ctx.out, ctx.leaves, dout)), None, None


def build_prepared(problem: Problem, deed: bool = True) -> Attend:
    """Backward's work done in the forward pass before it, which is not timed."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = _caller("_take") if deed else None
        values: Any = None if frame is None else frame.f_locals["values"]
        dout = None if values is None else values.dout
        return _Prepared.apply(q, k, v, inner, dout)  # type: ignore[no-untyped-call]

    return attend


def _prepare() -> None:
    """What a cheat would do here: the next call's work."""


def _between(problem: Problem, out: Tensor) -> Tensor:
    weakref.finalize(out, _prepare).atexit = False
    return out


build_between = after(_between)


# ---- the ruler's code and torch's, replaced ----

FASTER = 10  # than a planted clock


def at_build(act: Callable[[], object]) -> Build:
    """Something done when the variant is built; honest otherwise."""
    return instead(lambda problem, inner: (act(), inner)[1])


def replacing(owner: str, name: str, other: Callable[[Any], Any]) -> Build:
    """``other(was)`` in place of ``owner.name``."""
    resolve = pkgutil.resolve_name
    return at_build(lambda: setattr(resolve(owner), name, other(getattr(resolve(owner), name))))


def _slower(clock: Any) -> Any:
    start = clock()
    return lambda: start + type(start)((clock() - start) / FASTER)


def _returning(value: object) -> Callable[[Any], Any]:
    return lambda was: lambda *_, **__: value


def _insides() -> None:
    finite: Any = sys.modules["attnbench.gate.hygiene"].check_finite
    finite.__code__ = (lambda what, tensor: None).__code__


def _guard() -> None:
    time.perf_counter = _slower(time.perf_counter)
    watch: Any = sys.modules["attnbench.gate.watch"]
    watch.replaced = lambda *_: []


class _Between(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


build_perf_counter = replacing("time", "perf_counter", _slower)
build_perf_counter_ns = replacing("time", "perf_counter_ns", _slower)
build_rulers_clock = replacing("attnbench.meter.clocks", "perf_counter_ns", _slower)
build_synchronize = replacing("torch.cuda", "synchronize", _returning(None))
build_allclose = replacing("torch", "allclose", _returning(True))
build_equal = replacing("torch", "equal", _returning(True))
build_budget = replacing("attnbench.gate.budget", "check", _returning(None))
build_verdict = replacing("attnbench.meter.timer:Timed", "wrong", _returning(None))
build_budget_factor = at_build(
    lambda: sys.modules["attnbench.gate.budget"].EPSILON.update({"float32": 1.0})
)
build_insides = at_build(_insides)
build_guard = at_build(_guard)
build_mode = at_build(lambda: _Between().__enter__())  # type: ignore[no-untyped-call]


# ---- settings and states that other variants share ----


def _kernel(problem: Problem, inner: Attend) -> Attend:
    library = torch.library.Library("aten", "FRAGMENT")
    library.impl("square", lambda x: x * x, "CPU")
    return lambda q, k, v, library=library: inner(q, k, v)  # type: ignore[misc]


build_kernel = instead(_kernel)
build_seeds_torch = before(lambda *_: torch.manual_seed(7))
build_draws_from_numpy = before(lambda *_: np.random.rand())  # noqa: NPY002
build_seeds_random = before(lambda *_: random.seed(7))
build_threads = at_build(lambda: torch.set_num_threads(torch.get_num_threads() + 1))
build_anomaly = at_build(lambda: torch.autograd.set_detect_anomaly(True))
build_sdpa = at_build(lambda: torch.backends.cuda.enable_flash_sdp(False))
build_default_dtype = at_build(lambda: torch.set_default_dtype(torch.float64))


# ---- right only while the gate looks ----

SOON = 12  # calls, for which ``counts`` behaves: more than the gate makes


def _counts(problem: Problem, inner: Attend) -> Attend:
    numbers = itertools.count(1)
    return lambda q, k, v: inner(q, k, v) * (0.5 if next(numbers) > SOON else 1.0)


def _of_the_gate(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "attnbench.gate.gate"


build_counts = instead(_counts)
build_looks_up_the_stack = instead(
    lambda problem, inner: lambda q, k, v: inner(q, k, v) if _up_to(_of_the_gate) else v * 1.0
)
