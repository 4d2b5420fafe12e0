"""Tensors that hide keys, and the names of the masks that they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnbench.models import mask_of as mask_of_module
from attnbench.models.mask_of import FEW, KnownMasks, mask_of, phase_of
from impls.errors import CantBeDone
from impls.masks import Mask, Shape

SQUARE, SMALL = Shape(2, 4, 12, 12), Shape(1, 2, 6, 6)
ONES = torch.ones(12, 12, dtype=torch.bool)
ROWS, KEYS = torch.arange(12)[:, None], torch.arange(12)[None]
PADDED = (torch.arange(12) < torch.tensor([[9], [12]]))[:, None, None]
DOCUMENT = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
BY_HAND = {
    "none": ONES,
    "causal": ONES.tril(),
    "window:3,2": (KEYS >= ROWS - 3) & (KEYS <= ROWS + 2),
    "window:3,0": ONES.tril() & ONES.triu(-3),
    "window:1,12": ONES.triu(-1),
    "padding:9,12": PADDED,
    "padding:9": (KEYS < 9).expand(12, 12),
    "causal+padding:9,12": PADDED & ONES.tril(),
    "window:3,0+padding:9,12": PADDED & ONES.tril() & ONES.triu(-3),
    "leftpad:3,0": PADDED.flip(-1),
    "causal+leftpad:3,0": PADDED.flip(-1) & ONES.tril(),
    "window:3,0+leftpad:3,0": PADDED.flip(-1) & ONES.tril() & ONES.triu(-3),
    "prefix:5": ONES.tril() | (KEYS < 5),
    "document:5,4,3": DOCUMENT[:, None] == DOCUMENT,
    "causal+document:5,4,3": (DOCUMENT[:, None] == DOCUMENT) & ONES.tril(),
}


@pytest.mark.parametrize(("text", "seen"), BY_HAND.items(), ids=BY_HAND)
def test_a_mask_with_a_name_is_named(text, seen):
    hidden = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    lowest = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    low = torch.zeros(seen.shape).masked_fill(~seen, -1e9)  # as the dtype has it, if it has it
    whole = bool(seen.any(-1).all())  # a row that hides everything would show how little that is
    lower = torch.zeros(seen.shape).masked_fill(~seen, -1e4 if whole else -1e9)
    others = [x.to(to) for x in (hidden, lowest, low) for to in (torch.bfloat16, torch.float16)]
    for tensor in (seen, hidden, lowest, low, lower, *others, seen.expand(2, 4, 12, 12)):
        assert str(mask_of(tensor, False, SQUARE)) == text


@pytest.mark.parametrize(("q_len", "kv_len"), [(12, 12), (5, 12), (12, 5), (1, 12)])
def test_is_causal_means_what_torch_means_by_it(q_len, kv_len):
    shape = Shape(1, 2, q_len, kv_len)
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64) for n in (q_len, kv_len, kv_len))
    found = mask_of(None, True, shape)
    seen = torch.from_numpy(found.visible(shape))
    told = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    assert torch.allclose(told, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert found.upper_left == (q_len != kv_len)


def test_where_the_last_query_stands_at_the_last_key_is_told_from_the_other_corner():
    shape = Shape(1, 2, 4, 12)
    ones = torch.ones(4, 12, dtype=torch.bool)
    assert str(mask_of(ones.tril(8), False, shape)) == "causal"
    assert str(mask_of(ones.tril(), False, shape)) == "causal@upper-left"
    assert str(mask_of(ones.tril(8).triu(6), False, shape)) == "window:2,0"
    assert str(mask_of(ones[:1], False, Shape(1, 2, 1, 12))) == "none"


@given(st.data())
def test_a_mask_sees_what_its_tensor_sees_whatever_it_is_called(data):
    q_len, kv_len = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shape = Shape(2, 2, q_len, kv_len)
    form = (*data.draw(st.sampled_from([(2, 2), (2, 1), (1, 2), (1, 1)])), q_len, kv_len)
    cells = int(np.prod(form))
    seen = np.array(data.draw(st.lists(st.booleans(), min_size=cells, max_size=cells)))
    if data.draw(st.booleans()):  # most draws of chance have no name: spans may have
        low, high = (data.draw(st.integers(-9, 9)) for _ in "ab")
        away = np.arange(kv_len) - np.arange(q_len)[:, None]
        seen = np.broadcast_to((away >= low) & (away <= high), form)
    table = torch.from_numpy(seen.reshape(form).copy())
    found = mask_of(table, False, shape)
    wide = (2, 2, q_len, kv_len)
    told = np.broadcast_to(found.visible(shape), wide)
    assert (told == np.broadcast_to(table.numpy(), wide)).all()
    assert Mask.parse(str(found)) == found


def test_what_has_no_name_is_kept_as_a_file_named_by_what_it_holds(tmp_path):
    holes = ONES.tril() & (KEYS % 3 != 1)
    found, again = (mask_of(x, False, SQUARE, tmp_path) for x in (holes, holes.clone()))
    assert found.kinds == ("dense",) and found == again
    assert len(list(tmp_path.iterdir())) == 1
    assert (found.visible(SQUARE) == holes.numpy()).all()
    assert mask_of(holes.flip(-1), False, SQUARE, tmp_path) != found
    each = torch.stack([ONES.tril(), ONES.tril(), ONES.tril(), ONES.triu()])[None]
    found = mask_of(each, False, SQUARE, tmp_path)
    assert found.kinds == ("dense",) and (found.visible(SQUARE) == each.numpy()).all()
    assert str(mask_of(each[:, :2].repeat(1, 2, 1, 1), False, SQUARE)) == "causal"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alibi_is_named_and_other_slopes_are_not(dtype, tmp_path):
    slopes = 2.0 ** -torch.arange(2.0, 9.0, 2.0)  # of four heads: 1/4, 1/16, 1/64, 1/256
    added = (-slopes[:, None, None] * (ROWS - KEYS).abs())[None].to(dtype)
    causal = added.masked_fill(~ONES.tril(), -torch.inf)
    assert str(mask_of(added, False, SQUARE)) == "alibi"
    assert str(mask_of(causal, False, SQUARE)) == "causal+alibi"
    other = mask_of(causal * 2, False, SQUARE, tmp_path)
    assert other.kinds == ("bias",) and (other.visible(SQUARE)[0] == ONES.tril().numpy()).all()
    told = torch.from_numpy(other.bias(SQUARE)).where(ONES.tril(), 0)
    assert torch.equal(told, (2 * added).where(ONES.tril(), 0).to(told.dtype))


def test_a_number_that_a_row_adds_to_all_its_keys_hides_and_weighs_nothing(tmp_path):
    rows = torch.linspace(-3, 3, SQUARE.q_len)[:, None]
    assert str(mask_of(rows.expand(*SQUARE[2:]), False, SQUARE)) == "none"
    assert str(mask_of((rows + 0 * KEYS).masked_fill(~ONES.tril(), -torch.inf), False, SQUARE)) == (
        "causal"
    )
    large = torch.full(SQUARE[2:], 1e6)  # beside which scores lose their digits
    assert mask_of(large, False, SQUARE, tmp_path).kinds == ("bias",)
    slopes = 2.0 ** -torch.arange(2.0, 9.0, 2.0)[:, None, None]
    by_key = (slopes * KEYS)[None].masked_fill(~ONES.tril(), -torch.inf)
    assert str(mask_of(by_key, False, SQUARE)) == "causal+alibi"  # less what a row has in common
    assert mask_of(by_key * 1.01, False, SQUARE, tmp_path).kinds == ("bias",)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (ONES.long(), r"a mask of torch.int64 is neither boolean .*give mask\.bool\(\)"),
        (ONES[:, :7], r"a mask of shape \(12, 7\) does not broadcast to \(2, 4"),
        (ONES.to("meta"), "has no values"),
    ],
    ids=["integers", "another shape", "no values"],
)
def test_what_is_no_mask_at_all_is_a_sentence(mask, message):
    with pytest.raises(CantBeDone, match=message):
        mask_of(mask, False, SQUARE)


def test_a_tensor_written_to_in_place_is_looked_at_again():
    known, mask = KnownMasks(), torch.ones(6, 6).tril().bool()
    assert str(known(mask, False, SMALL)) == "causal"
    mask[:] = True
    assert str(known(mask, False, SMALL)) == "none"
    mask.view(36)[:] = torch.ones(6, 6).tril().bool().view(36)  # by another view of it
    assert str(known(mask, False, SMALL)) == "causal"
    mask.data[:] = True  # which torch does not count
    assert str(known(mask, False, SMALL)) == "none"
    with torch.inference_mode():  # where torch counts no writes
        mask = torch.ones(6, 6).tril().bool()
        assert str(known(mask, False, SMALL)) == "causal"
        mask[:] = True
        assert str(known(mask, False, SMALL)) == "none"


def test_the_files_of_the_latest_masks_without_a_name_are_there(monkeypatch):
    monkeypatch.setattr(mask_of_module, "MOST_FILES", 2)
    known, biases = KnownMasks(), torch.rand(5, 6, 6)
    files = [Path(known(x, False, SMALL).parts[0].file) for x in biases[:3]]
    assert [file.is_file() for file in files] == [False, True, True]
    assert known(biases[1].clone(), False, SMALL).parts[0].file == str(files[1])
    files.append(Path(known(biases[3], False, SMALL).parts[0].file))
    assert [file.is_file() for file in files] == [False, True, False, True]
    known._process = -1  # of a fork, which leaves what others may need
    known(biases[4], False, SMALL)
    assert files[1].is_file() and files[3].is_file()


def test_the_last_tokens_of_the_keys_decode_and_another_sequence_does_not(tmp_path):
    own = np.arange(12) <= np.arange(5, 12)[:, None]
    padded = np.arange(12) >= np.array([0, 3])[:, None, None, None]
    left, across = tmp_path / "left.npy", tmp_path / "across.npy"
    np.save(left, own & padded)
    np.save(across, ~own[None, None])
    for queries, keys, mask, phase in (
        (1, 9, "none", "decode"),
        (FEW, 40, "causal", "decode"),
        (FEW + 1, 40, "causal", "forward"),
        (7, 12, "none", "forward"),
        (7, 12, "causal@upper-left", "forward"),
        (7, 12, "window:3,0", "decode"),
        (7, 12, "window:3,3", "forward"),
        (7, 12, "dense:{left}", "decode"),
        (7, 12, "dense:{across}", "forward"),
    ):
        found = Mask.parse(mask.format(left=left, across=across))
        shape = Shape(2, 4, queries, keys)
        assert phase_of(shape, found, gradient=False) == phase
        assert phase_of(shape, found, gradient=True) == "train"
