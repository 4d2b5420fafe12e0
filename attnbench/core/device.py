"""A device: its kind, its clock, its memory, its power, and how it is waited for.

All that differs between the processor and what computes beside it is here. Another kind is a
subclass in a file of its own, and a name in :data:`KINDS`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit
from time import perf_counter_ns
from typing import Any

import torch

from attnbench.core import gpu
from attnbench.core.gpu import Absent, Board
from attnbench.core.lock import collector_off
from attnbench.core.machine import kernel_bytes

Step = Callable[[], object]


class Device:
    """The processor that runs Python too, and the questions that are put to any device."""

    queued = False
    """Whether a call returns before its work is done, so that the device itself must time it."""
    backend = "gloo"
    """torch's way to join processes that share a call."""
    product_sizes: tuple[int, ...] = (512, 1024)
    copy_bytes: tuple[int, ...] = (1 << 18, 1 << 21, 1 << 25, 1 << 28)
    three_of_tf32 = False
    """Whether a product of float32 can be three of TF32 that keep its digits, as in torch's
    efficient attention: that may be faster than the library's own, which uses no tensor core."""
    warm_s = 0.0
    """How long a call is repeated before it counts: the clocks of an idle device may be low."""
    canary = (1, 4, 256, 64), torch.float32
    """Batch, heads, tokens and width of about a millisecond, and a dtype."""
    lengths: tuple[int, ...] = (64, 256, 1024)
    """Short, middling and long sequences."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> None:
        """Make it the current one, and have all that comes with its first use come now."""

    def synchronize(self) -> None:
        """Wait for all that was queued on it."""

    def works(self) -> bool:
        """Whether it can still be used: after some errors every call fails."""
        return True

    def reset_peak(self) -> int:
        """Begin a new high-water mark; returns the bytes in use."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return self.peak_bytes()
        return kernel_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The most bytes in use since the last :meth:`reset_peak`."""
        return kernel_bytes("VmHWM")

    def driver_free_bytes(self) -> int:
        """What nobody has taken."""
        return self.free_bytes()

    def free_bytes(self) -> int:
        """How much this process may still take."""
        free, limit = kernel_bytes("MemAvailable", "/proc/meminfo"), getrlimit(RLIMIT_DATA)[0]
        return free if limit == RLIM_INFINITY else min(free, limit - kernel_bytes("VmData"))

    def release(self) -> None:
        """Collect garbage, and give back the memory that torch keeps unused."""
        gc.collect()

    def board(self) -> Board | Absent | None:
        """Its driver's view of it, or why there is none; None of a processor."""
        return None


class Accelerator(Device):
    """What computes beside the processor, as torch sees any such device.

    A kind of it has events (``event``, ``record``, ``elapsed``), ``sleep`` and ``flush``, too.
    """

    queued = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.device = torch.device(name)
        self._torch = torch.get_device_module(self.device.type)

    def begin(self) -> None:
        """Kernels are launched on the current device wherever their tensors lie; and the files and
        random states that come with its context are no variant's doing.
        """
        if torch.accelerator.is_available():
            with suppress(RuntimeError):  # the cell reports what is wrong
                torch.accelerator.set_device_index(self.device.index or 0)
                torch.accelerator.synchronize()

    def now(self) -> float:
        """Seconds of the host's monotonic clock."""
        return perf_counter_ns() * 1e-9

    def synchronize(self) -> None:
        """Wait for all of its streams."""
        torch.accelerator.synchronize(self.device)

    def works(self) -> bool:
        """Whether it can still add."""
        try:
            self.synchronize()
            return float(torch.ones(1, device=self.device).sum()) == 1.0
        except RuntimeError:
            return False

    def live_bytes(self, which: str = "current") -> int:
        """The requested bytes of torch's caching allocator."""
        self.synchronize()
        return int(self._torch.memory_stats(self.device)[f"requested_bytes.all.{which}"])

    def reset_peak(self) -> int:
        """Begin a new peak; returns the bytes in use."""
        gc.collect()
        self.synchronize()
        self._torch.reset_peak_memory_stats(self.device)
        return self.live_bytes()

    def peak_bytes(self) -> int:
        """The most bytes in use since then."""
        return self.live_bytes("peak")

    def driver_free_bytes(self) -> int:
        """What the driver has."""
        return int(self._torch.mem_get_info(self.device)[0])

    def free_bytes(self) -> int:
        """That, and what torch keeps for later."""
        kept = self._torch.memory_reserved(self.device) - self._torch.memory_allocated(self.device)
        return self.driver_free_bytes() + int(kept)

    def release(self) -> None:
        """Collect garbage, and give back the memory that torch keeps unused."""
        super().release()
        with suppress(RuntimeError):  # the context is gone, with all its memory
            self._torch.empty_cache()

    def capture(self, call: Step) -> Step:
        """A step that replays what ``call`` queues; its results stay where they are."""
        raise RuntimeError(f"calls can't be captured on {self.device.type}")


