"""Variants written to a file of their own, and a clock whose readings are a script."""

import gc
import itertools
import json

import pytest

from attnbench.core import device
from attnbench.core.record import read_record
from attnbench.core.wire import Job
from attnbench.meter.cell import Bench
from attnbench.meter.clocks import Clock
from attnbench.meter.memory import warm_profiler
from impls.problem import Problem
from impls.spec import Variant
from tests.calling import VALID
from tests.meter.fake_gpu import FakeGpu


@pytest.fixture(autouse=True, scope="session")
def as_a_worker_does():
    """What the profiler loads is there, and it all stays, uncollected."""
    warm_profiler()
    gc.freeze()


class Cells:
    """Makes rows whose code is the given text, and measures them."""

    def __init__(self, folder):
        self.folder, self.bench, self._number = folder, Bench(), itertools.count()

    @staticmethod
    def problem(**changes):
        sizes = {"heads": 2, "kv_heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 8}
        return Problem(**{**sizes, "v_head_dim": 8, **changes})

    def variant(self, code, computes="softmax", definition=False, cost=False, **more):
        """A row whose ``build`` (and definition, and cost) stand in ``code``."""
        file = self.folder / f"planted{next(self._number)}.py"
        file.write_text("import torch\nfrom impls.dense.matmul import build as right\n" + code)
        if definition:
            more["definition"] = f"{file}:definition"
        if cost:
            more["cost"] = f"{file}:cost"
        named = {"name": "planted", "title": "planted", "family": "dense"}
        return Variant(**named, operator=computes, build=f"{file}:build", **more)

    def measure(self, variant, problem=None, **job):
        """The record, checked against the published schema and through its own line."""
        job = {"budget_s": 0.02, **job}
        record = self.bench.measure(Job(variant, problem or self.problem(), **job))
        values = json.loads(record.line())
        VALID.validate(values)
        assert read_record(values).line() == record.line()
        return record

    def run(self, code, problem=None, **more):
        return self.measure(self.variant(code, **more), problem)


@pytest.fixture
def cells(tmp_path):
    return Cells(tmp_path)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that isn't there, as every module finds it."""
    fake = FakeGpu()
    monkeypatch.setitem(device.KINDS, "cuda", lambda name: fake)
    device.device_for.cache_clear()
    yield fake
    device.device_for.cache_clear()


class Scripted(Clock):
    """A clock that reads what it is told, while its own time passes by a fixed step a sample."""

    name = "scripted"

    def __init__(self, readings, step_s):
        self.readings, self.step_s, self.now = iter(readings), step_s, 0.0

    def samples(self, before, call, count):
        taken = []
        for _ in range(count):
            before()
            call()
            self.now += self.step_s
            taken.append(next(self.readings))
        return taken


@pytest.fixture
def scripted(monkeypatch):
    """Makes such a clock, and lets the meters live by its time."""

    def make(readings, step_s):
        clock = Scripted(readings, step_s)
        monkeypatch.setattr("attnbench.meter.timer.perf_counter", lambda: clock.now)
        return clock

    return make
