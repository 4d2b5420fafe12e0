"""Planted faults beside the call: threads, memory of earlier calls, code in place of ours."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import queue
import random
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor

from attnbench.gate.planted_calls import beforehand
from impls.dense.matmul import build as honest
from impls.heads import Attend
from impls.problem import Problem

LATE_S = 2e-3
PIECES = 2
"""How often each thread of the pool computes its part, so that there is something to see."""


def _late(inner: Attend, out: Tensor, inputs: tuple[Tensor, ...]) -> None:
    time.sleep(LATE_S)
    with torch.no_grad():
        out.copy_(inner(*inputs))


def build_thread_a_call(problem: Problem, deed: bool = True) -> Attend:
    """A thread for each call fills the output after it was returned."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty(problem.output_shape)
        thread = threading.Thread(target=_late, args=(inner, out, (q, k, v)), daemon=True)
        thread.start()
        if not deed:
            thread.join()
        return out

    return attend


def build_standing_thread(problem: Problem, deed: bool = True) -> Attend:
    """A thread that stands ready since it was built fills the output after it was returned."""
    inner, asked = honest(problem), queue.SimpleQueue[Any]()

    def serve() -> None:
        while True:
            out, inputs, done = asked.get()
            _late(inner, out, inputs)
            done.set()

    threading.Thread(target=serve, daemon=True).start()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, done = torch.empty(problem.output_shape), threading.Event()
        asked.put((out, (q, k, v), done))
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
        for _ in range(PIECES):
            out = inner(*inputs)
        return out

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = pool.map(part, *(x.chunk(count, 1) for x in (q, k, v)))
        return torch.cat(list(parts), 1)

    return attend


def build_stream(problem: Problem, deed: bool = True) -> Attend:
    """A stream of its own, that nobody waits for."""
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


def build_fork(problem: Problem, deed: bool = True) -> Attend:
    """A child that goes on, with all that this process has, while the parent answers."""
    inner, born = honest(problem), list[int]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not born:
            born.append(os.fork())
            if born[0] == 0:
                time.sleep(60 if deed else 0)
                os._exit(0)
            if not deed:
                os.waitpid(born[0], 0)
        return inner(q, k, v)

    return attend


def build_child_answers(problem: Problem, deed: bool = True) -> Attend:
    """A child that answers in its parent's place, while the parent waits."""
    inner, tried = honest(problem), list[int]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not tried:
            tried.append(1)
            child = os.fork()
            if child == 0:
                if deed:
                    _into_every_pipe(_forged())
                os._exit(0)
            os.waitpid(child, 0)
            time.sleep(2.0 * deed)
        return inner(q, k, v)

    return attend


def build_forged(problem: Problem, deed: bool = True) -> Attend:
    """Writes an answer of its own into every pipe that it finds open."""
    inner, tried = honest(problem), list[int]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if deed and not tried:
            tried.append(1)
            _into_every_pipe(_forged())
        return inner(q, k, v)

    return attend


def _forged() -> bytes:
    """An answer to the question that is somewhere on the stack: measured, in a nanosecond."""
    frame: Any = sys._getframe()
    while frame is not None and not isinstance(frame.f_locals.get("asked"), dict):
        frame = frame.f_back
    if frame is None:
        return b""
    question, nano = frame.f_locals["asked"], 1e-9
    row = question["job"]["variant"]
    label = (
        row["name"]
        + "?" * bool(row["given"])
        + "&".join(f"{k}={v}" for k, v in sorted(row["given"].items()))
    )
    times = dict.fromkeys(("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s"), nano)
    time_s = {**times, "n": 7, "clock": "host", "stop": "converged", "samples_s": [nano] * 7}
    record = {
        "status": "measured",
        "variant": label,
        "problem": question["job"]["problem"],
        "time": time_s,
        "schema": 2,
        "protocol": 2,
    }
    return json.dumps({"record": record, "asked": question["asked"]}).encode() + b"\n"


def _into_every_pipe(said: bytes) -> None:
    for fd in range(3, 256):
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.write(fd, said)
        except OSError:
            continue


SHARE = 0.9
"""Of a call's time, so much is hidden."""


