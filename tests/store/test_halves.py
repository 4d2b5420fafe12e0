"""A table read by two processes is the table that one reads."""

import os
import random
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from attnbench.store import RECORDS, DamagedRun, halves, load
from attnbench.store.columns import Columns
from attnbench.store.fast import columns_of
from impls.loading import load_file

written = load_file(Path(__file__).with_name("records.py")).written


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Whatever there is counts as large, on two processors."""
    monkeypatch.setattr(halves, "LARGE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def started(monkeypatch):
    """What was started, as it goes."""
    seen, real = [], subprocess.Popen

    def popen(*words, **more):
        seen.append(real(*words, **more))
        return seen[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return seen


def by_one(paths):
    return pd.DataFrame(dict(columns_of(paths).columns.whole()))


def test_two_processes_read_what_one_reads(tmp_path, made, started):
    paths = [
        written(tmp_path / str(seed), [r.line() for r in made.sweep_like(40, seed)])
        for seed in range(5)
    ]
    table = load(paths)
    (other,) = started
    assert other.returncode == 0
    assert [Path(x) for x in other.args[4:]] == paths[3:]
    pd.testing.assert_frame_equal(table, by_one(paths))


@pytest.mark.parametrize(
    "values",
    [[1, 2.5], [1, "two"], [None, None], [None, 1], [True, None], [True, 1], [2**70, 1],
     [2**63, None], ["a", None], [[1], None], [{}, 1], [{"x": 1}, {"y": 2}], ["a", "a"]],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_of_two_parts_the_types_are_those_of_the_whole(tmp_path, made, values, packed):
    paths = [
        written(tmp_path / str(n), [made.record(options={"o": value}).line(), made.timed().line()])
        for n, value in enumerate(values)
    ]
    parts = [columns_of([path]).columns for path in paths]
    if packed:
        parts[1].pack()
    parts[0].extend(parts[1])
    pd.testing.assert_frame_equal(pd.DataFrame(dict(parts[0].whole())), by_one(paths))


def test_a_part_without_rows_adds_none(tmp_path, made):
    path = written(tmp_path, [made.timed().line()])
    for parts in (
        [columns_of([path]).columns, Columns("machine")],
        [Columns("machine"), columns_of([path]).columns],
    ):
        parts[0].extend(parts[1])
        pd.testing.assert_frame_equal(pd.DataFrame(dict(parts[0].whole())), by_one([path]))


@pytest.mark.parametrize("where", [0, 3])
def test_a_damaged_line_is_named_whichever_process_read_it(tmp_path, made, where):
    *lines, last = [made.timed(name).line() for name in "abcd"]
    paths = [written(tmp_path / str(n), lines) for n in range(4)]
    with (paths[where] / RECORDS).open("a") as more:
        more.write("{nonsense\n" + last + "\n")
    with pytest.warns(DamagedRun, match=f"line 4 of {paths[where] / RECORDS} can't be read"):
        assert len(load(paths)) == 13


def test_where_the_other_dies_all_is_read_here(tmp_path, made, monkeypatch):
    paths = [written(tmp_path / str(n), [made.timed(str(n)).line()]) for n in range(4)]
    real = subprocess.Popen

    def killed(words, **more):
        return real(["sh", "-c", "kill -9 $$"], **more)

    monkeypatch.setattr(subprocess, "Popen", killed)
    assert load(paths)["variant"].tolist() == list("0123")


def test_the_other_does_not_outlive_a_refusal(tmp_path, made, refused, started):
    paths = [
        written(tmp_path / str(n), [made.timed(f"v{i}").line() for i in range(200)])
        for n in range(4)
    ]
    (paths[0] / RECORDS).write_text("{}\n{}\n")
    refused(lambda: load(paths), "line 1")
    assert started and all(each.returncode is not None for each in started)


@pytest.mark.parametrize("why", ["little", "one processor", "one run"])
def test_where_it_would_not_pay_nobody_else_is_started(tmp_path, made, monkeypatch, started, why):
    paths = [written(tmp_path / str(n), [made.timed().line()]) for n in range(4)]
    if why == "little":
        monkeypatch.setattr(halves, "LARGE", 1 << 20)
    elif why == "one processor":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    else:
        paths = paths[:1]
    assert len(load(paths)) == len(paths)
    assert not started


def test_rows_stand_in_the_order_of_their_runs_however_large_each_is(tmp_path, made):
    sizes = [1, 60, 2, 2, 30, 1]
    random.Random(0).shuffle(sizes)
    paths = [
        written(tmp_path / str(n), [made.timed(f"{n}.{i}").line() for i in range(size)])
        for n, size in enumerate(sizes)
    ]
    names = [f"{n}.{i}" for n, size in enumerate(sizes) for i in range(size)]
    assert load(paths)["variant"].tolist() == names
