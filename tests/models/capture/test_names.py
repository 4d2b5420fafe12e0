"""The names that a capture puts in place of torch's, and that all are put back."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as by_another_name

import attnbench
from tests.models.build import qkv
from tests.models.capture.seen import only


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = by_another_name

    def forward(self, q, k, v):
        return self.attend(q, k, v)


def closed_over(attend):
    return lambda q, k, v: attend(q, k, v)


def test_other_names_for_the_function_are_seen_and_put_back():
    model, inner, table = Model(), closed_over(by_another_name), {"a": by_another_name}
    with attnbench.capture() as calls:
        for attend in (model, inner, table["a"], by_another_name):
            attend(*qkv())
    assert sum(s.calls for s in calls.sites) == 4
    original = F.scaled_dot_product_attention
    assert model.attend is original and table["a"] is original
    assert inner.__closure__[0].cell_contents is original
    with attnbench.capture() as calls:
        pass
    assert calls.sites == [] and calls.share is None


def test_what_the_program_puts_there_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", by_another_name)
    original = F.scaled_dot_product_attention

    def mine(*args, **more):
        return original(*args, **more) * 0

    with attnbench.capture() as calls:
        F.scaled_dot_product_attention = mine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(nn.ReLU())  # which is given torch's own for a moment
        assert F.scaled_dot_product_attention is mine
        F.scaled_dot_product_attention(*qkv())
    assert F.scaled_dot_product_attention is mine and original is by_another_name
    assert only(calls).calls == 1


def test_a_capture_that_can_not_begin_leaves_everything_as_it_was(monkeypatch):
    before = F.scaled_dot_product_attention, torch.compile
    monkeypatch.setattr("attnbench.models.capture.written_out.put_written_out", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), attnbench.capture():
        pass
    assert before == (F.scaled_dot_product_attention, torch.compile)
