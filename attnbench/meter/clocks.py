"""The clocks: a host's, and on a GPU events, graphs and the end of the queue; and the ceilings and
the canary that are read with them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from time import perf_counter, perf_counter_ns
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.core.device import Step, device_for
from attnbench.core.format import duration
from attnbench.core.lock import collector_off

LEAST, LEAST_AHEAD = 7, 20
"""Samples in any case: the fewest whose range holds the median 98 times in 100. Where many calls
are queued at once, more cost little, and the interval is narrower than their range."""


class Clock:
    """Seconds of each of some calls."""

    name = ""
    batch = 1  # how many calls it takes best at once
    least = LEAST

    @property
    def flags(self) -> tuple[str, ...]:
        """What must be known of its samples."""
        return ()

    @property
    def mhz(self) -> list[float]:
        """The SM's clock at the end of each batch; empty where it is not known."""
        return []

    def step(self, call: Step) -> Step:
        """What it runs for a call."""
        return call

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Seconds of ``count`` calls, ``before`` running untimed ahead of each."""
        raise NotImplementedError


class HostClock(Clock):
    """The monotonic clock of the host."""

    name = "host"

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; the collector waits, and what a call returned is freed untimed."""
        seconds, now = [], perf_counter_ns  # once: a call might replace it before its end
        with collector_off():
            for _ in range(count):
                before()
                start = now()
                result = call()
                seconds.append((now() - start) * 1e-9)
                del result
        return seconds


QUEUE = 16  # calls queued before one wait
FIRST_SLEEP = 2_000_000  # cycles, about a millisecond, until it is known how long the host takes
SLEEP_S = (5e-5, 0.1)  # of a sleep that was made to fit, the shortest and the longest
SPARE = 1.5  # how much longer than the host took last time the kernel sleeps
LOAD_CYCLES = 400_000  # of a sleep after a batch, whose length shows the SM's clock under load
MISSES = 3  # so many batches of one call that the host could not queue in time: it never will