class Cuda(Accelerator):
    """An NVIDIA GPU."""

    backend = "nccl"
    product_sizes = (4096, 8192)
    copy_bytes = (1 << 22, 1 << 26, 1 << 30)
    three_of_tf32 = True
    warm_s = 0.3
    canary = (2, 16, 2048, 128), torch.bfloat16
    lengths = (512, 2048, 8192)
    LEAST_FLUSH = 256 << 20
    """Bytes read to empty the L2 cache: this, or twice the cache where that is more."""
    WARM = 3
    """Calls on the capturing stream before a capture, so that what is made once has been made."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        if self.device.index is None and torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())

    def board(self) -> Board | Absent:
        """NVIDIA's driver's view of it."""
        return gpu.board(str(torch.cuda.get_device_properties(self.device).uuid))

    def event(self) -> Any:
        """An event that is not recorded yet."""
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        """The event happens when all that is queued on the current stream is done."""
        event.record(torch.cuda.current_stream(self.device))

    def elapsed(self, first: Any, second: Any) -> float:
        """Seconds between two events that have happened; torch gives milliseconds."""
        return first.elapsed_time(second) * 1e-3

    def sleep(self, cycles: int) -> None:
        """Queue a kernel that waits for so many cycles of the SM."""
        with torch.cuda.device(self.device):
            torch.cuda._sleep(cycles)

    @cached_property
    def _buffer(self) -> tuple[torch.Tensor, torch.Tensor]:
        cache_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        numbers = max(2 * cache_bytes, self.LEAST_FLUSH) // 4
        flushed = torch.zeros(numbers, dtype=torch.float32, device=self.device)
        return flushed, torch.zeros((), device=self.device)

    def flush(self) -> None:
        """Queue the reading of more than the L2 cache holds. Lines that were overwritten instead
        would be written back later, inside the call that is timed.
        """
        flushed, total = self._buffer
        torch.sum(flushed, 0, out=total)

    def capture(self, call: Step) -> Step:
        """A CUDA graph; raises where the call can't be captured.

        The collector is off: freeing a module would break the capture. A capture that failed leaves
        torch's allocator and random numbers as they are during one: the allocator is reset by hand,
        the others by an empty capture that succeeds.
        """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        small = torch.zeros(1, device=self.device)
        with torch.cuda.device(self.device), collector_off():
            side, before = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
            side.wait_stream(before)
            try:
                torch.cuda.set_stream(side)
                for _ in range(self.WARM):
                    call()
                with torch.cuda.graph(graph, pool=pool, stream=side):
                    call()
            except Exception:
                torch.cuda.set_stream(side)
                with suppress(RuntimeError):
                    self.synchronize()
                with suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self.device.index, pool)
                with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
                    small.zero_()
                raise
            finally:
                torch.cuda.set_stream(before)
                before.wait_stream(side)
        return graph.replay


KINDS: dict[str, type[Device]] = {"cpu": Device, "cuda": Cuda}


@cache
def device_for(name: str) -> Any:
    """The device that torch calls so; one for each name, since what empties a cache is large.

    As Any, for what an accelerator alone can do is asked where ``queued`` is true.
    """
    return KINDS[name.partition(":")[0]](name)
