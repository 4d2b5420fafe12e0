"""Variants as transformers' attention: names, words that are refused, and masks, never lost."""

from itertools import product

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

import impls
from attnbench.answer.paste import spelled
from attnbench.models import mask_of as known_masks
from attnbench.models import transformers as ours
from attnbench.models import wrong_level
from attnbench.models.attention import NotServed, attention
from impls.masks import Shape
from tests.models.transformers import small
from tests.models.transformers.small import (
    asked,
    by,
    forward,
    gradients,
    logits,
    made,
    same,
    tokens,
)

EINSUM, CHUNKED = "attnbench:einsum", "attnbench:chunked"


def heads(q_len=6, kv_len=6):
    return (torch.randn(2, h, n, 8) for h, n in ((4, q_len), (4, kv_len), (4, kv_len)))


def said(terms, is_causal=False, q_len=6, kv_len=6):
    q, k, _ = heads(q_len, kv_len)
    return ours.joined_mask(terms, is_causal, q, k)


def test_one_mask_is_looked_at_once_for_all_layers_of_a_step(monkeypatch):
    look, looks = known_masks.mask_of, []
    monkeypatch.setattr(known_masks, "mask_of", lambda *x: looks.append(x[0]) or look(*x))
    model = made("llama", num_hidden_layers=7)
    by(model, EINSUM, forward, asked(model, "left"))
    assert len([x for x in looks if x is not None]) == 1


@pytest.mark.parametrize("kind", ["causal_mask_function", "bidirectional_mask_function"])
def test_such_a_mask_shares_no_memory_with_what_the_user_passes(kind):
    padded = torch.ones(2, 6, dtype=torch.bool)
    padded[:, :2] = False
    rule = getattr(transformers.masking_utils, kind)
    mask = ours.mask_as_eager(
        batch_size=2, q_length=6, kv_length=6, mask_function=rule, attention_mask=padded,
        allow_is_bidirectional_skip="bi" in kind,
    )  # fmt: skip
    before = mask.visible.clone()
    assert not before.all()
    padded[:] = True
    assert torch.equal(mask.visible, before)


def test_without_a_mask_every_key_is_seen_unless_the_call_says_causal():
    q, k, v = heads()
    attend, encoder, decoder = AttentionInterface()[EINSUM], nn.Module(), nn.Module()
    encoder.is_causal, decoder.is_causal = False, True
    everywhere, causal = torch.ones(6, 6).bool(), torch.ones(6, 6).tril().bool()
    for layer, words, mask in (
        (encoder, {}, everywhere),
        (decoder, {}, everywhere),
        (nn.Module(), {}, everywhere),
        (encoder, {"is_causal": True}, causal),
        (decoder, {"is_causal": False}, everywhere),
        (decoder, {"is_causal": None}, everywhere),
    ):
        given, _ = attend(layer, q, k, v, None, **words)
        assert torch.equal(given, attend(layer, q, k, v, mask)[0]), (layer, words)


def test_a_mask_and_a_bias_stay_side_by_side_and_hide_and_add_what_they_did():
    bias, shape = torch.linspace(-3, 3, 4 * 36).view(1, 4, 6, 6), Shape(2, 4, 6, 6)
    causal = torch.ones(shape).tril().bool()
    left_padded = causal.clone()
    left_padded[0, :, :, :3] = False
    for mask, kinds in ((causal[0, 0], ("causal",)), (left_padded[:, :1], ("causal", "leftpad"))):
        both = said((mask, bias))
        assert both.kinds == (*kinds, "bias")
        assert torch.equal(torch.from_numpy(both.bias(shape)).float(), bias)
        seen = torch.from_numpy(both.visible(shape))
        assert torch.equal(seen.expand(shape), mask.expand(shape))


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_can_not_be_said_side_by_side_is_added_up(is_causal):
    q, k, v = (x.double() for x in heads())
    bias, more = torch.linspace(-3, 3, 36).view(6, 6).double(), torch.rand(4, 6, 6).double()
    second, first = torch.tensor([True, False] * 3), torch.tensor([True, True, False] * 2)
    for terms in ((bias, more), (second.expand(6, 6), first.expand(6, 6)), (second, more, bias)):
        together = torch.zeros(4, 6, 6).double()
        for term in (*terms, *([torch.ones(6, 6).tril().bool()] if is_causal else [])):
            hides = term.dtype == torch.bool
            together = together.masked_fill(~term, -torch.inf) if hides else together + term
        expected = nn.functional.scaled_dot_product_attention(q, k, v, together)
        whole = ours.joined_mask(terms, is_causal, q, k)
        assert isinstance(whole, torch.Tensor)  # no mask names a kind twice
        torch.testing.assert_close(attention("einsum")(q, k, v, whole), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "t5", "whisper"])
