"""A GPU that isn't there: a host and a stream with clocks of their own, and faults to plant.

Kernels and events are queued, which takes the host's time. What a clock must read is known exactly.
"""

from collections import deque
from types import SimpleNamespace

from attnbench.core.device import Cuda
from attnbench.core.gpu import Absent, Board


class FakeGpu(Cuda):
    """In place of a real one."""

    DEPTH = 1024  # launches that a stream holds before the host has to wait

    def __init__(self, *, launch_s=5e-6, hz=1e9, flush_s=100e-6, cold=0.0):
        """``cold``: how much longer a kernel takes that finds the cache empty."""
        self.driver = Absent("no driver")
        self.launch_s, self.hz, self.flush_s, self.cold = launch_s, hz, flush_s, cold
        self.host = self.free = 0.0
        self.slow = []  # (from, to, factor, reason) of slow-downs, in seconds of the device
        self.log, self._queue, self._empty = [], deque(), False
        self.captured = None

    def board(self):
        return self.driver

    def now(self):
        return self.host

    def event(self):
        return SimpleNamespace(at=None)

    def record(self, event):
        self.busy_host(1e-6)
        event.at = max(self.free, self.host)

    def elapsed(self, first, second):
        assert max(first.at, second.at) <= self.host, "the events have not happened yet"
        return second.at - first.at

    def synchronize(self):
        if self.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.host = max(self.host, self.free)
        self.log.append("synchronize")

    def sleep(self, cycles):
        self.log.append("sleep")
        begins = max(self.host, self.free)
        self._queued(cycles / self.hz * self.slowness(begins), self.launch_s)

    def flush(self):
        self.log.append("flush")
        self._queued(self.flush_s, self.launch_s)
        self._empty = True

    def capture(self, call):
        self.captured = []
        try:
            call()
            kernels = self.captured
        finally:
            self.captured = None

        def replay():
            self.log.append("replay")
            self.busy_host(self.launch_s)
            for seconds in kernels:
                self.kernel(seconds, launch_s=0.0)

        return replay

    def kernel(self, seconds, launch_s=None):
        """Queue a kernel of so many seconds at full speed."""
        if self.captured is not None:
            self.captured.append(seconds)
            return
        begins = max(self.host, self.free)
        if self._empty:
            seconds, self._empty = seconds * (1 + self.cold), False
        cost = self.launch_s if launch_s is None else launch_s
        self._queued(seconds * self.slowness(begins), cost)

    def busy_host(self, seconds):
        """Python at work."""
        if self.captured is None:
            self.host += seconds

    def slowness(self, at):
        factor = 1.0
        for start, end, times, _ in self.slow:
            factor *= times if start <= at < end else 1
        return factor

    def _queued(self, seconds, cost):
        self.busy_host(cost)
        while self._queue and self._queue[0] <= self.host:
            self._queue.popleft()
        if len(self._queue) >= self.DEPTH:
            self.host = self._queue[0]
        self.free = max(self.free, self.host) + seconds
        self._queue.append(self.free)


class FakeBoard(Board):
    """What the driver would say of a :class:`FakeGpu`."""

    uuid = "GPU-fake"

    def __init__(self, gpu):
        self.gpu = gpu

    def reasons(self):
        slow = (why for start, end, _, why in self.gpu.slow if start <= self.gpu.host < end)
        return frozenset(slow)

    def power_limit_w(self):
        return 700.0
