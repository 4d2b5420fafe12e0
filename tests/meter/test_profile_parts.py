"""Operators, phases, kernels and sources of a profile, on events made by hand."""

from types import SimpleNamespace

from torch.autograd import DeviceType

from attnbench.meter.memory import named, own_of
from attnbench.meter.profile import (
    Allocator,
    MemoryStep,
    Timeline,
    Window,
    kernels,
    memory_values,
    moments,
    operators,
    phase_at,
)
from impls.problem import Problem

DEFAULTS = {
    "start_thread_id": 1, "nbytes": 0, "flops": 0, "shapes": [], "dtypes": [],
    "device_type": DeviceType.CPU, "correlation_id": 0, "linked_correlation_id": 0,
    "is_user_annotation": False,
}  # fmt: skip


def event(name, start, length, **more):
    """An event of the profiler's: each value is a method."""
    values = {"name": name, "start_ns": start, "duration_ns": length, **DEFAULTS, **more}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_an_operators_own_is_without_those_inside_it():
    events = [
        event("aten::outer", 0, 100),
        event("aten::inner", 10, 30),
        event("[memory]", 15, 0, nbytes=64),
        event("[memory]", 60, 0, nbytes=8),
        event("[memory]", 70, 0, nbytes=-8),
        event("aten::next", 100, 5),
        event("aten::elsewhere", 20, 50, start_thread_id=2),
        event("autograd::engine", 0, 200),
    ]
    made = list(own_of(named(events), allocations=True))
    found = {own.event.name(): (own.nanoseconds, own.allocated) for own in made}
    called = {own.event.name(): [event.name() for event in own.called] for own in made}
    assert called == {"aten::outer": ["aten::inner"]} | {name: [] for name in list(found)[1:]}
    assert found == {
        "aten::outer": (70, 8),
        "aten::inner": (30, 64),
        "aten::next": (5, 0),
        "aten::elsewhere": (50, 0),
    }


def test_operators_fall_into_the_phase_that_they_start_in():
    windows = [Window("forward", 0, 10), Window("backward", 10, 20), Window("forward", 30, 40)]
    assert [phase_at(windows, t) for t in (0, 9, 10, 19, 20, 25, 30, 40, -1)] == [
        "forward",
        "forward",
        "backward",
        "backward",
        None,
        None,
        "forward",
        None,
        None,
    ]
    events = [
        event("aten::a", 1, 2),
        event("aten::a", 12, 4),
        event("aten::a", 31, 3),
        event("aten::a", 22, 3),
    ]
    found = operators(events, windows)
    assert (found["forward"]["aten::a"].nanoseconds, found["forward"]["aten::a"].calls) == (5, 2)
    assert found["backward"]["aten::a"].nanoseconds == 4


def test_kernels_belong_to_the_phase_of_what_launched_them():
    cuda = DeviceType.CUDA
    linked = {"device_type": cuda, "linked_correlation_id": 7}
    events = [
        event("aten::mm", 5, 2, correlation_id=7, flops=100),
        event("gemm", 15, 6, **linked),
        event("attnbench: forward", 5, 10, **linked, is_user_annotation=True),
        event("stray", 15, 6, device_type=cuda, linked_correlation_id=99),
    ]
    found = kernels(events, [Window("forward", 0, 10), Window("backward", 10, 20)])
    assert set(found) == {"forward"} and set(found["forward"]) == {"gemm"}
    assert (found["forward"]["gemm"].nanoseconds, found["forward"]["gemm"].flops) == (6, 100)


def test_thinning_out_keeps_the_peak_and_the_end():
    a, b = Allocator("a.py:1", "aten::a", False), Allocator("b.py:2", "aten::b", True)
    steps = []
    for i in range(5000):
        steps += [MemoryStep(10 * i, a, 8), MemoryStep(10 * i + 5, a, -8)]
    steps.insert(6001, MemoryStep(steps[6000].at_ns + 1, b, 100))
    steps.insert(6003, MemoryStep(steps[6001].at_ns + 1, b, -100))
    found = moments(steps, 100)
    assert len(found) <= 110
    assert max(m.total for m in found) == 108
    assert found[-1].total == 0
    assert next(m for m in found if m.total == 108).alive == {a: 8, b: 100}
    assert len(moments(steps[:50], 100)) == 50
    assert moments([], 100) == []


def test_a_source_is_told_apart_for_its_peak_or_for_holding_long():
    sources = [Allocator(f"a.py:{i}", "aten::a", False) for i in range(40)]
    steps = [MemoryStep(0, sources[0], 5)]  # little, but all along
    steps += [MemoryStep(10 + i, s, 10 + i) for i, s in enumerate(sources[1:21])]
    steps += [MemoryStep(100 + i, s, -s_bytes) for i, (_, s, s_bytes) in enumerate(steps[1:21])]
    for i, s in enumerate(sources[21:]):  # much, for an instant, one after another
        steps += [MemoryStep(200 + 2 * i, s, 50), MemoryStep(201 + 2 * i, s, -50)]
    steps.append(MemoryStep(10_000, sources[0], -5))
    timeline = Timeline(steps, [], 0, None, 10_000)
    told = memory_values(timeline, Problem())
    assert told["peak_bytes"] == sum(x.nbytes for x in steps[:21])
    places = [s["place"] for s in told["sources"]]
    assert "a.py:0" in places and "a.py:20" in places
    assert told["sources"][-1]["operator"] == "all the rest"
    assert all(sum(row) <= told["peak_bytes"] for row in told["alive"])
    assert max(sum(row) for row in told["alive"]) == told["peak_bytes"]
    rest = [row[-1] for row in told["alive"]]
    assert max(rest) == told["sources"][-1]["most_bytes"] > 0
