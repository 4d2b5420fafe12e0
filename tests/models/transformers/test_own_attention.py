"""Models that keep an attention of their own: their masks are eager's, and a user is told."""

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface

from attnbench.models.attention import NotServed
from attnbench.models.transformers import EagerMask, NotCalledWarning, mask_as_eager

CHUNKED = "attnbench:chunked"
IDS = torch.arange(3, 15)[None]
WIDE = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "initializer_range": 0.3}
SHORT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**WIDE, **SHORT, "num_hidden_layers": 2, "intermediate_size": 48}
BLOOM = {**WIDE, **SHORT, "n_layer": 2, "n_head": 4}
FEW = {"vocab_size": 97, "initializer_range": 0.3, **SHORT}
OWN = {
    "Bloom": BLOOM,
    "XGLM": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "init_std": 0.3,
             **FEW},
}  # fmt: skip
TABLES = [
    ("Falcon", "FalconForCausalLM", WIDE, "FalconDecoderLayer"),
    ("GPTJ", "GPTJModel", {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 8}, "GPTJBlock"),
    ("Git", "GitForCausalLM", {**WIDE, "num_hidden_layers": 1}, "GitAttention"),
]  # fmt: skip


def made(config, model, settings, implementation="eager"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{config}Config")(**settings)
    return (
        getattr(transformers, model)._from_config(config, attn_implementation=implementation).eval()
    )


def logits(model, ids=IDS, **more):
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


@pytest.mark.filterwarnings("ignore::attnbench.models.transformers.NotCalledWarning")
@pytest.mark.parametrize("config", OWN)
def test_the_past_does_not_see_the_future_where_a_model_keeps_its_own_attention(config):
    name = f"{config}ForCausalLM"
    model = made(config, name, OWN[config], CHUNKED)
    torch.testing.assert_close(logits(model)[:, :5], logits(model, IDS[:, :5]))
    expected = made(config, name, OWN[config])
    padded = torch.ones_like(IDS)
    padded[:, :4] = 0
    for mask in (None, padded):
        given, wanted = (logits(x, attention_mask=mask) for x in (model, expected))
        assert torch.equal(given, wanted)


def test_a_causal_mask_reaches_the_variant_without_a_matrix_being_written(monkeypatch):
    model = made("Llama", "LlamaForCausalLM", LLAMA)
    expected, written = logits(model), model.generate(IDS, max_new_tokens=3, do_sample=False)
    monkeypatch.setattr(EagerMask, "numbers", lambda self: pytest.fail("it was written"))
    model.set_attn_implementation(CHUNKED)
    torch.testing.assert_close(logits(model), expected)
    assert torch.equal(model.generate(IDS, max_new_tokens=3, do_sample=False), written)


@pytest.mark.parametrize("q_len", [1, 5])
@pytest.mark.parametrize("offset", [0, 3])
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
    model = made("Bloom", "BloomForCausalLM", BLOOM, CHUNKED)
    with pytest.warns(NotCalledWarning, match=rf"^{CHUNKED} is set on BloomForCausalLM") as said:
        logits(model)
    assert [one.filename for one in said] == [__file__]
    logits(model)  # any warning is an error here
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize(("config", "model", "settings", "layer"), TABLES)
def test_a_model_that_looks_its_attention_up_in_a_table_is_refused_at_load(
    config, model, settings, layer
):
    with pytest.raises(NotServed, match=rf"{model} can't be loaded with {CHUNKED}: {layer} takes"):
        made(config, model, {**SHORT, **settings}, CHUNKED)