@pytest.mark.filterwarnings("ignore")
def test_a_static_cache_writes_the_same_tokens(name):
    model = made(name)
    question = asked(model, "none" if name == "whisper" else "left")
    model.generation_config.decoder_start_token_id = 3
    expected = tokens(model, question)
    model.generation_config.cache_implementation = "static"
    for given, wanted in zip(by(model, EINSUM, tokens, question), expected, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0.0, atol=1e-5 * float(wanted.abs().max()))


def test_a_mask_of_ones_own_in_four_dimensions_is_heeded():
    model = made("llama")
    own = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(4)) < 0.6
    own = own | torch.eye(10).bool()
    ids = asked(model)["input_ids"]
    added = torch.zeros(2, 1, 10, 10).masked_fill(~own, -1e30)
    expected = model(input_ids=ids, attention_mask=added).logits
    model.set_attn_implementation(EINSUM)
    for mask in (own, added):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, expected)


def test_packed_sequences_are_kept_apart_by_their_positions():
    model = made("llama")
    ids = asked(model)["input_ids"][:1]
    positions = torch.cat([torch.arange(4), torch.arange(6)])[None]
    alone = [model(input_ids=part).logits for part in ids.split([4, 6], 1)]
    model.set_attn_implementation(EINSUM)
    packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_under_torch_compile_attends_outside_of_what_is_compiled():
    model = made("llama", num_hidden_layers=1)
    question = asked(model, "left")
    expected = logits(model, question)
    model.set_attn_implementation(EINSUM)
    given = logits(torch.compile(model, backend="eager"), question)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_a_causal_mask_reaches_the_variant_without_a_matrix_being_written(monkeypatch):
    model = made("llama")
    monkeypatch.setattr(ours.EagerMask, "numbers", lambda self: pytest.fail("it was written"))
    same(model, CHUNKED, asked(model))


@pytest.mark.parametrize(("q_len", "offset"), [(1, 0), (5, 3)])
def test_the_numbers_of_a_mask_are_eagers(q_len, offset):
    form = {"batch_size": 2, "q_length": q_len, "kv_length": 9, "q_offset": offset}
    form["dtype"] = torch.bfloat16
    mask, wanted = ours.mask_as_eager(**form), transformers.masking_utils.eager_mask(**form)
    assert mask.shape == wanted.shape and mask.dtype == wanted.dtype
    assert torch.equal(mask + 0, wanted)
    q, k, v = (torch.randn(2, 4, n, 8).bfloat16() for n in (q_len, 9, 9))
    attend = AttentionInterface()[EINSUM]
    given, expected = (attend(nn.Module(), q, k, v, x)[0] for x in (mask, wanted))
    assert torch.equal(given, expected)


def test_what_a_model_writes_into_its_mask_is_heeded():
    mask = ours.mask_as_eager(batch_size=1, q_length=6, kv_length=6)
    mask[..., 0] = torch.finfo(torch.float32).min
    q, k, v = (torch.randn(1, 4, 6, 8) for _ in range(3))
    seen = torch.ones(6, 6).tril().bool()
    seen[:, 0] = False
    attend = AttentionInterface()[EINSUM]
    given, expected = (attend(nn.Module(), q, k, v, x)[0] for x in (mask, seen[None, None]))
    assert torch.equal(given[:, 1:], expected[:, 1:]) and not expected[:, 0].any()
    torch.testing.assert_close(given[:, 0], v.mean(2))  # of scores that are all the same


@pytest.mark.parametrize("kind", ["bloom", "falcon", "git"])
def test_a_model_that_would_not_call_a_variant_is_loaded_with_eager_and_says_so(kind):
    plain = made(kind)
    with pytest.warns(ours.NotCalledWarning, match=f"computes attention .* {CHUNKED}") as said:
        model = made(kind, CHUNKED)
    assert said[0].filename == small.__file__
    for given, expected in zip(*(forward(x, asked(plain)) for x in (model, plain)), strict=True):
        assert torch.equal(given, expected)


class Layer(nn.Module):
    """All of a model's attention that a function is shown."""

    layer_idx, is_causal = 3, True


def call(*, mask=None, **asked):
    q, k, v = (torch.randn(2, h, 6, 8) for h in (4, 2, 2))
    out, weights = AttentionInterface()[EINSUM](Layer().eval(), q, k, v, mask, **asked)
    assert weights is None
    return out


REFUSED = [
    ({"s_aux": torch.zeros(3)}, "sinks is .heads., here with heads 4; its shape is"),
    ({"a_word_of_tomorrow": False}, "a_word_of_tomorrow is asked for"),
    ({"output_attentions": True}, "output_attentions=True, and no variant hands out its weights"),
    ({"cu_seq_lens_q": torch.tensor([0, 2, 6])}, "cu_seq_lens_q says that sequences are packed"),
    ({"seq_idx": torch.tensor([[0, 0, 1, 1]])}, "seq_idx says that sequences are packed"),
    ({"sliding_window": 4}, "sliding_window=4 over 6 keys came without a mask"),
    ({"indices": torch.zeros(6, 3).long()}, "indices are not .batch, q_len, picked keys."),
    ({"mask": object()}, "the mask is a object, not a tensor"),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED)
