"""On which pages a call finds what it is given, and what was announced while it ran."""

import ctypes
import mmap
from types import SimpleNamespace

import pytest
import torch

from attnbench.gate import hygiene
from attnbench.gate.hygiene import WROTE, check_writes_nothing
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge


class Watched:
    """A variant that notes, of all that it is handed, whether it may be written to; nothing is
    protected in earnest."""

    def __init__(self, problem, attention):
        self.inner, self.pages, self.said = attention(problem), {}, []
        self.seen = {}

    def protect(self, page, how):
        self.pages[ctypes.addressof(ctypes.c_char.from_buffer(page))] = how

    def note(self, **handed):
        for name, tensor in handed.items():
            self.seen[name] = (self.pages.get(tensor.data_ptr()), self.said[-1:])

    def __call__(self, q, k, v):
        self.note(q=q, k=k, v=v)
        watched = self

        class Ends(torch.autograd.Function):
            @staticmethod
            def forward(ctx, out):
                return out.clone()

            @staticmethod
            def backward(ctx, dout):
                watched.note(dout=dout)
                return dout

        return Ends.apply(self.inner(q, k, v))


class Stepping(Watched):
    """The same of a decoder, which is handed the last tokens alone."""

    def remember(self, k, v):
        return k, v

    def step(self, q, k, v, memory):
        self.note(q=q, k=k, v=v)
        k, v = (torch.cat(both, 2) for both in zip(memory, (k, v), strict=True))
        return (q @ k.mT).softmax(-1) @ v, (k, v)


@pytest.mark.parametrize(
    ("kind", "form", "handed"),
    [
        (Watched, {"phase": "forward"}, "q k v"),
        (Watched, {"phase": "train"}, "q k v dout"),
        (Stepping, {"phase": "decode", "q_len": 1}, "q k v"),
    ],
)
def test_all_that_a_call_is_handed_lies_on_protected_pages(truth, monkeypatch, kind, form, handed):
    problem = truth.problem(**form)
    watched = kind(problem, truth.attention)
    monkeypatch.setattr(hygiene, "_protect", watched.protect)
    check_writes_nothing(judge(problem, make(problem, 0), 0), watched, watched.said.append)
    assert set(watched.seen) == set(handed.split())
    assert set(map(repr, watched.seen.values())) == {repr((mmap.PROT_READ, [WROTE]))}
    assert watched.said == [WROTE, ""]
    assert set(watched.pages.values()) == {mmap.PROT_READ | mmap.PROT_WRITE}


def test_what_lies_there_holds_the_same_values(truth):
    x = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    with hygiene._protected([x, x.detach().bfloat16()]) as (wide, narrow):
        assert torch.equal(wide, x)
        assert wide.requires_grad
        assert torch.equal(narrow, x.detach().bfloat16())
        assert not narrow.requires_grad
    narrow.zero_()  # whoever kept one of them may write to it again


def test_nothing_is_tried_on_a_device_whose_pages_are_not_the_hosts():
    there = SimpleNamespace(problem=SimpleNamespace(device="cuda"))
    assert check_writes_nothing(there, None, None) is None