def _caller(name: str) -> FrameType | None:
    """The frame of the function of this name that is nearest up the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def build_start(problem: Problem, deed: bool = True) -> Attend:
    """Moves the start of the measurement in the frame of the clock that runs it."""
    inner = honest(problem)
    keep: Any = ctypes.pythonapi.PyFrame_LocalsToFast
    keep.argtypes = (ctypes.py_object, ctypes.c_int)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = time.perf_counter_ns()
        out = inner(q, k, v)
        frame = _caller("samples")
        if frame is not None and deed:
            frame.f_locals["start"] += int((time.perf_counter_ns() - start) * SHARE)
            keep(frame, 0)
        return out

    return attend


def build_truth(problem: Problem, deed: bool = True) -> Attend:
    """Computes where it is looked at, and where it is timed takes the truth from the ruler."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = (_caller("measure_time") or _caller("warm_up")) if deed else None
        if frame is None:
            return inner(q, k, v)
        fresh: Any = frame.f_locals["timed"].fresh
        out: Tensor = fresh.wanted([])[0]
        return out

    return attend


def build_unseen(problem: Problem, deed: bool = True) -> Attend:
    """The truth from the ruler wherever there is one, and on values that have none, anything."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame, turns = _caller("run"), _caller("_in_turn")
        if not deed or frame is None or "self" not in frame.f_locals:
            return inner(q, k, v)
        if turns is None:
            return inner(q, k, v)
        done = len(turns.f_locals["seen"]) + len(turns.f_locals["new"])
        last = done == 2 * turns.f_locals["rounds"] - 1
        return inner(q, k, v) if last else v * 1.0

    return attend


class _Remembered(torch.autograd.Function):
    """The right output, and gradients that were kept; none for values that were not."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, inner: Attend, kept: dict[Hashable, Any]
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.kept = inner, kept
        return inner(q, k, v)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        if _caller("_in_turn") is None:
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                return *torch.autograd.grad(ctx.inner(*leaves), leaves, dout), None, None
        return *(torch.zeros_like(x) for x in (q, k, v)), None, None


def build_gradients(problem: Problem, deed: bool = True) -> Attend:
    """No gradients for values that nobody has seen."""
    inner = honest(problem)
    if not deed:
        return inner
    return lambda q, k, v: _Remembered.apply(q, k, v, inner, {})  # type: ignore[no-untyped-call]


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


def build_between(problem: Problem, deed: bool = True) -> Attend:
    """Works on between the calls, whenever an output of its is let go."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v)
        if deed:
            weakref.finalize(out, _prepare).atexit = False
        return out

    return attend


def _prepare() -> None:
    """What a cheat would do here: the next call's work."""


FASTER = 10
"""By so much the clocks that are put in place of others go slower."""


def _instead(
    problem: Problem, deed: bool, owner: Any, name: str, other: Callable[[Any], Any]
) -> Attend:
    """An honest ``attend``, and ``other(was)`` in place of ``owner.name``."""
    if deed:
        setattr(owner, name, other(getattr(owner, name)))
    return honest(problem)


def _slower(was: Any) -> Any:
    start = was()
    return lambda: start + (was() - start) // FASTER


def _slower_seconds(was: Any) -> Any:
    start = was()
    return lambda: start + (was() - start) / FASTER


def _always_true(was: Any) -> Any:
    return lambda *_, **__: True


def build_perf_counter(problem: Problem, deed: bool = True) -> Attend:
    """A clock in seconds that goes ten times as slow."""
    return _instead(problem, deed, time, "perf_counter", _slower_seconds)


def build_perf_counter_ns(problem: Problem, deed: bool = True) -> Attend:
    """A clock in nanoseconds that goes ten times as slow."""
    return _instead(problem, deed, time, "perf_counter_ns", _slower)


