"""Operators, phases, kernels and sources of a profile, on events made by hand."""

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


class Event:
    """An event of the profiler's, as far as it is asked."""

    def __init__(
        self,
        name,
        start,
        length,
        thread=1,
        nbytes=0,
        flops=0,
        device=DeviceType.CPU,
        correlation=0,
        linked=0,
        note=False,
    ):
        self.values = locals()

    def name(self):
        return self.values["name"]

    def start_ns(self):
        return self.values["start"]

    def duration_ns(self):
        return self.values["length"]

    def start_thread_id(self):
        return self.values["thread"]

    def nbytes(self):
        return self.values["nbytes"]

    def flops(self):
        return self.values["flops"]

    def shapes(self):
        return []

    def dtypes(self):
        return []

    def device_type(self):
        return self.values["device"]

    def correlation_id(self):
        return self.values["correlation"]

    def linked_correlation_id(self):
        return self.values["linked"]

    def is_user_annotation(self):
        return self.values["note"]


def test_an_operators_own_is_without_those_inside_it():
    events = [
        Event("aten::outer", 0, 100),
        Event("aten::inner", 10, 30),
        Event("[memory]", 15, 0, nbytes=64),
        Event("[memory]", 60, 0, nbytes=8),
        Event("[memory]", 70, 0, nbytes=-8),
        Event("aten::next", 100, 5),
        Event("aten::elsewhere", 20, 50, thread=2),
        Event("autograd::engine", 0, 200),
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
        Event("aten::a", 1, 2),
        Event("aten::a", 12, 4),
        Event("aten::a", 31, 3),
        Event("aten::a", 22, 3),
    ]
    found = operators(events, windows)
    assert (found["forward"]["aten::a"].nanoseconds, found["forward"]["aten::a"].calls) == (5, 2)
    assert found["backward"]["aten::a"].nanoseconds == 4


def test_kernels_belong_to_the_phase_of_what_launched_them():
    cuda = DeviceType.CUDA
    events = [
        Event("aten::mm", 5, 2, correlation=7, flops=100),
        Event("gemm", 15, 6, device=cuda, linked=7),
        Event("attnbench: forward", 5, 10, device=cuda, linked=7, note=True),
        Event("stray", 15, 6, device=cuda, linked=99),
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
