"""Models that keep an attention of their own: their masks are eager's, and a user is told."""

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface

from attnbench.models.attention import NotServed
from attnbench.models.transformers import EagerMask, NotCalledWarning, mask_as_eager
from tests.models.transformers.small import asked, made, same

CHUNKED = "attnbench:chunked"


def test_a_causal_mask_reaches_the_variant_without_a_matrix_being_written(monkeypatch):
    model = made("llama")
    monkeypatch.setattr(EagerMask, "numbers", lambda self: pytest.fail("it was written"))
    same(model, CHUNKED, asked(model))


@pytest.mark.parametrize(("q_len", "offset"), [(1, 0), (5, 3)])
def test_the_numbers_of_a_mask_are_eagers(q_len, offset):
    form = {"batch_size": 2, "q_length": q_len, "kv_length": 9, "q_offset": offset}
    form["dtype"] = torch.bfloat16
    mask, wanted = mask_as_eager(**form), transformers.masking_utils.eager_mask(**form)
    assert mask.shape == wanted.shape and mask.dtype == wanted.dtype
    assert torch.equal(mask + 0, wanted)
    q, k, v = (torch.randn(2, 4, n, 8).bfloat16() for n in (q_len, 9, 9))
    attend = AttentionInterface()["attnbench:einsum"]
    given, expected = (attend(nn.Module(), q, k, v, x)[0] for x in (mask, wanted))
    assert torch.equal(given, expected)


def test_what_a_model_writes_into_its_mask_is_heeded():
    mask = mask_as_eager(batch_size=1, q_length=6, kv_length=6)
    mask[..., 0] = torch.finfo(torch.float32).min
    q, k, v = (torch.randn(1, 4, 6, 8) for _ in range(3))
    seen = torch.ones(6, 6).tril().bool()
    seen[:, 0] = False
    attend = AttentionInterface()["attnbench:einsum"]
    given, expected = (attend(nn.Module(), q, k, v, x)[0] for x in (mask, seen[None, None]))
    assert torch.equal(given, expected)


def test_a_variant_that_no_layer_calls_is_said_once_and_names_the_model():
    model = made("bloom", CHUNKED)
    question = asked(model)
    with pytest.warns(NotCalledWarning, match=rf"^{CHUNKED} is set on BloomForCausalLM") as said:
        model(**question.given)
    assert [one.filename for one in said] == [__file__]
    model(**question.given)  # any warning is an error here
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_model_that_looks_its_attention_up_in_a_table_is_refused_at_load():
    said = rf"FalconForCausalLM can't be loaded with {CHUNKED}: FalconDecoderLayer takes"
    with pytest.raises(NotServed, match=said):
        made("falcon", CHUNKED)
