"""What variants share, and what the next cell would suffer from: noticed, and said how."""

import builtins
import math
import os
import resource
import sys
import threading
import time
import types
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnbench.core import settings
from attnbench.core.settings import KEPT, Settings, environment
from attnbench.gate import budget, watch
from attnbench.gate.watch import (
    disturbed,
    left_changed,
    process_state,
    sealed,
    snapshot,
)
from attnbench.meter import clocks
from impls import masks


def test_nothing_has_changed_where_nothing_was_done():
    before = snapshot()
    q = torch.ones(1, 1, 4, 8, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q).sum().backward()
    with torch.no_grad():
        torch.softmax(q, -1)
    torch.rand(3, generator=torch.Generator().manual_seed(1))  # of its own
    np.random.default_rng(1).random()
    torch.set_num_threads(2)
    torch.set_num_threads(1)
    assert left_changed(before) == ""


@pytest.mark.parametrize(
    ("change", "to", "back", "words"),
    [
        (torch.set_grad_enabled, False, True, "gradient mode (True → False)"),
        (
            torch.set_float32_matmul_precision,
            "medium",
            "highest",
            "float32 product precision (highest → medium)",
        ),
        # what torch.use_deterministic_algorithms calls after an import that takes seconds
        (torch._C._set_deterministic_algorithms, True, False, "deterministic mode (False → True)"),
    ],
)
def test_a_setting_that_was_changed_is_named_with_both_values(change, to, back, words):
    before = snapshot()
    change(to)
    try:
        assert left_changed(before) == f"{SHARED} {words}"
    finally:
        change(back)


def nan(*_, **__):
    return math.nan


SHARED = "it left changed what other variants share:"
REPLACED = [  # of what, which name, by what, and how it is named
    (F, "softmax", nan, "torch.nn.functional.softmax"),
    (builtins, "max", nan, "builtins.max"),
    (torch.Tensor, "softmax", nan, "torch.Tensor.softmax"),
    (np, "allclose", nan, "numpy.allclose"),
    (masks.Mask, "visible", nan, "impls.masks.Mask.visible"),
    (clocks.HostClock, "samples", nan, "attnbench.meter.clocks.HostClock.samples"),
    (
        budget.check_unsampled,
        "__defaults__",
        (1e9,),
        "the inside of attnbench.gate.budget.check_unsampled",
    ),
    (sys.modules, "time", types.ModuleType("time"), "time"),
    (torch, "equal", torch._disable_dynamo(torch.allclose), "torch.equal"),
]
SEALED = [
    (watch, "left_changed", lambda before: "", "attnbench.gate.watch.left_changed"),
    (watch, "OTHERS", (), "attnbench.gate.watch.OTHERS"),
    (watch.check, "__code__", (lambda before: None).__code__, "attnbench.gate.watch.check"),
]


@contextmanager
def replaced(owner, name, value):
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(owner, dict):
            patch.setitem(owner, name, value)
        else:
            patch.setattr(owner, name, value, raising=False)
        yield


@pytest.mark.parametrize(("owner", "name", "value", "full"), REPLACED)
def test_what_was_replaced_is_named_and_nothing_else(owner, name, value, full):
    before = snapshot()
    with replaced(owner, name, value):
        message = left_changed(before)
    assert message == f"it replaced {full}"
    assert left_changed(before) == ""


def test_a_number_of_the_ruler_that_was_changed_is_named():
    before = snapshot()
    with replaced(budget.FLOOR_EPSILONS, "float32", 1e9):
        message = left_changed(before)
    assert message == f"{SHARED} attnbench.gate.budget.FLOOR_EPSILONS"


@pytest.mark.parametrize(("owner", "name", "value", "full"), SEALED)
def test_a_seal_sees_who_replaces_what_would_notice(owner, name, value, full):
    broken = sealed()
    with replaced(owner, name, value):
        names = broken()
    assert names == [full]
    assert broken() == []


def test_names_that_came_and_what_torchs_compiler_puts_around_a_function_are_no_fault(monkeypatch):
    before = snapshot()
    monkeypatch.setattr(budget, "new", 1, raising=False)
    monkeypatch.setattr(torch, "new_function", len, raising=False)
    monkeypatch.setitem(sys.modules, "attnbench.new", types.ModuleType("attnbench.new"))
    monkeypatch.setattr(torch, "manual_seed", torch._disable_dynamo(torch.manual_seed))
    assert left_changed(before) == ""


def test_a_copy_of_this_process_that_runs_on_is_named():
    before = snapshot()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        assert left_changed(before) == f"it left a copy of its process running: {child}"
        assert left_changed(snapshot()) == ""
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert left_changed(before) == ""


def test_every_library_is_told_the_threads_and_torch_the_precision_of_products():
    for given, precision in ((Settings(2, tf32=True), "high"), (Settings(1, KEPT), "highest")):
        told, names = environment(given.threads, given.allocator), ("OMP", "MKL", "OPENBLAS")
        assert {told[f"{name}_NUM_THREADS"] for name in names} == {str(given.threads)}
        assert told["OMP_WAIT_POLICY"] == "passive"
        assert ("MALLOC_TOP_PAD_" in told) == (given.allocator == KEPT)
        settings.apply(given)
        assert torch.get_num_threads() == given.threads
        assert torch.get_float32_matmul_precision() == precision
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(("gpu", "stream"), [(1, 0), (0, 640)])
def test_another_current_gpu_or_stream_is_noticed(monkeypatch, gpu, stream):
    at = [0, 0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: at[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=at[1]))
    before = snapshot()
    assert left_changed(before) == ""
    at[:] = gpu, stream
    assert left_changed(before) == f"{SHARED} current GPU and stream ((0, 0) → ({gpu}, {stream}))"


AT = {
    "folder": "/a", "signals": [1], "variables": {("A", "1")}, "import path": {"/a"},
    "threads": {"one"}, "children": {7}, "files": 100, "memory": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "before", "suffers"),
    [
        ("folder", "/b", True),
        ("folder", "/a", False),
        ("signals", [2], True),
        ("variables", {("A", "1"), ("B", "2")}, True),
        ("variables", set(), False),
        ("import path", {"/a", "/b"}, True),
        ("import path", set(), False),
        ("threads", set(), True),
        ("threads", {"one", "two"}, False),
        ("children", {8}, True),
        ("children", {7, 8}, False),
        ("files", 35, True),
        ("files", 36, False),
        ("memory", 0.3749, True),
        ("memory", 0.375, False),
    ],
)
def test_the_next_cell_suffers_beyond_the_bound_of_each(monkeypatch, name, before, suffers):
    assert set(process_state()) == set(AT)
    monkeypatch.setattr(watch, "process_state", lambda: AT)
    assert disturbed(AT | {name: before}) == ([name] if suffers else [])


def test_a_thread_that_stays_is_noticed_but_for_those_of_torchs_compiler():
    before, over = process_state(), threading.Event()
    monitor = type("Monitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    try:
        for kind, suffers in ((monitor, []), (threading.Thread, ["threads"])):
            kind(target=over.wait, daemon=True).start()
            assert disturbed(before) == suffers
    finally:
        over.set()


def test_memory_is_what_is_held_as_a_share_of_the_limit(monkeypatch):
    limit = [1 << 30]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit[0], limit[0]))
    before = watch._memory()
    held = bytearray(64 << 20)
    assert watch._memory() - before == pytest.approx(1 / 16, abs=0.01)
    del held
    limit[0] = resource.RLIM_INFINITY
    assert watch._memory() == 0.0
