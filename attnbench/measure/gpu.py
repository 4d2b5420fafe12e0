"""A GPU as the clocks need it: the seam between what is measured how, and torch.cuda.

The references to torch's functions are taken when this module is imported, before any variant's
code is. Nothing here decides anything; what can be tested without a GPU is above this line, in
the clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from attnbench.collector import collector_off

Step = Callable[[], object]

LEAST_FLUSH = 256 << 20
"""Bytes overwritten to empty the L2 cache: this, or twice the cache where that is more."""
WARM = 3
"""Calls on the capturing stream before a capture, so that what is made once has been made."""


class Gpu(Protocol):
    """A device and its host. An event is whatever :meth:`event` gives."""

    def now(self) -> float:
        """Seconds of the host's monotonic clock."""

    def event(self) -> Any:
        """An event, not recorded yet."""

    def record(self, event: Any) -> None:
        """The event happens when what is queued so far is done."""

    def elapsed(self, first: Any, second: Any) -> float:
        """Seconds of the device between two events that have happened."""

    def synchronize(self) -> None:
        """Wait until nothing runs anywhere on the device."""

    def sleep(self, cycles: int) -> None:
        """Queue a kernel that waits."""

    def flush(self) -> None:
        """Queue the overwriting of all that the L2 cache holds."""

    def capture(self, call: Step) -> Step:
        """A step that replays what ``call`` queues; what it returned stays where it is.

        Raises where the call can't be captured. Capturing runs nothing.
        """


_synchronize = torch.cuda.synchronize
_Event = torch.cuda.Event
_sleep = getattr(torch.cuda, "_sleep", None)
_current_stream = torch.cuda.current_stream
_set_stream = torch.cuda.set_stream
_Stream = torch.cuda.Stream
_on = torch.cuda.device
_Graph = torch.cuda.CUDAGraph
_graph = torch.cuda.graph
_new_pool = torch.cuda.graph_pool_handle
_end_pool = getattr(torch._C, "_cuda_endAllocateToPool", None)
_properties = torch.cuda.get_device_properties
_available, _set_device = torch.cuda.is_available, torch.cuda.set_device


class CudaGpu:
    """torch.cuda, on one device."""

    def __init__(self, device: str) -> None:
        index = torch.device(device).index
        self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        found = _properties(self.device)
        self.uuid = str(found.uuid)
        size = max(2 * found.L2_cache_size, LEAST_FLUSH)
        self._flushed = torch.empty(size, dtype=torch.int8, device=self.device)

    def now(self) -> float:
        """Seconds of the host's monotonic clock."""
        return perf_counter_ns() * 1e-9

    def event(self) -> Any:
        """A torch event."""
        return _Event(enable_timing=True)

    def record(self, event: Any) -> None:
        """On the stream that the call would queue on."""
        event.record(_current_stream(self.device))

    def elapsed(self, first: Any, second: Any) -> float:
        """In seconds; torch says milliseconds."""
        return first.elapsed_time(second) * 1e-3

    def synchronize(self) -> None:
        """All streams of the device."""
        _synchronize(self.device)

    def sleep(self, cycles: int) -> None:
        """A kernel that counts the SM's cycles."""
        if _sleep is not None:
            with _on(self.device):
                _sleep(cycles)

    def flush(self) -> None:
        """Write twice the cache."""
        self._flushed.zero_()

    def capture(self, call: Step) -> Step:
        """A CUDA graph, captured with the collector off: freeing a module would break it."""
        graph, pool = _Graph(), _new_pool()
        with _on(self.device), collector_off():
            side, before = _Stream(self.device), _current_stream(self.device)
            side.wait_stream(before)
            try:
                _set_stream(side)
                for _ in range(WARM):
                    call()
                with _graph(graph, pool=pool, stream=side):
                    call()
            except Exception:
                _set_stream(side)
                self._mend(pool)
                raise
            finally:
                _set_stream(before)
                before.wait_stream(side)
        return graph.replay

    def _mend(self, pool: Any) -> None:
        """After a capture that failed, have torch as it was.

        It leaves its allocator and its random numbers as they are during a capture. The first is
        told, the second come right at the end of a capture that goes well.
        """
        with suppress(RuntimeError):
            _synchronize(self.device)
        if _end_pool is not None:
            with suppress(RuntimeError):
                _end_pool(self.device.index, pool)
        small = self._flushed[:1]
        with suppress(RuntimeError), _graph(_Graph(), stream=_current_stream(self.device)):
            small.zero_()


@cache
def cuda_gpu(device: str) -> CudaGpu:
    """One for each device: what empties the cache is large."""
    return CudaGpu(device)


def begin(device: str) -> None:
    """Before a variant is looked at: its GPU is the current one, and its context is there.

    Kernels are launched on the current GPU wherever their tensors lie; and the files and random
    states that come with a context are no variant's doing.
    """
    if device == "cpu" or not _available():
        return
    with suppress(RuntimeError):  # the cell says for itself what is amiss
        _set_device(torch.device(device).index or 0)
        _synchronize()
