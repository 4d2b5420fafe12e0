"""The code of the planted faults of :mod:`attnbench.gate.plants`.

Each ``build_NAME(problem)`` is a variant.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import pkgutil
import queue
import random
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor

from impls.dense.exp_naive import build as exponentials
from impls.dense.matmul import build as honest
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import Problem
from impls.sparse.moba import Moba

Build = Callable[..., Attend]


def instead(other: Callable[[Problem, Attend], Attend]) -> Build:
    """What ``other(problem, inner)`` makes of an honest ``attend``, in its place."""
    return lambda problem: other(problem, honest(problem))


def before(act: Callable[[Tensor, Tensor, Tensor], object]) -> Build:
    """Something done at every call, and then the right output."""
    return instead(lambda problem, inner: lambda q, k, v: (act(q, k, v), inner(q, k, v))[1])


def after(change: Callable[[Problem, Tensor], Tensor]) -> Build:
    """The right output, and then something done to it."""
    return instead(lambda problem, inner: lambda q, k, v: change(problem, inner(q, k, v)))


# ---- masks ----


def masked(text: str) -> Build:
    """Attention under another mask; ``{}`` in its text is the number of the last key."""
    return instead(
        lambda problem, inner: honest(
            problem.with_(mask=Mask.parse(text.format(problem.kv_len - 1)))
        )
    )


def _inverted(problem: Problem, inner: Attend) -> Attend:
    visible = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT * problem.scale).masked_fill(visible, -torch.inf)
        return scores.softmax(-1).nan_to_num() @ v

    return attend


build_inverted = instead(_inverted)
build_ignored = masked("none")
build_upper_left = masked("causal@upper-left")
build_window_left = masked("window:4,2")
build_window_right = masked("window:3,3")
build_last_key_dropped = masked("padding:{}")


# ---- values ----

LONG = 64  # beyond which ``past_a_length`` is wrong


def _nan(problem: Problem, inner: Attend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v).clone()
        if bool(q.detach().abs().max() > 1):  # only where the inputs are of ordinary size
            out[0, 0, 5] = torch.nan
        return out

    return attend


build_nothing = instead(lambda problem, inner: inner)
build_one_head = after(lambda problem, out: torch.cat((out[:, :-1], out[:, -1:] * 1.001), 1))
build_odd_lengths = after(lambda problem, out: out * (1.02 if problem.kv_len % 2 else 1.0))
build_past_a_length = after(
    lambda problem, out: torch.cat((out[:, :, :LONG], out[:, :, LONG:] * 1.02), 2)
)
build_nan = instead(_nan)
build_half_inside = instead(
    lambda problem, inner: lambda *qkv: inner(*(x.bfloat16() for x in qkv)).to(qkv[0].dtype)
)
build_overflows = instead(lambda problem, inner: exponentials(problem))
build_zeros = after(lambda problem, out: out * 0.0)


# ---- selections ----


class _Likes(Moba):
    """Selects by other scores than it should."""

    def __init__(self, problem: Problem, block: int, top: int, other: Callable[..., Tensor]):
        super().__init__(problem, block, top)
        self.other = other

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Iterator[Tensor]:
        """Those, of blocks that may be picked or left out."""
        for scores in super().scores(q_bhnd, k_bcmd, **more):
            yield torch.where(scores.isfinite(), self.other(scores), scores)


class _Untold(Moba):
    """Attends to other blocks than it says."""

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, **more: Tensor) -> Tensor:
        other = build_picks_least(self.problem, self.block, self.count)
        return other(q_bhnd, k_bcmd, v_bcme)


def build_picks_later(problem: Problem, block: int, top: int) -> Attend:
    """Of scores that tie it takes the later block's."""
    return _Likes(problem, block, top, lambda s: s + torch.linspace(0, 1e-6, s.shape[-1]))


def build_picks_least(problem: Problem, block: int, top: int) -> Attend:
    """Takes the least where it should take the largest."""
    return _Likes(problem, block, top, torch.neg)


build_picks_untold = _Untold


# ---- gradients ----


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient that is so many times what it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Callable[[], float]) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor(), None


def scaled(x: Tensor, factor: Callable[[], float]) -> Tensor:
    """The same values, with that many times their gradient."""
    out: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]
    return out


