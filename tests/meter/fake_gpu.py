"""A GPU that isn't there: a host and streams with clocks of their own, and faults to plant.

Kernels are queued and take their time on a stream; queueing takes the host's time; events are
queued too. Nothing here looks at a real clock, so what a clock must read is known exactly.
"""

import math


class FakeEvent:
    def __init__(self):
        self.at = None


class FakeGpu:
    """Implements ``attnbench.meter.clocks.GpuTimer``."""

    DEPTH = 1024
    """Launches a stream holds before the host has to wait."""

    def __init__(self, *, launch_s=5e-6, hz=1e9, flush_s=100e-6, cold=0.0, drift=0.0, lie=1.0):
        self.host = 0.0
        self.free = {"main": 0.0}
        self.launch_s, self.hz, self.flush_s = launch_s, hz, flush_s
        self.cold = cold
        """How much longer a kernel takes that finds the cache empty."""
        self.drift = drift
        """Share by which the device gets slower in a second."""
        self.lie = lie
        """What events report of what passed."""
        self.slow = []
        """(from, to, factor, reason): slow-downs, in seconds of the device."""
        self.log = []
        self.captured = None
        self._empty = False
        self._queue = []

    # ---- what the clocks use

    def now(self):
        return self.host

    def event(self):
        return FakeEvent()

    def record(self, event):
        self._host(1e-6)
        event.at = max(self.free["main"], self.host)

    def elapsed(self, first, second):
        assert max(first.at, second.at) <= self.host, "the events have not happened yet"
        return (second.at - first.at) * self.lie

    def synchronize(self):
        if self.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.host = max(self.host, *self.free.values())
        self.log.append("synchronize")

    def sleep(self, cycles):
        self.log.append("sleep")
        self._queued(cycles / self.hz * self.slowness(max(self.host, self.free["main"])), "main")

    def flush(self):
        self.log.append("flush")
        self._queued(self.flush_s, "main")
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
            self._host(self.launch_s)
            for seconds in kernels:
                self.kernel(seconds, launch_s=0.0)

        return replay

    # ---- what a variant does

    def kernel(self, seconds, stream="main", launch_s=None):
        """Queue a kernel of so many seconds at full speed."""
        if self.captured is not None:
            self.captured.append(seconds)
            return
        begins = max(self.host, self.free.get(stream, 0.0))
        if self._empty:
            seconds, self._empty = seconds * (1 + self.cold), False
        cost = self.launch_s if launch_s is None else launch_s
        self._queued(seconds * self.slowness(begins), stream, cost)

    def busy_host(self, seconds):
        """Python at work."""
        self._host(seconds)

    # ---- how it passes

    def slowness(self, at):
        factor = 1 + self.drift * at
        for start, end, times, _ in self.slow:
            if start <= at < end:
                factor *= times
        return factor

    def reasons(self, since, until):
        return {why for start, end, _, why in self.slow if start < until and since < end}

    def _host(self, seconds):
        if self.captured is None:
            self.host += seconds

    def _queued(self, seconds, stream, cost=None):
        self._host(self.launch_s if cost is None else cost)
        if stream == "main":
            self._queue = [end for end in self._queue if end > self.host]
            if len(self._queue) >= self.DEPTH:
                self.host = self._queue[0]
        self.free[stream] = max(self.free.get(stream, 0.0), self.host) + seconds
        if stream == "main":
            self._queue.append(self.free["main"])


class FakeBoard:
    """What the driver would say of a :class:`FakeGpu`; like it, it forgets when asked late."""

    uuid = "GPU-fake"

    def __init__(self, gpu, *, sm_mhz=1980, remembers=True, sees=True):
        self.gpu, self.full_mhz, self.remembers, self.sees = gpu, sm_mhz, remembers, sees

    def reasons(self):
        if not self.sees:
            return frozenset()
        return frozenset(self.gpu.reasons(self.gpu.host, math.nextafter(self.gpu.host, math.inf)))

    def held_down_s(self, policy):
        if not self.remembers:
            return 0.0
        word = {"thermal": "Thermal", "power": "Power"}[policy]
        passed = (min(e, self.gpu.host) - s for s, e, _, why in self.gpu.slow if word in why)
        return sum(max(0.0, x) for x in passed)

    def sm_mhz(self):
        return round(self.full_mhz / self.gpu.slowness(self.gpu.host))

    def power_limit_w(self):
        return 700.0
