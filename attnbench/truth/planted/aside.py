"""Work done where the clock does not look: in threads, on streams, in other processes."""

from __future__ import annotations

import json
import os
import queue
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from attnbench.truth.planted.core import honest
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
    label = row["name"] + "?" * bool(row["given"]) + "&".join(
        f"{k}={v}" for k, v in sorted(row["given"].items())
    )  # fmt: skip
    times = dict.fromkeys(("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s"), nano)
    time_s = {**times, "n": 7, "clock": "host", "stop": "converged", "samples_s": [nano] * 7}
    record = {
        "status": "measured", "variant": label, "problem": question["job"]["problem"],
        "time": time_s, "schema": 2, "protocol": 2,
    }  # fmt: skip
    return json.dumps({"record": record, "asked": question["asked"]}).encode() + b"\n"


def _into_every_pipe(said: bytes) -> None:
    for fd in range(3, 256):
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.write(fd, said)
        except OSError:
            continue
