"""The parts of a recorder: masks looked at once, gradients timed, steps, places, modules."""

import gc
import importlib.util
import sys
import threading

import numpy as np
import pytest
import torch

from attnbench.models.capture import clocks, gradients, masks, recorder, steps, where
from attnbench.models.capture.asked import Call
from attnbench.models.capture.imports import After
from attnbench.models.capture.masks import Masks
from attnbench.models.capture.recorder import Recorder
from attnbench.models.capture.samples import Samples
from attnbench.models.capture.tally import Entry, Later, Tally
from impls.masks import Shape
from impls.problem import Problem

SHAPE = Shape(2, 4, 12, 12)
CAUSAL = torch.ones(12, 12, dtype=torch.bool).tril()


@pytest.fixture
def looked(monkeypatch):
    """How often a mask was looked at."""
    seen, before = [], masks.recognised

    def counting(*given):
        seen.append(given)
        return before(*given)

    monkeypatch.setattr(masks, "recognised", counting)
    return seen


def test_a_mask_is_looked_at_once_until_it_is_written_to(looked):
    known, mask = Masks(None), CAUSAL.clone()
    assert [str(known.of(mask, False, SHAPE).mask) for _ in range(3)] == ["causal"] * 3
    assert str(known.of(mask.clone(), False, SHAPE).mask) == "causal" and len(looked) == 1
    mask[:] = True
    assert known.of(mask, False, SHAPE).mask.plain and len(looked) == 2
    with torch.inference_mode():  # where torch keeps no count of writings
        other = CAUSAL.clone()
        assert str(known.of(other, False, SHAPE).mask) == "causal"
        other[:] = True
        assert known.of(other, False, SHAPE).mask.plain


def test_a_new_tensor_at_an_old_ones_place_is_another(looked):
    known = Masks(None)
    for turn in range(20):
        mask = CAUSAL.clone() if turn % 2 else torch.ones(12, 12, dtype=torch.bool)
        assert known.of(mask, False, SHAPE).mask.plain == (turn % 2 == 0)
        del mask


def test_a_learned_bias_is_kept_once_for_a_place(tmp_path, looked):
    known = Masks(tmp_path)
    found = {known.of(torch.randn(1, 4, 12, 12, requires_grad=True), False, SHAPE, "here")
             for _ in range(5)}  # fmt: skip
    assert len(found) == 1 and len(looked) == 1 and len(list(tmp_path.iterdir())) == 1
    known.of(torch.randn(1, 4, 12, 12), False, SHAPE)  # another, that hides the same keys
    assert len(list(tmp_path.iterdir())) == 1


def test_masks_without_a_name_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(masks, "MOST", 3)
    known = Masks(tmp_path)
    notes = [known.of(torch.rand(12, 12) > 0.5, False, SHAPE).note for _ in range(5)]
    assert notes[:3] == [""] * 3 and all("3 such were kept" in note for note in notes[3:])
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_mask_is_too_large_by_its_scores_whatever_axes_it_has(axes, monkeypatch):
    monkeypatch.setattr(masks, "LARGEST", 2 * 12 * 12)
    mask = CAUSAL.reshape(*[1] * (axes - 2), 12, 12)
    assert Masks(None).of(mask, False, SHAPE).note == ""
    many = CAUSAL.repeat(3, 1, 1, 1)
    assert "too large" in Masks(None).of(many, False, Shape(3, 4, 12, 12)).note


class Turning(torch.autograd.Function):
    """Moves the clock by so much in its backward pass."""

    @staticmethod
    def forward(ctx, x, clock, by):
        ctx.clock, ctx.by = clock, by
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.by
        return grad, None, None


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    for module in (clocks, gradients, recorder, steps):
        monkeypatch.setattr(module, "perf_counter", lambda: Clock.now)
    return Clock


def test_the_gradient_of_a_call_is_timed_and_of_nothing_else(clock):
    counts = Tally()
    entry = Entry(None, counts)
    q, k = (torch.ones(3, requires_grad=True) for _ in "qk")
    a, b = Turning.apply(q, clock, 100.0), Turning.apply(k, clock, 1000.0)
    inner = Turning.apply(Turning.apply(a, clock, 3.0) * Turning.apply(b, clock, 2.0), clock, 7.0)
    gradients.watch(inner, (a, b), entry, counts, clocks.Host())
    Turning.apply(inner, clock, 10.0).sum().backward()
    assert counts.mine().by_entry[entry] == [0.0, 0.0, 12.0]
    assert counts.attention_s() == 12.0


