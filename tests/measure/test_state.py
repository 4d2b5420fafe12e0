"""What variants share: what is noticed when one changes it, and how it is said."""

import math
import time

import pytest
import torch
import torch.nn.functional as F

from attnbench.measure.state import SHARED, changes, snapshot


@pytest.fixture(autouse=True)
def restored():
    """The settings as they were."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    device, precision = torch.get_default_device(), torch.get_float32_matmul_precision()
    strict = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_default_device(device if device.type != "cpu" else None)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(strict)
    torch.set_grad_enabled(True)


def test_nothing_has_changed_where_nothing_was_done():
    before = snapshot()
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q).sum().backward()
    with torch.no_grad():
        torch.softmax(q, -1)
    assert changes(before) == []


@pytest.mark.parametrize(("deed", "said"), [
    (lambda: torch.set_num_threads(2), "threads (1 → 2)"),
    (lambda: torch.set_default_dtype(torch.float64),
     "default dtype (torch.float32 → torch.float64)"),
    (lambda: torch.set_default_device("meta"), "default device (cpu → meta)"),
    (lambda: torch.set_grad_enabled(False), "gradient mode (True → False)"),
    (lambda: torch.set_float32_matmul_precision("medium"),
     "float32 product precision (highest → medium)"),
    (lambda: torch.use_deterministic_algorithms(True), "deterministic mode (False → True)"),
], ids=["threads", "dtype", "device", "gradients", "precision", "deterministic"])  # fmt: skip
def test_a_setting_that_was_changed_is_named_with_both_values(deed, said):
    before = snapshot()
    deed()
    assert changes(before) == [said]


def test_a_setting_that_was_put_back_has_not_changed():
    before = snapshot()
    torch.set_num_threads(2)
    torch.set_num_threads(1)
    assert changes(before) == []


@pytest.mark.parametrize(("owner", "name"), SHARED, ids=[f"{o.__name__}.{n}" for o, n in SHARED])
def test_a_function_that_was_replaced_is_named(owner, name):
    before = snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *_, **__: math.nan)
        found = changes(before)
    assert found == [f"{owner.__name__}.{name}"]
    assert changes(before) == []


def test_all_that_was_changed_is_told_at_once():
    before = snapshot()
    torch.set_num_threads(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "softmax", abs)
        patch.setattr(time, "perf_counter", float)
        found = changes(before)
    assert found == ["threads (1 → 2)", "torch.nn.functional.softmax", "time.perf_counter"]
