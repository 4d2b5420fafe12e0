"""A sweep with a stand-in for the engine: made-up workers, and whoever watches."""

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status, Time
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from impls.problem import Problem
from impls.spec import Variant

GRID = Preset(
    "small", seq=("16", "32"), heads=(1,), head_dim=(8,), phase=("forward", "train"), mask=("none",)
)
HEADER = {"seed": 0, "budget_s": 0.01, "nodes": {"": {"ceilings": {"flops": {}}}}}


def timed(seconds):
    return Time(
        median_s=seconds,
        low_s=seconds,
        high_s=seconds,
        q25_s=seconds,
        q75_s=seconds,
        min_s=seconds,
        n=7,
        clock="host",
        stop="converged",
        samples_s=[seconds] * 7,
    )


class Answering:
    """An engine whose worker takes as long as it is told for each phase."""

    def __init__(self, forward=0.010, train=0.030):
        self.seconds, self.jobs = {"forward": forward, "train": train}, []

    def ask(self, question, limit_s):
        if "canary" in question:
            return {"canary": self.canary(len(self.jobs))}
        job = question["job"]
        self.jobs.append(job)
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        record = Record.of(variant, problem, Status.MEASURED, seed=0)
        return {"record": record.with_(time=timed(self.seconds[problem.phase])).to_dict()}

    def canary(self, jobs):
        """Seconds of its canary, when so many cells have been asked for."""
        return 0.001

    def close(self):
        """Nothing."""


class Watched:
    """Whoever shows the progress; stops the sweep after the first cell if told to."""

    def __init__(self, interrupt=None):
        self.cells, self.interrupt, self.told = 0, interrupt, []

    def cell(self, record, done, total, left_s):
        self.cells += 1
        if self.interrupt is not None:
            self.interrupt.asked = True

    def tell(self, sentence):
        self.told.append(sentence)


def plan_of(*names, grid=GRID):
    return make_plan(impls.table(), names, grid, this_machine())


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()


def swept(plan, folder, engine, done=()):
    """The records that a sweep has written down."""
    sweep.sweep(plan, RunRecords(done), folder, [Slot(engine)], Watched(), sweep.Interrupt(print))
    return list(read_records(folder.path))


MANY = GRID.with_(seq=("16", "32", "48", "64"))