class Again(torch.autograd.Function):
    """Does something in its backward pass, as a checkpoint that computes attention again."""

    @staticmethod
    def forward(ctx, x, deed):
        ctx.deed = deed
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.deed()
        return grad, None


def test_what_is_recorded_within_a_gradient_is_not_counted_twice(clock):
    counts = Tally()
    first, second = Entry(None, counts), Entry(None, counts)

    def again():
        clock.now += 7.0
        call = Later()
        call.add(4.0, backward=False)
        call.to(second)
        counts.within_gradient(call)
        counts.mine().looked += 2.0

    x = torch.ones(3, requires_grad=True)
    out = Again.apply(x, again)
    gradients.watch(out, (x,), first, counts, clocks.Host())
    out.sum().backward()
    again()  # outside of the gradient: nothing is taken off
    found = counts.mine().by_entry
    assert (found[first], found[second]) == ([0.0, 0.0, 1.0], [0.0, 8.0, 0.0])


def test_nor_on_a_gpu_where_both_are_read_later(gpu):
    counts, events = Tally(), clocks.Events()
    first, second = Entry(None, counts), Entry(None, counts)

    def again():
        gpu.queued += 3
        call = Later()
        events.end(events.begin(), call, backward=False)
        call.to(second)
        counts.within_gradient(call)

    x = torch.ones(3, requires_grad=True)
    out = Again.apply(x, again)
    gradients.watch(out, (x,), first, counts, events)
    out.sum().backward()
    events.read(wait=True)
    found = counts.mine().by_entry  # from the first event to the last but the one second of a call
    assert (found[first], found[second]) == ([0.0, 0.0, 5.0], [0.0, 1.0, 0.0])


def test_reading_a_gpus_events_does_not_make_the_window_longer(gpu, clock):
    counts, events = Tally(), clocks.Events()
    entry = Entry(None, counts)
    counts.called(entry, 1.0, 3.0)
    events.end(events.begin(), entry, backward=True)
    clock.now = 100.0
    events.read(wait=True)
    assert counts.window() == 2.0


def test_a_gradient_in_a_thread_of_its_own_is_in_the_window(clock):
    counts = Tally()
    entry = Entry(None, counts)
    counts.called(entry, 1.0, 3.0)
    gradient = gradients.Gradient(entry, counts, clocks.Host())
    clock.now = 9.0
    one = threading.Thread(target=lambda: (gradient.enter(None), gradient.leave()))
    one.start()
    one.join()
    assert counts.window() == 8.0


def test_looking_at_calls_is_taken_off_the_window_and_the_steps(clock):
    some, x = Recorder(), torch.zeros(1, 1, 2, 2)
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)

    def looked_at():
        clock.now += 16.0
        return Call("sdpa", x, x, x)

    for _ in range(3):
        begun = some.clocks.begin(x)
        clock.now += 1.0
        some.made(looked_at, x, begun)
        clock.now += 3.0
        some.steps.stepped(optimizer)
    calls = some.calls(complete=True)
    assert calls.attention_s == 3.0 and calls.wall_s == 9.0  # from 0 to 41, less twice 16
    assert (calls.step_s, calls.step_share) == (4.0, 0.25)


def test_what_goes_wrong_in_telling_a_call_is_counted():
    some, x = Recorder(), torch.zeros(1, 1, 2, 2)
    some.made(lambda: 1 / 0, x, some.clocks.begin(x))
    assert some.calls(complete=True).sites == []
    assert list(some.amiss) == ["ZeroDivisionError: division by zero"]


def test_steps_are_from_one_optimizers_step_to_the_next(clock):
    counts = Tally()
    entry, seen = Entry(None, counts), steps.Steps(counts)
    first, second = (torch.optim.SGD([torch.ones(1)], lr=0.1) for _ in "ab")
    assert seen.told()["steps"] == 0
    for took, attention in ((9.0, 9.0), (2.0, 1.0), (4.0, 1.0), (10.0, 1.0)):
        clock.now += took - 0.5
        entry.add(attention, backward=False)
        seen.stepped(first)
        clock.now += 0.5
        seen.stepped(second)  # of the same step
    told = seen.told()
    between = told.pop("step_share_between")
    assert told == {"steps": 3, "step_s": 4.0, "step_share": 0.25}
    assert between[0] <= 0.25 <= between[1]


