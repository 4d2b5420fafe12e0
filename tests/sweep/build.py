"""Grids, plans, stand-ins for engines, and watchers, for tests of a sweep."""

import time
from math import inf

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status, Time
from attnbench.core.store import read_records
from attnbench.core.wire import convert, plain
from attnbench.sweep import sweep
from attnbench.sweep.places import Slot
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.problem import Problem
from impls.spec import Variant
from tests.machines import BOX
from tests.times import figures

ONE = Preset("one", seq=("16",), heads=(1,), head_dim=(8,), phase=("forward",), budget=0.01)
GRID = ONE.with_(seq=("16", "32"), phase=("forward", "train"), mask=("none",))
MANY = GRID.with_(seq=("16", "32", "48", "64"))
PLAIN = Preset("a grid", seq=("16",), heads=(2,), phase=("forward",))
KNOWN = {"nodes": {"": {"ceilings": {}}}}
HEADER = {"seed": 0, "budget_s": 0.01, "nodes": {"": {"ceilings": {"flops": {}}}}}


def row(name, **more):
    plain = {"title": "", "family": "f", "operator": "softmax", "build": "a:b"}
    return Variant(**{"name": name, **plain, **more})


def table(*rows):
    made = Table()
    for each in rows:
        made.add(each)
    return made


def plan(*rows, names=(), machine=BOX, **grid):
    """The plan of some rows on one problem, or as the grid is changed."""
    return make_plan(table(*(rows or [row("a")])), names, PLAIN.with_(**grid), machine)


def plan_of(*names, grid=GRID):
    """The plan of some rows of the built-in table on this machine."""
    return make_plan(impls.table(), names, grid, this_machine())


def timed(seconds):
    return Time(clock="host", stop="converged", **figures([seconds] * 7))


class ToldEngine:
    """Answers from a list and keeps what it was asked; an exception is raised."""

    def __init__(self, *answers):
        self.answers, self.asked, self.limits, self.closed = list(answers), [], [], 0

    def ask(self, question, limit_s):
        self.asked.append(question)
        self.limits.append(limit_s)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed += 1


class Answering:
    """A worker of known times; ``said``: what comes or is raised for the first cells instead."""

    def __init__(self, *said, train=0.030, wait_s=0.0):
        self.seconds, self.wait_s = {"train": train}, wait_s
        self.said, self.jobs, self.closed = list(said), [], 0

    def ask(self, question, limit_s):
        time.sleep(self.wait_s)
        if "canary" in question:
            return {"canary": self.canary(len(self.jobs))}
        if "ceilings" in question:
            return {"ceilings": {}}
        if self.said and (said := self.said.pop(0)) is not None:
            if isinstance(said, BaseException):
                raise said
            return said
        job = question["job"]
        self.jobs.append(job)
        variant, problem = convert(job["variant"], Variant), convert(job["problem"], Problem)
        record = Record.of(variant, problem, Status.MEASURED, seed=0)
        taken = timed(self.seconds.get(problem.phase, 0.010))
        return {"record": plain(record.with_(time=taken))}

    def canary(self, jobs):
        """Seconds of its canary, when so many cells have been asked for."""
        return 0.001

    def close(self):
        self.closed += 1

    def stop(self):
        pass


class Watched:
    """A watcher that keeps what it is shown; stops the sweep after the first cell if it can."""

    def at(self, *_):
        pass

    def __init__(self, interrupt=None):
        self.cells, self.interrupt, self.told = [], interrupt, []

    def cell(self, record, done, total, guess_s, ahead_s):
        self.cells.append((record.variant, done, total, ahead_s))
        if self.interrupt is not None:
            self.interrupt.asked = True

    def tell(self, sentence):
        self.told.append(sentence)


def sweep_of(plan, folder, *engines, done=(), watcher=None, interrupt=None, until=inf):
    """How many cells a sweep left; an engine may be a slot."""
    slots = [each if isinstance(each, Slot) else Slot(each) for each in engines]
    watcher, interrupt = watcher or Watched(), interrupt or sweep.Interrupt(print)
    for record in done:
        folder.append(record)
    return sweep.sweep(plan, folder, slots, watcher, interrupt, until)


def swept(plan, folder, *engines, **more):
    """The records of the run after a sweep."""
    sweep_of(plan, folder, *engines, **more)
    return read_records(folder.path)
