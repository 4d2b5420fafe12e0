"""Each thing that is refused of what came back, by itself: no other check tells it first."""

import ctypes
import mmap
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from attnbench.core.device import Device
from attnbench.gate import hygiene
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import gate
from attnbench.gate.inputs import Call, make
from attnbench.gate.reference import judge


def refused(check, *given):
    with pytest.raises(Wrong) as caught:
        check(*given)
    return str(caught.value)


def test_an_output_is_refused_for_one_thing_at_a_time(truth):
    problem = truth.problem(phase="train")
    leaf, qkv = torch.ones(2, 2, 24, 8, requires_grad=True), make(problem, 0)
    assert hygiene.check_form(problem, leaf * 1).grad_fn is not None
    for out, said in (
        (lambda x: None, "is a NoneType"),
        (lambda x: x.detach().numpy(), "is a ndarray"),
        (lambda x: torch.nn.Parameter(x), "is a Parameter"),
        (lambda x: x.transpose(1, 2), "has the shape (2, 24, 2, 8), not (2, 2, 24, 8)"),
        (lambda x: x.half(), "is float16, not float32"),
        (lambda x: x.to("meta"), "is on meta"),
        (lambda x: vars(x).update(note=1) or x, "carries more than its values: note"),
    ):
        assert said in refused(hygiene.check_form, problem, out(leaf * 1))
        hygiene.check_nothing_goes_on(problem, lambda q, k, v, out=out: out(v), qkv)  # not its part


def test_an_input_that_was_written_to_is_named_whatever_it_holds(truth):
    problem = truth.problem()
    inputs = make(problem, 0)
    for added, said in ((1, "it changed its input v"), (0, "it wrote to its input v and put it")):
        call = Call(problem, truth.attention(problem), inputs)
        call.forward()
        hygiene.check_inputs_kept(call, inputs)
        call.leaves["v"].add_(added)
        assert refused(hygiene.check_inputs_kept, call, inputs).startswith(said)


def weighted(*values, learns=True, **more):
    """Weights by name, as a layer and its definition carry them."""
    return SimpleNamespace(weights={"w": torch.tensor(values, requires_grad=learns), **more})


def test_weights_are_those_of_the_definition_by_name_form_and_value(truth):
    problem, define = truth.problem(phase="train"), weighted(1.0, 2.0)
    hygiene.check_weights(problem, weighted(1.0, 2.0), define)
    for given, said in (
        (SimpleNamespace(), "its weights and those of its definition differ: w"),
        (weighted(1.0, 2.0, u=1), "its weights and those of its definition differ: u"),
        (weighted(1.0, 2.0, learns=False), "its weight w takes no gradient"),
        (weighted(1.0, 3.0), "its weight w is not that of its definition"),
        (weighted(1.0, 2.0, 2.0), "its weight w is not that of its definition"),
    ):
        assert refused(hygiene.check_weights, problem, given, define) == said


def goes_on(truth, attend=None):
    problem = truth.problem()
    inputs = make(problem, 0)
    hygiene.check_nothing_goes_on(problem, attend or truth.attention(problem), inputs)


def test_an_output_filled_in_after_the_return_is_put_off_and_one_of_nan_is_not(truth, monkeypatch):
    own, kept = make(truth.problem(), 0), []

    def attend(factor):
        return lambda q, k, v: kept.append(v.clone()) or kept[-1].mul_(factor)

    monkeypatch.setattr(hygiene.time, "sleep", lambda s: kept[-1].add_(1))
    assert "work was put off" in refused(goes_on, truth, attend(1))
    goes_on(truth, attend(torch.nan))
    assert not any(torch.equal(v, own["v"]) for v in kept), "on values of its own"


class LazyGpu(Device):
    """A GPU that does nothing of what is put off until somebody waits for all its streams."""

    queued = True

    def __init__(self):
        super().__init__("cuda")
        self.deeds, self.late = [], []

    def sleep(self, cycles):
        self.deeds.append("sleep")

    def synchronize(self):
        self.deeds.append("wait")
        while self.late:
            self.late.pop()()


