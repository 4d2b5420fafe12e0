"""FlexAttention, recorded, and its functions as masks; what a capture keeps of masks and inputs."""

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from attnbench.models.capture import masks
from attnbench.models.capture.masks import Masks
from impls.masks import Shape

SHAPE = Shape(2, 4, 64, 64)


def causal(b, h, q, k):
    return q >= k


def blocks(mask_mod):
    return create_block_mask(mask_mod, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)


def found(block_mask=None, score_mod=None):
    return Masks().of_flex(block_mask, score_mod, SHAPE, torch.device("cpu"))


def test_a_mask_function_is_a_mask_and_so_are_blocks_alone():
    assert str(found(blocks(causal)).mask) == "causal"
    assert str(found(blocks(lambda b, h, q, k: (q - k).abs() <= 3)).mask) == "window:3,3"
    every_other = found(blocks(lambda b, h, q, k: (q - k) % 2 == 0)).mask
    assert every_other.kinds == ("dense",)
    assert every_other.visible(SHAPE)[0, 0, 3, :4].tolist() == [False, True, False, True]
    kept = torch.tensor([[[[0, 0], [0, 1]]]], dtype=torch.int32)  # all blocks up to the diagonal
    count = torch.tensor([[[1, 2]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(count, kept, BLOCK_SIZE=32, seq_lengths=(64, 64))
    seen = found(mask).mask.visible(SHAPE)[0, 0]
    assert seen[0, :33].tolist() == [True] * 32 + [False] and seen[40].all()


def test_a_score_function_that_adds_is_a_bias_and_one_that_does_more_is_none():
    slopes = 2.0 ** -torch.arange(2.0, 9.0, 2.0)
    alibi = found(blocks(causal), lambda s, b, h, q, k: s - slopes[h] * (q - k).abs())
    assert str(alibi.mask) == "causal+alibi"
    shifted = found(None, lambda s, b, h, q, k: s + 0.5 * (q > k)).mask
    assert shifted.kinds == ("bias",) and shifted.bias(SHAPE)[0, 0, 1, :2].tolist() == [0.5, 0.0]
    capped = found(blocks(causal), lambda s, b, h, q, k: 30 * torch.tanh(s / 30))
    assert (str(capped.mask), capped.softcap, capped.note) == ("causal", 30.0, "")
    after = found(None, lambda s, b, h, q, k: 2 * torch.tanh(s / 2) - slopes[h] * (q - k).abs())
    assert (str(after.mask), after.softcap) == ("alibi", 2.0)
    for bent in (
        lambda s, b, h, q, k: 2 * torch.tanh((s - q) / 2),  # a cap on what is added
        lambda s, b, h, q, k: torch.tanh(s / 3),  # no score is left as it is
        lambda s, b, h, q, k: s * 2,
    ):
        note = found(blocks(causal), bent)
        assert note.softcap is None and "does more than cap the scores and add" in note.note
    hides = found(None, lambda s, b, h, q, k: torch.where(q >= k, s, -torch.inf))
    assert str(hides.mask) == "causal" and not hides.note


def test_a_learned_bias_is_looked_at_and_kept_once_for_a_place(tmp_path, monkeypatch):
    looks, look = [], masks.recognised
    monkeypatch.setattr(masks, "recognised", lambda *given: looks.append(given) or look(*given))
    known, shape = Masks(tmp_path), Shape(2, 4, 12, 12)
    learned = [torch.randn(1, 4, 12, 12, requires_grad=True) for _ in range(5)]
    assert len({known.of(x, False, shape, "here") for x in learned}) == len(looks) == 1
    assert len(list(tmp_path.iterdir())) == 1
