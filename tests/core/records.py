"""Small records made by hand, and a run that holds some."""

import pytest

from attnbench.core.disk import RECORDS, StoreError
from attnbench.core.record import Record, Status, Time
from attnbench.core.run_folder import RunFolder
from impls.problem import Problem
from tests.times import figures


def record(variant="a", length=8, **more):
    problem = Problem(q_len=length, kv_len=length)
    return Record(**{"status": Status.MEASURED, "variant": variant, "problem": problem, **more})


def timed(variant="timed", length=8, median=0.25, samples=None):
    time = Time(clock="host", stop="budget", **figures(samples or [median]))
    return record(variant, length, time=time)


def refused(call, *words, kind=StoreError):
    """The sentence with which a call is refused, holding these words."""
    with pytest.raises(kind) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert [word for word in words if word not in sentence] == [], sentence
    return sentence


def written(path, lines):
    """A run that holds these lines."""
    run = RunFolder.create(path, "box", {})
    (run.path / RECORDS).write_text("".join(line + "\n" for line in lines))
    run.close()
    return run.path
