"""Distillation brings a model nearer to what it did before, moves what it may, or is refused."""

import pytest
import torch

import impls
from attnbench.features.quality.pretrained_worker import PROJECTIONS, Replaced, distil
from attnbench.models.attention import NotServed
from attnbench.models.transformers import register_row
from tests.models.quality.made_up import small_model, some_ids

IDS = some_ids((6, 9, 12, 15))


def taught(label, steps, which="projections", seed=0):
    replaced = Replaced(small_model())
    replaced.use(register_row(impls.table().find(label)))
    losses = distil(replaced, small_model(), IDS, steps, which, seed)
    return replaced.model, losses


def test_the_loss_falls():
    _, losses = taught("linear.elu", 12)
    assert len(losses) == 12 and losses[-1] < 0.95 * losses[0]


def test_what_is_the_original_already_has_nothing_to_learn():
    _, losses = taught("einsum", 1)
    assert losses[0] < 1e-8


@pytest.mark.parametrize("which", ["projections", "all"])
def test_only_what_may_move_moves(which):
    model, _ = taught("linear.elu", 2, which)
    before = dict(small_model().named_parameters())
    moved = {
        name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])
    }
    around = {name for name in before if any(part in name for part in PROJECTIONS)}
    assert moved & around
    assert (moved <= around) is (which == "projections")


def test_the_same_seed_gives_the_same_losses():
    assert taught("linear.elu", 3, seed=4)[1] == taught("linear.elu", 3, seed=4)[1]


def test_a_variant_without_a_backward_is_refused_by_its_name():
    with pytest.raises(
        NotServed, match=r"inplace serves forward, decode, not train: it has no backward"
    ):
        taught("inplace", 1)