def _padding(problem: Problem, inner: Attend) -> Attend:
    """Backward, keys are padded to a block of 128, and what is padded has a score of 0 and a value
    of 0: its weight is not 0, and overflows where a row's own scores are far below zero.
    """
    more = (0, 0, 0, -problem.kv_len % 128)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *qkv: Tensor) -> Tensor:
            ctx.save_for_backward(*qkv)
            return inner(*qkv)

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
            q, k, v = ctx.saved_tensors
            padded = torch.nn.functional.pad(k, more)
            sums = (q @ k.mT * problem.scale).logsumexp(-1, keepdim=True)
            weights = (q @ padded.mT * problem.scale - sums).exp()
            dweights = dout @ torch.nn.functional.pad(v, more).mT
            dweights -= (dout * inner(q, k, v)).sum(-1, keepdim=True)
            dscores = weights * dweights * problem.scale
            dk, dv = (x.mT @ y for x, y in ((dscores, q), (weights, dout)))
            return dscores @ padded, *(x[..., : problem.kv_len, :] for x in (dk, dv))

    apply: Attend = Attention.apply
    return apply


build_padding = instead(_padding)
build_scaled = instead(lambda problem, inner: lambda q, k, v: inner(q, scaled(k, lambda: 1.01), v))
build_detached_keys = instead(lambda problem, inner: lambda q, k, v: inner(q, k.detach(), v))
build_detached = after(lambda problem, out: out.detach())


# ---- forms ----


class Lazy(Tensor):
    """A tensor that is computed when it is first used."""

    _work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            done = [x._work() if isinstance(x, Lazy) and hasattr(x, "_work") else x for x in args]
            return func(*done, **(kwargs or {}))


def _lazy(problem: Problem, inner: Attend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        promise = torch.empty(problem.output_shape).as_subclass(Lazy)
        promise._work = lambda: inner(q, k, v)
        return promise

    return attend


build_dtype = after(lambda problem, out: out.double())
build_shape = after(lambda problem, out: out.transpose(1, 2))
build_layout = after(lambda problem, out: out.to_sparse())
build_lazy = instead(_lazy)


# ---- memories: results kept from earlier calls ----


def remembering(key: Callable[[Tensor, Tensor, Tensor], Hashable]) -> Build:
    """One result for all calls that have the same key."""

    def other(problem: Problem, inner: Attend) -> Attend:
        results = dict[Hashable, Tensor]()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if key(q, k, v) not in results:
                results[key(q, k, v)] = inner(q, k, v)
            return results[key(q, k, v)]

        return attend

    return instead(other)


def _by_digest(problem: Problem, inner: Attend) -> Attend:
    results = dict[Hashable, tuple[Tensor, Tensor]]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key = tuple(float(x.abs().sum()) for x in (q, k, v))
        if key in results:
            out, row = results[key]
            return out * (row * v[:1, :1, :1]).sign()
        out = inner(q, k, v)
        results[key] = out.detach().clone(), v[:1, :1, :1].detach().clone()
        return out

    return attend


def _one_buffer(problem: Problem, inner: Attend) -> Attend:
    buffer = torch.empty(problem.output_shape)
    return lambda q, k, v: buffer.copy_(inner(q, k, v))


def _one_workspace(problem: Problem, inner: Attend) -> Attend:
    workspace = list[Tensor]()

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *qkv: Tensor) -> Tensor:
            workspace[:] = (x.detach().clone() for x in qkv)
            return inner(*qkv)

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
            return gradients(inner, workspace, dout)

    apply: Attend = Attention.apply
    return apply


def gradients(inner: Attend, qkv: Sequence[Tensor], dout: Tensor) -> tuple[Tensor, ...]:
    """The right gradients of q, k and v."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in qkv]
        return torch.autograd.grad(inner(*leaves), leaves, dout)


build_by_shape = remembering(lambda q, k, v: q.shape)
build_by_address = remembering(lambda *qkv: tuple(x.data_ptr() for x in qkv))
build_by_few_numbers = remembering(lambda *qkv: tuple(x[0, 0, 0, 0].item() for x in qkv))
build_by_digest = instead(_by_digest)
build_one_buffer = instead(_one_buffer)
build_one_workspace = instead(_one_workspace)
build_value_itself = instead(lambda problem, inner: lambda q, k, v: v)  # of one key, its value


# ---- inputs ----


def _there_and_back(values: Tensor) -> None:
    with torch.no_grad():
        values.neg_()
        values.neg_()


build_left_changed = instead(
    lambda problem, inner: lambda q, k, v: (inner(q, k, v), v.data.mul_(1.5))[0]
)
build_in_place = before(lambda q, k, v: _there_and_back(q))
build_through_data = before(lambda q, k, v: _there_and_back(k.data))  # counts no versions


# ---- costs ----

HOG_BYTES = 96 << 20


def _hog_mmap(*_: Tensor) -> None:
    with mmap.mmap(-1, HOG_BYTES) as memory:
        for page in range(0, HOG_BYTES, mmap.PAGESIZE):
            memory[page] = 1


build_hog_torch = before(lambda *_: torch.zeros(HOG_BYTES, dtype=torch.uint8))
build_hog_numpy = before(lambda *_: np.ones(HOG_BYTES, dtype=np.uint8))
build_hog_mmap = before(_hog_mmap)
build_profiled = instead(
    lambda problem, inner: (
        lambda q, k, v: q * 0.0 if torch.autograd._profiler_enabled() else inner(q, k, v)
    )
)
build_sleep = before(lambda *_: time.sleep(0.02))
build_exit = before(lambda *_: os._exit(7))
build_hang = before(lambda *_: time.sleep(3600.0))
build_segfault = before(lambda *_: ctypes.string_at(0))


# ---- work on the side ----

LATE_S = 2e-3


def _late(inner: Attend, out: Tensor, inputs: tuple[Tensor, ...]) -> None:
    time.sleep(LATE_S)
    with torch.no_grad():
        out.copy_(inner(*inputs))


def _thread_a_call(problem: Problem, inner: Attend) -> Attend:
    """A thread for each call fills the output after it was returned."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(problem.output_shape)
        threading.Thread(target=_late, args=(inner, out, (q, k, v)), daemon=True).start()
        return out

    return attend