class EndToEndClock(Clock):
    """The host's clock from an idle device, around a call, to an idle device."""

    name = "e2e"

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; the wait is for the whole device, whatever streams it used."""
        gpu, seconds = self._gpu, []
        for _ in range(count):
            before()
            gpu.flush()
            gpu.synchronize()
            start = gpu.now()
            result = call()
            gpu.synchronize()
            seconds.append(gpu.now() - start)
            del result
        return seconds


class EventClock(Clock):
    """Events around each of some calls that wait behind a sleeping kernel.

    While it sleeps the host queues them, so that no gap between launches gets into a sample. A
    batch that the host did not queue in time is taken again with a longer sleep, then with fewer
    calls. Where one call alone is too slow to queue, or launches more than a stream holds, or waits
    for the device itself, the samples are kept and flagged.
    """

    name = "events"
    batch = QUEUE
    least = LEAST_AHEAD

    def __init__(self, gpu: Any) -> None:
        self._gpu, self._mhz = gpu, list[float]()
        self._size, self._misses = QUEUE, 0
        self._rate = 0.0  # cycles in a second; not known before the first batch
        self._each_s = 0.0  # what the host takes for a call with its fresh values
        self._late_s: float | None = None
        self._pairs = [(gpu.event(), gpu.event()) for _ in range(QUEUE)]
        self._sleep, self._loaded = ((gpu.event(), gpu.event()) for _ in range(2))

    @property
    def flags(self) -> tuple[str, ...]:
        """Why gaps between launches may be in its samples."""
        if self._late_s is None:
            return ()
        return (
            f"launch-bound: the host takes {duration(self._late_s)} to queue a call, or the "
            "call waits for the device, so gaps between launches are in its time",
        )

    @property
    def mhz(self) -> list[float]:
        """By a kernel that slept for a known number of cycles right after each batch."""
        return self._mhz

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Batches, each read after the queue has drained."""
        seconds: list[float] = []
        while len(seconds) < count:
            seconds += self._take(before, call, min(self._size, count - len(seconds)))
        return seconds

    def _take(self, before: Step, call: Step, size: int) -> list[float]:
        """The samples of a batch; none where the host was not done while the device slept."""
        gpu, (down, up) = self._gpu, self._sleep
        began, cycles = gpu.now(), FIRST_SLEEP
        if self._rate:
            cycles = int(min(max(SPARE * self._each_s * size, SLEEP_S[0]), SLEEP_S[1]) * self._rate)
        before()  # the first call's, so that a ``before`` that waits does so ahead of the sleep
        self._gpu.flush()
        gpu.record(down)
        start = gpu.now()
        gpu.sleep(cycles)
        gpu.record(up)
        for i, (first, last) in enumerate(self._pairs[:size]):
            if i:
                before()
                self._gpu.flush()
            gpu.record(first)
            result = call()
            gpu.record(last)
            del result
        ended = gpu.now()
        gpu.record(self._loaded[0])
        gpu.sleep(LOAD_CYCLES)
        gpu.record(self._loaded[1])
        gpu.synchronize()
        self._mhz.append(LOAD_CYCLES / max(gpu.elapsed(*self._loaded), 1e-9) * 1e-6)
        queued, slept = ended - start, gpu.elapsed(down, up)
        samples = [gpu.elapsed(first, last) for first, last in self._pairs[:size]]
        self._rate, self._each_s = cycles / max(slept, 1e-9), (ended - began) / size
        if queued <= slept:
            self._misses = 0
            return samples
        if self._late_s is None:
            self._misses += 1
            if size == 1 and self._misses >= MISSES:
                self._late_s = queued
            elif self._misses > 1 or SPARE * queued > SLEEP_S[1]:
                self._size = max(1, size // 2)
        return samples if self._late_s is not None else []


class GraphClock(EventClock):
    """A CUDA graph of one call, replayed under events: a decoder's step as it is served.

    :meth:`prepare` captures the call. Before that, and where the call can't be captured, this is
    the end-to-end clock, and has its name.
    """

    def __init__(self, gpu: Any) -> None:
        super().__init__(gpu)
        self._end_to_end = EndToEndClock(gpu)
        self._call: Step | None = None
        self._replay: Step | None = None
        self.leave("no call was captured")

    @property
    def flags(self) -> tuple[str, ...]:
        """Why it has no graph."""
        return super().flags if self._replay else (f"timed without a CUDA graph: {self._why}",)

    def prepare(self, before: Step, call: Step, hold: Step) -> None:
        """Capture ``call``, which :meth:`samples` then replays.

        A replay writes its results where the capture did, and runs none of the call's Python, so
        it doesn't keep the results for later. ``hold``, called right after the capture, returns a
        step that does, which follows every replay. The call must read all that changes from
        addresses that stay, and so must what ``before`` prepares for it.
        """
        gpu = self._gpu
        self.leave("no call was captured")
        self._call = call
        before()
        try:
            replay = gpu.capture(call)
            put_back = hold()
            assert callable(put_back), "hold must return a step"
            replay()
            gpu.synchronize()
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._why = f"the call can't be captured ({lines[0][:200]})"
            call()  # the results that the failed capture kept hold nothing
            gpu.synchronize()
            return

        def again() -> None:
            replay()
            put_back()

        self.name, self.batch, self.least, self._replay = "graph", QUEUE, LEAST_AHEAD, again

    def leave(self, why: str) -> None:
        """Time what follows from end to end: it can't be captured."""
        self.name, self.batch, self.least = "e2e", 1, LEAST
        self._replay, self._why = None, why

    def step(self, call: Step) -> Step:
        """The replay of the call, or the call itself where there is none."""
        return self._replay or call

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """Replays of the call that was captured."""
        if self._replay is None:
            return self._end_to_end.samples(before, call, count)
        if call != self._call:
            raise ValueError("the graph clock was prepared for another call")
        return super().samples(before, self._replay, count)


def clock_for(device: str, phase: str) -> Clock:
    """The clock that a phase is timed with on a device."""
    if not (one := device_for(device)).queued:
        return HostClock()
    return GraphClock(one) if phase == "decode" else EventClock(one)


TRIES = 5
HOT_S, MOST_QUEUED = 1.0, 20_000
"""For how long calls run back to back, and how many of them there may be in a half."""
FLOOR_TRIES = 20
"""How often an empty kernel is timed."""


def back_to_back(gpu: Any, call: Step, each_s: float, seconds: float) -> float:
    """Seconds of a call among as many as fill ``seconds``, queued without a pause: the second half
    is timed, when the clocks have become what power and heat leave them.
    """
    count = max(1, min(MOST_QUEUED, int(seconds / 2 / each_s)))
    first, last = gpu.event(), gpu.event()
    for half in range(2):
        if half:
            gpu.record(first)
        for _ in range(count):
            call()
    gpu.record(last)
    gpu.synchronize()
    return float(gpu.elapsed(first, last)) / count


def measure_ceilings(
    device: str, dtypes: Iterable[str], *, of_others: bool = False
) -> dict[str, Any]:
    """``{"flops": {dtype: FLOP/s}, "copy": {bytes moved: bytes/s}}``, the best of several tries.

    ``of_others``: on a CPU by oneDNN too, not by torch's own product alone: on processors that are
    not Intel's that may take half as long, and other libraries' products are as fast.
    On a GPU, besides: ``hot``, FLOP/s of products back to back, and ``floor_s`` of an empty kernel
    by events.
    """
    here, clock = device_for(device), clock_for(device, "forward")
    chance = torch.Generator(device)  # torch's own is shared
    flops, hot, copy = dict[str, float](), dict[str, float](), dict[str, float]()

    def best(call: Step) -> float:
        until = perf_counter() + here.warm_s
        clock.samples(_nothing, call, 2)
        while perf_counter() < until:
            clock.samples(_nothing, call, 2)
        return min(clock.samples(_nothing, call, TRIES))

    for name in sorted(set(dtypes)):
        rates, dtype = [], getattr(torch, name)
        for n in here.product_sizes:
            a, b = (torch.randn(n, n, device=device, generator=chance).to(dtype) for _ in "ab")
            product, work = partial(torch.matmul, a, b), 2.0 * n**3
            rates.append(work / (seconds := best(product)))
            if of_others and not here.queued:
                rates += [work / best(other) for other in _products_of_onednn(a, b)]
            if name != "float32" and here.queued:  # float32 may be three products of TF32
                hot[name] = work / back_to_back(here, product, seconds, HOT_S)
            if name == "float32" and here.three_of_tf32:
                precision = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("high")
                try:
                    rates.append(work / best(product) / 3)
                finally:
                    torch.set_float32_matmul_precision(precision)
        flops[name] = max(rates)
    for size in here.copy_bytes:
        source = torch.ones(size // 2, dtype=torch.int8, device=device)
        copy[str(size)] = size / best(partial(torch.empty_like(source).copy_, source))
    if not here.queued:
        return {"flops": flops, "copy": copy}
    empty = clock.samples(_nothing, partial(here.sleep, 0), FLOOR_TRIES)
    return {"flops": flops, "copy": copy, "hot": hot, "floor_s": statistics.median(empty)}


def _products_of_onednn(a: Tensor, b: Tensor) -> Iterator[Step]:
    """oneDNN's product in the tensors' dtype, where it has one; of half precision in float32 too,
    since that may be the faster way to compute it.
    """
    halves = {a.dtype, torch.float32} if a.dtype.itemsize < 4 else {a.dtype}
    for dtype in halves:
        with suppress(RuntimeError):  # it has none of this dtype here
            product = partial(F.linear, a.to(dtype).to_mkldnn(), b.to(dtype).to_mkldnn())
            product()
            yield product


def _nothing() -> None:
    pass


CANARY_WARM, CANARY_SAMPLES = 3, 15


def canary_s(device: str) -> float:
    """Seconds of a small call of our own, the median of a few."""
    call, clock = _canary(device), clock_for(device, "forward")
    clock.samples(_nothing, call, CANARY_WARM)
    return statistics.median(clock.samples(_nothing, call, CANARY_SAMPLES))


@cache
def _canary(device: str) -> Step:
    shape, dtype = device_for(device).canary
    chance = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=chance, device=device).to(dtype) for _ in "qkv")
    product, softmax = torch.matmul, torch.softmax

    def call() -> object:
        with torch.no_grad():
            return product(softmax(product(q, k.mT) * q.shape[-1] ** -0.5, -1), v)

    return call
