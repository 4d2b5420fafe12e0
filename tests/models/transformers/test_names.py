"""The names under which transformers finds the variants, and what it says of others."""

from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

import impls
from attnbench.answer.paste import spelled
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


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("chunkd", "did you mean chunked"), ("mha", "mha is a layer"), ("ring", "several processes")],
)
def test_what_can_not_be_registered_is_a_sentence(name, sentence):
    with pytest.raises(impls.asked.CantBeDone, match=sentence):
        register(name)