def test_a_word_that_means_something_is_refused_by_its_name(asked, sentence):
    with pytest.raises(NotServed, match=f"^Layer of layer 3: einsum: {sentence}"):
        call(**asked)


PADS = ("none", "left")
FULL = ("einsum", "matmul", "matmul.prescale", "chunked", "online", "window.blocked")
QUICK = ("einsum", "chunked", "sdpa")


def cells(*variants):
    """Variants with each padding, most of them slow tests; flex has no backward on a CPU."""
    return [
        cell if cell[0] in QUICK else pytest.param(*cell, marks=pytest.mark.slow)
        for cell in (*product(variants, PADS), ("flex", "left"))
    ]


@pytest.mark.parametrize(("variant", "pad"), cells(*FULL, "sdpa"))
def test_sinks_of_gpt_oss_are_served(variant, pad):
    model = made("gpt_oss")
    with torch.no_grad():
        for name, sinks in model.named_parameters():
            if "sinks" in name:
                sinks.normal_(generator=torch.Generator().manual_seed(1))
    asks = (forward, tokens) if variant == "flex" else (forward, gradients, tokens)
    same(model, f"attnbench:{variant}", asked(model, pad), asks)


@pytest.mark.parametrize(("variant", "pad"), cells(*FULL))
def test_the_soft_cap_and_the_scale_of_gemma_2_are_served(variant, pad):
    model = made("gemma2", attn_logit_softcapping=2.0, query_pre_attn_scalar=9)
    asks = (forward, tokens) if pad == "left" else (forward, gradients, tokens)
    same(model, f"attnbench:{variant}", asked(model, pad), asks)


@pytest.mark.parametrize(("variant", "pad"), cells(*FULL[:-1], "sdpa")[:-1])
def test_the_attention_of_qwen3_next_is_served_beside_its_delta_rule(variant, pad):
    model = made("qwen3_next", layer_types=["linear_attention", "full_attention"])
    asks = (forward, tokens) if pad == "left" else (forward, gradients, tokens)
    same(model, f"attnbench:{variant}", asked(model, pad), asks)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_model_that_is_to_hand_out_its_weights_is_refused(kind):
    model = made(kind)
    model.set_attn_implementation(EINSUM)
    words, said = asked(model), "output_attentions=True"
    with pytest.raises(NotServed, match=said):
        model(**words, output_attentions=True)
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    model.set_attn_implementation(EINSUM)
    with pytest.raises(NotServed, match=said):
        model(**words)
    model(**words, output_attentions=False)


def test_words_that_ask_nothing_change_nothing():
    words = {"softcap": None, "s_aux": None, "output_attentions": False, "sliding_window": 6}
    words |= {"position_ids": torch.arange(6), "use_cache": True, "cache_position": None}
    words |= {"pixel_values": torch.ones(1, 3), "vision_feature_layer": -1}
    words |= {"max_new_tokens": 4, "do_sample": False, "dropout": 0.3}  # it is no training
    words |= {"cu_seq_lens_q": torch.tensor([0, 6]), "seq_idx": torch.zeros(1, 6)}
    outs = []
    for more in ({}, words):
        torch.manual_seed(0)
        outs.append(call(scaling=0.4, **more))
    assert torch.equal(*outs)
    mask, packed = torch.ones(2, 1, 6, 6).bool(), torch.tensor([0, 2, 6])
    assert call(mask=mask, cu_seq_lens_q=packed, sliding_window=2).shape == (2, 6, 4, 8)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["einsum", "chunked", "sdpa"])
@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_keys_that_an_indexer_picks_are_the_mask(kind, variant):
    model = made(kind)
    assert model.config.index_topk < asked(model)["input_ids"].shape[1]
    for pad, asks in (("none", (forward, gradients, tokens)), ("left", (forward, tokens))):
        same(model, f"attnbench:{variant}", asked(model, pad), asks)


def test_queries_that_all_sequences_share_are_those_of_each():
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(5, 4, 6, 8), torch.randn(5, 4, 6, 8)
    attend = AttentionInterface()[EINSUM]
    shared, each = (attend(Layer(), x, k, v, None)[0] for x in (q, q.repeat(5, 1, 1, 1)))
    assert torch.equal(shared, each)


def test_every_core_of_the_table_has_a_name_and_a_mask_with_it():
    cores = {r.name for r in impls.table().rows.values() if wrong_level(r) is None}
    assert len(cores) > 40 and {spelled(name) for name in cores} <= set(ours.names())
    for interface in (AttentionInterface(), AttentionMaskInterface()):
        assert set(ours.names()) <= interface._global_mapping.keys()
