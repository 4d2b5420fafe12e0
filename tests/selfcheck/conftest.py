"""Plants measured in this process, and everything that they may have changed put back."""

import random
import time

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode

from attnbench.core.record import Record
from attnbench.features.selfcheck.selfcheck import BUDGET_S
from attnbench.gate import budget, hygiene, watch
from attnbench.meter import clocks, timer
from attnbench.meter.cell import Bench
from attnbench.meter.timer import Job
from attnbench.sweep.worker import _measured

NAMES = (
    (time, "perf_counter"), (time, "perf_counter_ns"), (clocks, "perf_counter_ns"),
    (torch.cuda, "synchronize"), (torch, "allclose"), (torch, "equal"), (budget, "check"),
    (timer.Timed, "wrong"), (watch, "replaced"), (hygiene.check_finite, "__code__"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def put_back():
    """Functions, numbers, settings and random states as they were."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    modes = len(_get_current_function_mode_stack())
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in NAMES:
            patch.setattr(owner, name, getattr(owner, name))
        for name, value in budget.EPSILON.items():
            patch.setitem(budget.EPSILON, name, value)
        yield
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cuda.enable_flash_sdp(True)
    while len(_get_current_function_mode_stack()) > modes:
        _pop_mode()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


@pytest.fixture(scope="session")
def bench():
    return Bench()


@pytest.fixture
def measured(bench):
    """The record that a worker would send of a variant, and whether it should be replaced."""

    def measure(variant, problem):
        answer = _measured(bench, Job(variant, problem, budget_s=BUDGET_S))
        return Record.from_dict(answer["record"]), answer["spoiled"]

    return measure