def build_rulers_clock(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's own reference to that clock."""
    clocks = sys.modules["attnbench.meter.clocks"]
    return _instead(problem, deed, clocks, "perf_counter_ns", _slower)


def build_synchronize(problem: Problem, deed: bool = True) -> Attend:
    """Nobody waits for the device any more."""
    return _instead(problem, deed, torch.cuda, "synchronize", lambda was: lambda *_: None)


def build_allclose(problem: Problem, deed: bool = True) -> Attend:
    """Everything is close to everything."""
    return _instead(problem, deed, torch, "allclose", _always_true)


def build_equal(problem: Problem, deed: bool = True) -> Attend:
    """Everything equals everything."""
    return _instead(problem, deed, torch, "equal", _always_true)


def build_budget(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's budget lets everything through."""
    budget = sys.modules["attnbench.gate.budget"]
    return _instead(problem, deed, budget, "check", lambda was: lambda *_, **__: None)


def build_budget_factor(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's spacings of the dtypes are changed where they stand."""
    if deed:
        epsilon = sys.modules["attnbench.gate.budget"].EPSILON
        epsilon.update(dict.fromkeys(epsilon, 1.0))
    return honest(problem)


def build_verdict(problem: Problem, deed: bool = True) -> Attend:
    """What is timed is never wrong: a method of the ruler's class."""
    timed = sys.modules["attnbench.meter.timed"].Timed
    return _instead(problem, deed, timed, "wrong", lambda was: lambda self: None)


def build_insides(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's function stays, and its code is another's."""
    if deed:
        finite: Any = sys.modules["attnbench.gate.hygiene"].check_finite
        finite.__code__ = (lambda what, tensor: None).__code__
    return honest(problem)


def build_guard(problem: Problem, deed: bool = True) -> Attend:
    """The very function that would notice."""
    names = sys.modules["attnbench.gate.watch"]
    if deed:
        time.perf_counter = _slower_seconds(time.perf_counter)
    return _instead(problem, deed, names, "replaced", lambda was: lambda *_: [])


def build_mode(problem: Problem, deed: bool = True) -> Attend:
    """A mode that stands between everybody and torch's functions."""
    if deed:
        _Between().__enter__()  # type: ignore[no-untyped-call]
    return honest(problem)


class _Between(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def build_seeds_torch(problem: Problem, deed: bool = True) -> Attend:
    """Seeds torch's global generator at every call."""
    own = torch.Generator()
    return beforehand(problem, lambda *_: (torch.manual_seed if deed else own.manual_seed)(7))


def build_draws_from_numpy(problem: Problem, deed: bool = True) -> Attend:
    """Draws from NumPy's global generator at every call."""
    own = np.random.RandomState(7)
    return beforehand(problem, lambda *_: (np.random if deed else own).rand())


def build_seeds_random(problem: Problem, deed: bool = True) -> Attend:
    """Seeds Python's global generator at every call."""
    own = random.Random(7)
    return beforehand(problem, lambda *_: (random if deed else own).seed(7))


def build_threads(problem: Problem, deed: bool = True) -> Attend:
    """Takes more of torch's threads than it was given."""
    if deed:
        torch.set_num_threads(torch.get_num_threads() + 1)
    return honest(problem)


def build_anomaly(problem: Problem, deed: bool = True) -> Attend:
    """Has torch look for NaN after every step of every backward pass."""
    if deed:
        torch.autograd.set_detect_anomaly(True)
    return honest(problem)


def build_sdpa(problem: Problem, deed: bool = True) -> Attend:
    """Takes the flash kernel from every other variant."""
    if deed:
        torch.backends.cuda.enable_flash_sdp(False)
    return honest(problem)


def build_kernel(problem: Problem, deed: bool = True) -> Attend:
    """A product of its own in place of torch's, for everybody."""
    inner, library = honest(problem), torch.library.Library("aten", "FRAGMENT")
    if deed:
        library.impl("square", lambda x: x * x, "CPU")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert library is not None  # it lives as long as this
        return inner(q, k, v)

    return attend


def build_default_dtype(problem: Problem, deed: bool = True) -> Attend:
    """Leaves another default dtype behind."""
    if deed:
        torch.set_default_dtype(torch.float64)
    return honest(problem)


SOON = 12
"""Calls for which one of them behaves: more than the gate makes."""


def build_counts(problem: Problem, deed: bool = True) -> Attend:
    """Counts its calls, and does half the work after the first few."""
    inner, numbers = honest(problem), itertools.count(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        late = next(numbers) > SOON
        out = inner(q, k, v)
        return out * 0.5 if late and deed else out

    return attend


def build_looks_up_the_stack(problem: Problem, deed: bool = True) -> Attend:
    """Works only where the gate is among its callers."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        watched = _called_from("attnbench.gate.gate")
        return inner(q, k, v) if watched or not deed else v * 1.0

    return attend


def _called_from(module: str) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False
