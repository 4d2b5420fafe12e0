"""A mask's tensor is looked at once, and again when it says something else."""

import gc
from pathlib import Path

import pytest
import torch

from attnbench.models import mask_of
from attnbench.models.mask_of import KnownMasks
from impls.masks import Mask, Shape

SHAPE = Shape(1, 2, 6, 6)


@pytest.fixture
def looks(monkeypatch):
    """How often a tensor was looked at."""
    seen, looked_at = [], mask_of.mask_of
    monkeypatch.setattr(mask_of, "mask_of", lambda *given: seen.append(given) or looked_at(*given))
    return seen


def nameless() -> torch.Tensor:
    return torch.tensor([True, False, True, False, True, True]).expand(6, 6).clone()


def files(mask: Mask) -> list[Path]:
    return [Path(part.file) for part in mask.parts]


def test_a_tensor_is_looked_at_once_for_each_form_of_scores(looks):
    known, mask = KnownMasks(), torch.ones(6, 6).bool()
    assert {str(known(mask, False, SHAPE)) for _ in range(12)} == {"none"} and len(looks) == 1
    assert str(known(mask, True, SHAPE)) == "causal"
    assert str(known(mask, False, SHAPE._replace(batch=2))) == "none" and len(looks) == 3


def test_a_tensor_written_to_in_place_is_looked_at_again():
    known, mask = KnownMasks(), torch.ones(6, 6).tril().bool()
    assert str(known(mask, False, SHAPE)) == "causal"
    mask[:] = True
    assert str(known(mask, False, SHAPE)) == "none"
    mask.view(36)[:] = torch.ones(6, 6).tril().bool().view(36)  # by another view of it
    assert str(known(mask, False, SHAPE)) == "causal"
    with torch.inference_mode():  # where torch counts no writes
        mask = torch.ones(6, 6).tril().bool()
        assert str(known(mask, False, SHAPE)) == "causal"
        mask[:] = True
        assert str(known(mask, False, SHAPE)) == "none"


def test_another_tensor_at_the_same_place_is_not_taken_for_the_one_before():
    known = KnownMasks()
    for turn in range(50):
        mask = torch.ones(6, 6).bool() if turn % 2 else torch.ones(6, 6).tril().bool()
        assert str(known(mask, False, SHAPE)) == ("none" if turn % 2 else "causal")
        del mask


def test_a_file_lives_as_long_as_a_tensor_that_says_the_same():
    known, one, other = KnownMasks(), nameless(), nameless()
    (file,) = files(known(one, False, SHAPE))
    assert files(known(other, False, SHAPE)) == [file]
    del one
    gc.collect()
    assert file.is_file()
    del other
    gc.collect()
    assert not file.exists()


def test_a_forked_process_leaves_the_files_that_others_may_need():
    known, mask = KnownMasks(), nameless()
    known._process = -1  # the one that it was forked from
    (file,) = files(known(mask, False, SHAPE))
    del mask
    gc.collect()
    assert file.is_file()


def test_a_bias_that_is_learned_leaves_one_file():
    known, bias = KnownMasks(), torch.randn(6, 6)
    names = set()
    for _ in range(5):
        bias.add_(0.25)
        (file,) = files(known(bias, False, SHAPE))
        names.add(file)
    assert len(names) == 5
    assert [name.exists() for name in names].count(True) == 1