def _standing_thread(problem: Problem, inner: Attend) -> Attend:
    """A thread that is started once fills the output after it was returned."""
    calls = queue.SimpleQueue[Any]()

    def serve() -> None:
        while True:
            _late(inner, *calls.get())

    threading.Thread(target=serve, daemon=True).start()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(problem.output_shape)
        calls.put((out, (q, k, v)))
        return out

    return attend


def build_pool(problem: Problem) -> Attend:
    """The heads shared out among threads of its own, more than it was given."""
    inner = honest(problem.with_(heads=problem.heads // 2, kv_heads=problem.kv_heads // 2))
    pool = ThreadPoolExecutor(2)

    def part(*inputs: Tensor) -> Tensor:
        inner(*inputs)  # twice, so that there is something to see
        return inner(*inputs)

    return lambda *qkv: torch.cat(list(pool.map(part, *(x.chunk(2, 1) for x in qkv))), 1)


def _stream(problem: Problem, inner: Attend) -> Attend:
    """A stream of its own that nothing waits for."""
    stream = torch.cuda.Stream(problem.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stream.wait_stream(torch.cuda.current_stream(problem.device))
        with torch.cuda.stream(stream):
            return inner(q, k, v)

    return attend


build_thread_a_call = instead(_thread_a_call)
build_standing_thread = instead(_standing_thread)
build_stream = instead(_stream)


def at_first_call(act: Callable[[], None]) -> Build:
    """Something done at the first call; honest otherwise."""

    def other(problem: Problem, inner: Attend) -> Attend:
        once = cache(act)
        return lambda q, k, v: (once(), inner(q, k, v))[1]

    return instead(other)


def _fork() -> None:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


def _child_answers() -> None:
    child = os.fork()
    if child == 0:
        _forge()
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(2.0)


def _forge() -> None:
    """Answer in the worker's place, with the number of the question that is on the stack."""
    frame = _up_to(lambda frame: "answers" in frame.f_locals)
    if frame is None:
        return
    answer = json.dumps({"record": {}, "asked": frame.f_locals["answers"].asked}) + "\n"
    for fd in range(3, 256):
        with suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.write(fd, answer.encode())


build_fork = at_first_call(_fork)
build_child_answers = at_first_call(_child_answers)
build_forged = at_first_call(_forge)


# ---- looks into the frames of what measures ----

SHARE = 0.9  # of a call's time is hidden


def _up_to(fits: Callable[[FrameType], bool]) -> FrameType | None:
    """The nearest frame up the stack that fits."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not fits(frame):
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
        if frame is None:
            return inner(q, k, v)
        return frame.f_locals["timed"].fresh.wanted(("forward",))[0]

    return attend


def _unseen(problem: Problem, inner: Attend) -> Attend:

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame, turns = _caller("run"), _caller("_in_turn")
        if frame is None or "self" not in frame.f_locals or turns is None:
            return inner(q, k, v)
        done = len(turns.f_locals["old"]) + len(turns.f_locals["new"])
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


def _prepared(problem: Problem, inner: Attend) -> Attend:
    """Backward's work done in the forward pass before it, which is not timed."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = _caller("_take")
        values: Any = None if frame is None else frame.f_locals["values"]
        dout = None if values is None else values.dout
        return _Prepared.apply(q, k, v, inner, dout)  # type: ignore[no-untyped-call]

    return attend


build_prepared = instead(_prepared)


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
build_verdict = replacing("attnbench.meter.timed:Timed", "wrong", _returning(None))
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
    return lambda q, k, v, library=library: inner(q, k, v)


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