def test_when_the_first_optimizer_is_gone_another_counts(clock):
    seen = steps.Steps(Tally())
    for took in (1.0, 2.0):  # a phase of training each
        optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        for _ in range(3):
            clock.now += took
            seen.stepped(optimizer)
        clock.now += 50.0
        del optimizer
        gc.collect()
    assert seen.told()["steps"] == 4 and seen.told()["step_s"] == 1.5


@pytest.fixture
def gpu(monkeypatch):
    """A GPU's events, on a clock that passes one second a call."""

    class Gpu:
        done, queued, capturing = 0, 0, False

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            Gpu.queued += 1
            self.at = Gpu.queued

        def query(self):
            return self.at <= Gpu.done

        def synchronize(self):
            Gpu.done = max(Gpu.done, self.at)

        def elapsed_time(self, later):
            assert later.query()
            return 1e3 * (later.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Gpu.capturing)
    return Gpu


def test_a_gpus_calls_are_read_when_they_have_passed(gpu):
    counts = Tally()
    entry, events = Entry(None, counts), clocks.Events()
    for _ in range(3):
        events.end(events.begin(), entry, backward=False)
    gpu.done = 4
    assert events.read(wait=False) is None and counts.attention_s() == 2.0
    assert events.read(wait=True) is not None and counts.attention_s() == 3.0
    gpu.capturing = True
    events.end(events.begin(), entry, backward=False)  # of a graph: not timed
    assert gpu.queued == 6
    gpu.capturing = False
    for _ in range(2 * clocks.PENDING):  # whoever calls and calls does not hold all events
        gpu.done = gpu.queued
        events.end(events.begin(), entry, backward=True)
    assert len(events._pending) <= clocks.PENDING + 1


def test_places_inside_torch_and_of_the_standard_library_are_passed_over():
    assert where.kind_of(torch.nn.__file__) == where.INSIDE
    assert where.kind_of(where.__file__) == where.INSIDE
    assert where.kind_of(sys.modules["threading"].__file__) == where.INSIDE
    assert where.kind_of(pytest.__file__) == where.MODEL
    assert where.kind_of(__file__) == where.USER
    inside, model, user = torch.__file__, pytest.__file__, __file__
    places = [(inside, 1, "f"), (model, 2, "f"), (inside, 3, "f"), (model, 4, "f"), (user, 5, "f")]
    assert where.found_in(places) == (places[1], places[4])
    assert where.found_in(places[:3]) == (places[1], None)


def test_a_module_is_awaited_and_keeps_its_loader(tmp_path, monkeypatch):
    (tmp_path / "awaited_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "awaited_module", raising=False)
    done = []
    deeds = {"awaited_module": lambda: done.append(sys.modules["awaited_module"].x)}
    more = {"sys": lambda: done.append("there"), "no_such": done.clear, "os": lambda: 1 / 0}
    failed = []
    after = After({**deeds, **more}, failed.append)
    after.begin()
    assert importlib.util.find_spec("awaited_module") is not None  # who only asks uses up nothing
    import awaited_module
    import awaited_module as again

    after.end()
    assert done == ["there", 1] and again is awaited_module
    assert [type(error) for error in failed] == [ZeroDivisionError]
    assert type(awaited_module.__loader__).__name__ == "SourceFileLoader"
    with pytest.raises(ModuleNotFoundError):
        import no_such  # noqa: F401


def test_samples_of_an_earlier_capture_stay(tmp_path):
    x = torch.ones(1, 1, 8, 4)
    files = [Samples(tmp_path).keep("here", Problem(), (x * n, x, x)) for n in range(2)]
    assert len(set(files)) == 2
    for n, file in enumerate(files):
        with np.load(file) as arrays:
            assert (arrays["q"] == n).all()


def test_samples_are_told_apart_as_octaves_are(tmp_path):
    some, x = Samples(tmp_path), torch.ones(1, 1, 8, 4)
    files = [some.keep("here", Problem().with_(q_len=1, kv_len=n), (x, x, x))
             for n in (127, 128, 129, 256)]  # fmt: skip
    assert [bool(file) for file in files] == [True, False, True, False]
