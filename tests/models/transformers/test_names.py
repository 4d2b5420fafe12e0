"""The names under which transformers finds the variants, and what it says of others."""

from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

import impls
from attnbench.answer.paste import spelled
from attnbench.models.attention import NotServed
from attnbench.models.transformers import names, register
from impls.loading import load_file

zoo = load_file(Path(__file__).with_name("zoo.py"))


def test_every_core_of_the_table_has_a_name_and_a_mask_with_it():
    cores = [r for r in impls.table().rows.values() if r.level == "core" and not r.ranks]
    assert {spelled(row.name) for row in cores} <= set(names())
    assert len(cores) > 40
    for name in names():
        assert name in AttentionInterface()._global_mapping
        assert name in AttentionMaskInterface()._global_mapping


def test_a_variant_with_options_is_registered_by_its_label():
    model, question = zoo.ZOO["llama"].made(), zoo.asked(zoo.ZOO["llama"], "left")
    name = register("chunked?block=3")
    assert name == "attnbench:chunked?block=3"
    expected = zoo.logits(model, question)
    torch.testing.assert_close(zoo.by(model, name, zoo.logits, question), expected)


def test_an_unknown_name_is_transformers_own_refusal():
    with pytest.raises(ValueError, match='"attnbench:chunkd"` is not supported'):
        zoo.ZOO["llama"].made().set_attn_implementation("attnbench:chunkd")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("chunkd", "did you mean chunked"), ("mha", "mha is a layer"), ("ring", "several processes")],
)
def test_what_can_not_be_registered_is_a_sentence(name, sentence):
    with pytest.raises(impls.asked.CantBeDone, match=sentence):
        register(name)


def test_a_variant_that_can_not_run_here_says_so_when_it_is_called():
    model, question = zoo.ZOO["bert"].made(), zoo.asked(zoo.ZOO["bert"])
    with pytest.raises(NotServed, match=r"BertSelfAttention.*flash_attn2 .*is not installed"):
        zoo.by(model, spelled("flash_attn2"), zoo.logits, question)
