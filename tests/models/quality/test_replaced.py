"""Variants in a small model that nobody trained: exact ones agree, wrong ones are found."""

import pytest
import torch

import impls
from attnbench.features.quality import pretrained_worker
from attnbench.features.quality.pretrained_worker import (
    Replaced,
    batches,
    embedded,
    one_by_one,
    register_nothing,
    takes_padding,
)
from attnbench.models.attention import NotServed
from attnbench.models.transformers import register_row
from impls.spec import Variant
from tests.models.quality.made_up import small_model, some_ids

IDS = some_ids()
ALIKE = ("einsum", "bmm", "matmul", "inplace", "chunked", "online", "sdpa", "sdpa.flash")
HERE = "tests.models.quality.wrong"


def planted(deed, computes="softmax"):
    """A row whose code does something else than it says."""
    own = {} if computes == "softmax" else {"definition": f"{HERE}:{deed}"}
    return Variant(
        name=deed,
        title="wrong",
        family="mine",
        computes=computes,
        build=f"{HERE}:{deed}",
        masks=("none",),
        **own,
    )


@pytest.fixture(scope="module")
def want():
    return embedded(small_model().double(), IDS, together=False).vectors_tw


@pytest.fixture(scope="module")
def plain(want):
    return pretrained_worker.difference(
        embedded(small_model(), IDS, together=True).vectors_tw, want
    )


@pytest.fixture
def replaced():
    return Replaced(small_model())


def quality(replaced, row, want, plain):
    row = impls.table().find(row) if isinstance(row, str) else row
    replaced.use(register_row(row))
    found = pretrained_worker.of_texts(replaced, row, IDS, "float32")
    return pretrained_worker.quality(found, row, want, plain, [(0, 1), (2, 3)], "float32")


@pytest.mark.parametrize("label", ALIKE)
def test_what_computes_softmax_gives_the_originals_embeddings(replaced, want, plain, label):
    found = quality(replaced, label, want, plain)
    assert found["wrong"] == "" and found["together"]
    assert min(found["cosines"]) > 1 - 1e-6
    assert found["error"]["relative"] < 1e-5


def test_a_planted_wrong_head_is_found(replaced, want, plain):
    found = quality(replaced, planted("last_head"), want, plain)
    assert "it computes softmax by its row" in found["wrong"]
    assert not found["together"]


def test_what_gives_no_numbers_is_wrong_whatever_it_computes(replaced, want, plain):
    found = quality(replaced, planted("no_numbers", "its own operator"), want, plain)
    assert found["wrong"] == "the embeddings of 5 of 5 texts are not numbers"
    assert found["cosines"] == [None] * 5 and found["error"]["relative"] is None


@pytest.mark.parametrize("label", ["mean_v", "linear.elu", "topk?k=4"])
def test_what_computes_something_else_is_further_off_and_no_fault(replaced, want, plain, label):
    found = quality(replaced, label, want, plain)
    assert found["wrong"] == ""
    assert min(found["cosines"]) < 1 - 1e-4
    assert found["together"] is (label != "linear.elu")


def test_the_largest_scores_of_a_row_are_all_of_them_where_there_are_few(replaced, want, plain):
    found = quality(replaced, "topk?k=64", want, plain)
    assert min(found["cosines"]) > 1 - 1e-6 and found["equal"]
    assert not quality(replaced, "topk?k=4", want, plain)["equal"]


def test_similarities_are_the_cosines_of_the_two_embeddings(replaced, want, plain):
    found = quality(replaced, "sdpa", want, plain)
    alike = [float(want[a] @ want[b]) for a, b in ((0, 1), (2, 3))]
    assert found["similarities"] == pytest.approx(alike, abs=1e-6)


def test_a_variant_that_takes_none_of_it_is_refused_in_its_own_words(replaced, want, plain):
    with pytest.raises(NotServed, match=r"^window\.blocked takes the masks .* on cpu, not none$"):
        quality(replaced, "window.blocked", want, plain)


def test_one_layer_alone_leaves_the_others_as_they_were(replaced, want):
    name, row = register_row(impls.table().find("mean_v")), impls.table().find("mean_v")
    by_layer = one_by_one(replaced, name, row, IDS, want, "float32")
    replaced.use(name)
    all_layers = pretrained_worker.cosines(
        pretrained_worker.of_texts(replaced, row, IDS, "float32"), want
    )
    assert len(by_layer) == 2 and by_layer[0] != by_layer[1]
    assert all_layers not in by_layer
    replaced.use(name, [])
    assert (
        min(pretrained_worker.cosines(embedded(replaced.model, IDS, together=True), want))
        > 1 - 1e-6
    )


def test_without_attention_each_token_gets_its_own_value(replaced):
    replaced.use(register_nothing())
    alone = replaced.model(input_ids=torch.tensor([[7, 9]])).last_hidden_state[0, 0]
    among = replaced.model(input_ids=torch.tensor([[7, 3]])).last_hidden_state[0, 0]
    torch.testing.assert_close(alone, among)


def test_texts_share_a_batch_with_their_neighbours_in_length_or_go_alone():
    assert batches([5, 1, 3], together=False) == [[1], [2], [0]]
    assert batches([5, 1, 3], together=True) == [[1, 2, 0]]
    assert batches([4096, 10, 4096, 4096], together=True) == [[1, 0], [2, 3]]


def test_padding_changes_no_embedding(want):
    together = embedded(small_model(), IDS, together=True).vectors_tw
    torch.testing.assert_close(together, want, rtol=0, atol=1e-5)


def test_the_row_tells_whether_it_takes_padding():
    table = impls.table()
    assert takes_padding(table.find("sdpa"), "float32", "cpu")
    assert not takes_padding(table.find("linear.elu"), "float32", "cpu")
