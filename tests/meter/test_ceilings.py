"""Ceilings: what this device can do at best, and the least time that follows."""

import pytest
import torch

from attnbench.core.record import least_time
from attnbench.meter import clocks as ceilings
from attnbench.meter.clocks import measure_ceilings as measure
from impls.cost import Cost

GIVEN = {"flops": {"float32": 1e9}, "copy": {"1000": 8e9, "100000": 4e9, "10000000": 1e9}}


def test_products_and_copies_are_positive_and_of_a_believable_size(monkeypatch):
    monkeypatch.setitem(ceilings.PRODUCT_SIZES, "cpu", (128, 256))
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", (1 << 18, 1 << 22))
    got = measure("cpu", ["float32", "float64", "float32"])
    assert set(got["flops"]) == {"float32", "float64"}
    assert set(got["copy"]) == {str(1 << 18), str(1 << 22)}
    assert all(1e8 < rate < 1e13 for rate in got["flops"].values())
    assert all(1e7 < speed < 1e13 for speed in got["copy"].values())


def test_the_best_of_the_sizes_and_tries_counts(monkeypatch):
    class Clock:
        def samples(self, before, call, count):
            size = call().numel()
            return [2.0 * size, 1.0 * size, 3.0 * size][:count] + [9.0 * size] * (count - 3)

    monkeypatch.setattr(ceilings, "clock_for", lambda device, phase: Clock())
    monkeypatch.setitem(ceilings.PRODUCT_SIZES, "cpu", (2, 4))
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", (64,))
    got = measure("cpu", ["float32"])
    assert got["flops"] == {"float32": 2 * 4**3 / 16}  # the larger does 8 FLOP/s, the other 4
    assert got["copy"] == {"64": 64 / 32}  # 32 bytes read and 32 written


def test_nothing_counts_before_the_device_is_warm(monkeypatch):
    class Clock:
        now = 0.0

        def samples(self, before, call, count):
            self.now += 0.02 * count
            return [10.0 if self.now < 0.3 else 1.0] * count

    clock = Clock()
    monkeypatch.setattr(ceilings, "clock_for", lambda device, phase: clock)
    monkeypatch.setattr(ceilings, "perf_counter", lambda: clock.now)
    monkeypatch.setitem(ceilings.WARM_S, "cpu", 0.3)
    monkeypatch.setitem(ceilings.PRODUCT_SIZES, "cpu", (4,))
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", (64,))
    assert measure("cpu", ["float32"]) == {"flops": {"float32": 128.0}, "copy": {"64": 64.0}}


@pytest.mark.parametrize(("where", "rate"), [(("cpu",), 256.0), ((), 128.0)])
def test_float32_may_be_made_of_three_products_of_tf32_on_a_gpu(monkeypatch, where, rate):
    class Clock:
        def samples(self, before, call, count):
            return [1 / 6 if torch.get_float32_matmul_precision() == "high" else 1.0] * count

    monkeypatch.setattr(ceilings, "clock_for", lambda device, phase: Clock())
    monkeypatch.setattr(ceilings, "THREE_OF_TF32", where)
    monkeypatch.setitem(ceilings.PRODUCT_SIZES, "cpu", (4,))
    before = torch.get_float32_matmul_precision()
    flops = measure("cpu", ["float32", "float64"])["flops"]
    assert flops == pytest.approx({"float32": rate, "float64": 128.0})
    assert torch.get_float32_matmul_precision() == before


def test_much_work_on_few_bytes_is_bound_by_the_product():
    assert least_time(Cost(flops=10**9, bytes=500), "float32", GIVEN) == pytest.approx(1.0)


def test_little_work_on_many_bytes_is_bound_by_the_copy():
    assert least_time(Cost(flops=10, bytes=10**7), "float32", GIVEN) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("nbytes", "speed"),
    [
        (500, 8e9),
        (1000, 8e9),
        (1001, 4e9),
        (100_000, 4e9),
        (10**6, 1e9),
        (10**12, 1e9),
    ],
)
def test_bytes_are_held_against_the_fastest_copy_that_is_as_large(nbytes, speed):
    assert least_time(Cost(0, nbytes), "float32", GIVEN) == pytest.approx(nbytes / speed)


def test_a_larger_copy_that_happened_to_be_faster_is_the_ceiling():
    given = {**GIVEN, "copy": {"1000": 1e9, "100000": 4e9}}
    assert least_time(Cost(0, 10), "float32", given) == pytest.approx(10 / 4e9)


def test_there_is_no_least_time_where_the_product_was_not_measured():
    assert least_time(Cost(1, 1), "bfloat16", GIVEN) is None
    assert least_time(Cost(1, 1), "float32", {}) is None