@pytest.mark.parametrize("late", [True, False])
def test_on_a_gpu_what_is_queued_after_a_call_finds_its_output(truth, monkeypatch, late):
    device, kept = LazyGpu(), {}
    monkeypatch.setattr(hygiene, "device_for", lambda name: device)
    problem = truth.problem()
    inner, inputs = truth.attention(problem), make(problem, 0)

    def attend(q, k, v):
        device.deeds.append("call")
        out, right = kept.setdefault("block", torch.empty(problem.output_shape)), inner(q, k, v)
        if late:  # in memory that holds what the call before it has left there
            device.late[:] = [lambda: out.copy_(right)]
            device.late[0]() if device.deeds.count("call") == 1 else None
        else:
            out.copy_(right)
        return out

    with pytest.raises(Wrong, match="work was put off") if late else nullcontext():
        hygiene.check_nothing_goes_on(problem.with_(device="cuda"), attend, inputs)
    assert device.deeds == ["call", "sleep", "call", "wait"]


def test_a_thread_that_is_new_is_named_unless_it_is_the_one_that_looks_after_tqdm_s_bars():
    tqdm, ends = pytest.importorskip("tqdm").tqdm, threading.Event()
    older = hygiene.counted_threads()
    begun = [threading.Thread(target=ends.wait, name=name) for name in ("tqdm_monitor", "old")]
    for thread in begun:
        thread.start()
    before = [x for x in hygiene.counted_threads() if x is not begun[0]]
    try:
        said = "it left 1 thread running: tqdm_monitor"
        assert refused(hygiene.check_nothing_left, before) == said
    finally:
        ends.set()
        for thread in begun:
            thread.join()
    tqdm([], disable=True)  # starts its own, if it is not there
    assert tqdm.monitor is not None and tqdm.monitor.is_alive()
    hygiene.check_nothing_left(older)


class Watched:
    """Notes of all that it is handed whether it may be written to; nothing is truly protected."""

    def __init__(self, problem, attention):
        self.inner, self.pages, self.said, self.seen = attention(problem), {}, [], {}

    def protect(self, page, how):
        self.pages[ctypes.addressof(ctypes.c_char.from_buffer(page))] = how

    def note(self, **handed):
        for name, tensor in handed.items():
            page = self.pages.get(tensor.data_ptr())
            if page == mmap.PROT_READ:
                self.seen[name] = (page, self.said[-1:], bool(tensor.any()))

    def __call__(self, q, k, v):
        self.note(q=q, k=k, v=v)
        out = self.inner(q, k, v)
        if out.requires_grad:
            out.register_hook(lambda dout: self.note(dout=dout))
        return out


class Stepping(Watched):
    """The same of a decoder, which is handed the last tokens alone."""

    def remember(self, k, v):
        return k, v

    def step(self, q, k, v, memory):
        self.note(q=q, k=k, v=v)
        return v.clone(), memory


@pytest.mark.parametrize(
    ("kind", "form", "handed"),
    [
        (Watched, {"phase": "forward"}, "q k v"),
        (Watched, {"phase": "train"}, "q k v dout"),
        (Stepping, {"phase": "decode", "q_len": 1}, "q k v"),
    ],
)
def test_all_that_a_call_is_handed_lies_once_on_protected_pages(
    truth, monkeypatch, kind, form, handed
):
    problem = truth.problem(**form)
    watched = kind(problem, truth.attention)
    monkeypatch.setattr(hygiene, "_protect", watched.protect)
    made = judge(problem, make(problem, 0), 0)
    verdict = gate(made, watched, None, 0, announce=watched.said.append)
    assert "wrote" not in (verdict.reason or "")
    protected = (mmap.PROT_READ, [hygiene.WROTE], True)
    assert watched.seen == dict.fromkeys(handed.split(), protected)
    assert watched.said[-1] == ""
    assert set(watched.pages.values()) == {mmap.PROT_READ | mmap.PROT_WRITE}
