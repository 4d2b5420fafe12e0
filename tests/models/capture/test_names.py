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


def test_other_names_for_the_function_are_seen_and_put_back_and_what_is_held_elsewhere_is_said():
    original, held = F.scaled_dot_product_attention, {"a": by_another_name}
    with attnbench.capture() as calls:
        by_another_name(*qkv())
        assert by_another_name is not original
        kept = F.scaled_dot_product_attention
    assert only(calls).calls == 1 and by_another_name is original
    with attnbench.capture() as calls:
        held["a"](*qkv())
    assert calls.sites == [] and calls.share is None
    assert "in an object, a closure or a list" in calls.unseen[0]
    torch.testing.assert_close(kept(*qkv()), original(*qkv()), rtol=0, atol=0)


def test_what_the_program_puts_there_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", by_another_name)

    def mine(*args, **more):
        return by_another_name(*args, **more) * 0

    with attnbench.capture() as calls:
        F.scaled_dot_product_attention = mine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(nn.ReLU())  # which is given torch's own for a moment
        assert F.scaled_dot_product_attention is mine
        F.scaled_dot_product_attention(*qkv())
    assert F.scaled_dot_product_attention is mine
    assert only(calls).calls == 1


def test_a_capture_that_can_not_begin_leaves_everything_as_it_was(monkeypatch):
    before = F.scaled_dot_product_attention, torch.compile
    monkeypatch.setattr("attnbench.models.capture.functions._noting", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), attnbench.capture():
        pass
    assert before == (F.scaled_dot_product_attention, torch.compile)
