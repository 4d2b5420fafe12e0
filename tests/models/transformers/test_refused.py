"""Under which names transformers finds the variants, and what is refused by its name."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

import impls
from attnbench.answer.paste import spelled
from attnbench.models.attention import NotServed
from attnbench.models.transformers import names
from tests.models.transformers.small import asked, by, logits, made


class Layer(nn.Module):
    """All of a model's attention that a function is shown."""

    layer_idx, is_causal = 3, True


def call(*, mask=None, training=False, q_len=6, **asked):
    layer = Layer().train(training)
    q, k, v = (torch.randn(2, h, n, 8) for h, n in ((4, q_len), (2, 6), (2, 6)))
    out, weights = AttentionInterface()["attnbench:einsum"](layer, q, k, v, mask, **asked)
    assert weights is None
    return out


REFUSED = [
    ({"softcap": 50.0}, "softcap is asked for, which no variant does; take attn_implementation"),
    ({"s_aux": torch.zeros(4)}, "s_aux is asked for"),
    ({"a_word_of_tomorrow": False}, "a_word_of_tomorrow is asked for"),
    ({"cache": object()}, "cache is asked for"),
    ({"output_attentions": True}, "output_attentions=True, and no variant hands out its weights"),
    ({"cu_seq_lens_q": torch.tensor([0, 2, 6])}, "cu_seq_lens_q says that sequences are packed"),
    ({"seq_idx": torch.tensor([[0, 0, 1, 1]])}, "seq_idx says that sequences are packed"),
    ({"sliding_window": 4}, "sliding_window=4 over 6 keys came without a mask"),
    ({"mask": object()}, "the mask is a object, not a tensor"),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED)
def test_a_word_that_means_something_is_refused_by_its_name(asked, sentence):
    with pytest.raises(NotServed, match=f"^Layer of layer 3: einsum: {sentence}"):
        call(**asked)


def test_words_that_ask_nothing_change_nothing():
    words = {"softcap": None, "s_aux": None, "output_attentions": False, "sliding_window": 6}
    words |= {"position_ids": torch.arange(6), "use_cache": True, "cache_position": None}
    words |= {"max_new_tokens": 4, "do_sample": False, "dropout": 0.3}  # it is no training
    words |= {"cu_seq_lens_q": torch.tensor([0, 6]), "seq_idx": torch.zeros(1, 6)}
    outs = []
    for more in ({}, words):
        torch.manual_seed(0)
        outs.append(call(scaling=0.4, **more))
    assert torch.equal(*outs)
    mask, packed = torch.ones(2, 1, 6, 6).bool(), torch.tensor([0, 2, 6])
    assert call(mask=mask, cu_seq_lens_q=packed, sliding_window=2).shape == (2, 6, 4, 8)


def test_a_mask_that_a_variant_does_not_take_is_refused_with_the_layer():
    model = made("llama")
    said = (
        "LlamaAttention of layer 0: linear.elu takes the masks none, causal on cpu, not dense; "
        "'attnbench list' shows .* attn_implementation='attnbench:sdpa' takes"
    )
    with pytest.raises(NotServed, match=said):
        by(model, "attnbench:linear.elu", logits, asked(model, "left"))


def test_every_core_of_the_table_has_a_name_and_a_mask_with_it():
    cores = {r.name for r in impls.table().rows.values() if r.level == "core" and not r.ranks}
    assert len(cores) > 40 and {spelled(name) for name in cores} <= set(names())
    for interface in (AttentionInterface(), AttentionMaskInterface()):
        assert set(names()) <= interface._global_mapping.keys()
