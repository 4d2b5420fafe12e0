"""Variants that change what others share, or answer in the worker's place."""

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.sweep import engine as engines
from attnbench.sweep import sweep
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import make_plan
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from tests.sweep.build import KNOWN, ONE, Watched

pytestmark = pytest.mark.slow  # for each spoiler a worker


SPOILING = """
import json, os, stat, sys
import torch
import torch.nn.functional as F
from impls.dense.einsum import build as right
from impls.spec import Variant

def honest(problem):
    assert torch.get_num_threads() == 1 and torch.get_default_dtype() is torch.float32
    assert F.scaled_dot_product_attention.__name__ != "<lambda>"
    return right(problem)

def threads(problem):
    torch.set_num_threads(2)
    return right(problem)

def dtype(problem):
    torch.set_default_dtype(torch.float64)
    return right(problem)

def sdpa(problem):
    F.scaled_dot_product_attention = lambda q, k, v, **_: torch.zeros_like(v)
    return right(problem)

def forks(problem):
    inner, forked = right(problem), []
    def attend(q, k, v):
        if not forked:
            forked.append(1)
            os.fork()
        return inner(q, k, v)
    return attend

def into_every_pipe(said):
    for fd in range(3, 256):
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode): os.write(fd, said)
        except OSError:
            pass

def asked():
    frame = sys._getframe()
    while frame is not None:
        if "answers" in frame.f_locals and "job" in frame.f_locals.get("question", ()):
            return frame.f_locals["question"], frame.f_locals["answers"].asked
        frame = frame.f_back

def writes(say):
    def build(problem):
        inner, done = right(problem), []
        def attend(q, k, v):
            if not done:
                done.append(1)
                into_every_pipe(say())
            return inner(q, k, v)
        return attend
    return build

def answer(change, number=True):
    question, asked_number = asked()
    job = question["job"]
    from attnbench.core.record import Record, Status
    from impls.problem import Problem
    variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
    record = Record.of(variant, problem, Status.FAILED, "forged", seed=0).to_dict()
    said = {"record": record, **change}
    if number: said["asked"] = asked_number
    return json.dumps(said).encode() + b"\\n"

junk = writes(lambda: b"junk\\n")
unended = writes(lambda: b"junk")
extra = writes(lambda: answer({}, number=False))
forged = writes(lambda: answer({}))

def row(name, build):
    return Variant(name=name, title=name, family="hostile", computes="softmax", build=build)

ROWS = [row(f"s.{n}", f":{n}") for n in (
    "honest", "threads", "dtype", "sdpa", "forks", "junk", "unended", "extra", "forged",
)]
"""
SPOILERS = ["s.threads", "s.dtype", "s.sdpa"]
FORGERS = ["s.junk", "s.unended", "s.extra", "s.forged"]
AFTER = dict(
    zip(
        [*SPOILERS, "s.forks", *FORGERS],
        ["s.honest", "sdpa", "matmul", "bmm", "baddbmm", "inplace", "einsum", "matmul.prescale"],
        strict=True,
    )
)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """The records of spoilers, each followed by an innocent, and how many workers there were."""
    table = tmp_path_factory.mktemp("spoiling") / "spoiling.py"
    table.write_text(SPOILING)
    order = [name for pair in AFTER.items() for name in pair]
    plan = make_plan(impls.table([table]), order, ONE, this_machine())
    assert [c.variant.label for c in plan.to_run] == order
    folder = RunFolder.create(
        table.parent / "results", "box", {"seed": 0, "budget_s": ONE.budget, **KNOWN}
    )
    engine, watcher, workers = LocalEngine(Settings()), Watched(), []
    start = engine._start

    def started():
        start()
        workers.append(engine.pid)

    engine._start = started
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "MARGIN", 1e9)  # the machine that tests run on is busy
        patch.setattr(engines, "CELL_LIMIT_S", 30.0)
        try:
            sweep.sweep(plan, RunRecords(), folder, [Slot(engine)], watcher, sweep.Interrupt(print))
        finally:
            engine.close()
            folder.close()
    return list(read_records(folder.path)), order, workers


def record_of(spoilt, name):
    return next(r for r in spoilt[0] if r.variant == name)


def test_every_cell_has_one_record_of_its_own_though_variants_fork_and_forge(spoilt):
    records, order, _ = spoilt
    assert [r.variant for r in records] == order


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("s.threads", "it left changed what other variants share: threads (1 → 2)"),
        (
            "s.dtype",
            "it left changed what other variants share: default dtype (torch.float32 → "
            "torch.float64)",
        ),
        ("s.sdpa", "it replaced torch.nn.functional.scaled_dot_product_attention"),
    ],
)
def test_a_variant_that_changes_what_others_share_is_wrong(spoilt, name, said):
    record = record_of(spoilt, name)
    assert record.status is Status.WRONG, record.reason
    assert record.reason == said
    assert record.time is None


@pytest.mark.parametrize("name", AFTER.values(), ids=AFTER)
def test_the_innocent_after_a_spoiler_is_measured(spoilt, name):
    record = record_of(spoilt, name)
    assert record.status is Status.MEASURED, record.reason
    assert record.time.n >= 7


def test_a_variant_that_leaves_a_copy_of_its_process_running_is_wrong(spoilt):
    record = record_of(spoilt, "s.forks")
    assert record.status is Status.WRONG, record.reason
    assert "left a copy of its process running" in record.reason


@pytest.mark.parametrize("name", ["s.junk", "s.unended", "s.extra"])
def test_a_variant_that_writes_into_the_pipe_has_crashed(spoilt, name):
    record = record_of(spoilt, name)
    assert record.status is Status.CRASHED, record.reason
    assert record.time is None


def test_whoever_answers_in_the_workers_place_is_wrong(spoilt):
    record = record_of(spoilt, "s.forged")
    assert (record.status, record.time) == (Status.WRONG, None)
    assert record.reason == "it answered twice: one of the answers is forged"


def test_workers_are_replaced_only_where_they_must_be(spoilt):
    workers = spoilt[2]
    assert len(workers) == len(set(workers))
    twice = 3  # of the forgers all but one have crashed, and are tried once more
    assert len(workers) <= 1 + len(SPOILERS) + len(FORGERS) + 1 + twice  # and the one that forks
