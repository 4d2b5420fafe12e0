"""The recall model: it is causal around every core, the same for all, and softmax can solve it."""

import numpy as np
import pytest
import torch

import impls
from attnbench.features.quality.recall import CAUSAL, NOTHING, SIX, Setting
from attnbench.features.quality.recall_train import RecallModel, made
from attnbench.models.attention import Built

SETTING = Setting(seq=40, pairs=(4, 8), width=16, keys=12, values=8, batch=3)
OTHERS = ("gla", "delta", "ssd", "hedgehog", "cosformer", "rfa", "topk?k=4", "mean_v")


def core_of(name):
    built = Built(impls.table().find(name))
    return lambda q, k, v: built(q, k, v, CAUSAL)


def some_tokens(seed=0, rows=3):
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(20, size=(rows, SETTING.seq)))


@pytest.mark.parametrize("name", [*SIX, *OTHERS])
def test_no_logit_knows_a_later_token_and_later_ones_know_an_earlier(name):
    model, tokens_bn, at = made(SETTING, core_of(name), 1), some_tokens(), 23
    other_bn = tokens_bn.clone()
    other_bn[:, at] = (other_bn[:, at] + 1) % 20
    with torch.no_grad():
        one, other = model(tokens_bn), model(other_bn)
    torch.testing.assert_close(one[:, :at], other[:, :at], rtol=0, atol=1e-5)
    assert ((one[:, at:] - other[:, at:]).abs().amax((0, 2)) > 1e-4)[:2].all()


def test_a_place_sees_itself_and_its_neighbour_where_the_core_lets_nothing_pass():
    model, tokens_bn = made(SETTING, lambda q, k, v: v, 0), some_tokens()
    other_bn = tokens_bn.clone()
    other_bn[:, 10] = (other_bn[:, 10] + 1) % 20
    with torch.no_grad():
        moved = (model(tokens_bn) != model(other_bn)).any(-1).all(0)
    assert moved.nonzero().flatten().tolist() == [10, 11]


def test_a_seed_gives_every_variant_the_same_first_weights():
    models = [made(SETTING, core_of(name), 7).state_dict() for name in (*SIX, *OTHERS)]
    for other in models[1:]:
        assert other.keys() == models[0].keys()
        assert all(torch.equal(other[name], x) for name, x in models[0].items())
    another = made(SETTING, core_of("sdpa"), 8).state_dict()
    assert not torch.equal(another["embedding.weight"], models[0]["embedding.weight"])


def written_by_hand(core, sharp=40.0):
    """Weights that solve the task: keys meet keys one place on, and what passes is the value.

    Tokens are unit vectors, which a norm only stretches and shifts. The places of values draw the
    queries towards themselves by the sign of the shift.
    """
    keys, values = SETTING.keys, SETTING.values
    width = keys + values
    model = RecallModel(SETTING.with_(width=width), core)
    (layer,) = model.layers
    own, before, q, k, v = 0, width, 0, width, 2 * width
    with torch.no_grad():
        for parameter in (layer.into.weight, layer.down.weight, layer.down.bias):
            parameter.zero_()
        into = layer.into.weight
        model.embedding.weight.copy_(torch.eye(width))
        into[q : q + width, own : own + width] = sharp * torch.eye(width)
        into[k : k + keys, before : before + keys] = torch.eye(keys)
        into[k + keys : k + width, own + keys : own + width] = -torch.eye(values)
        into[v + keys : v + width, own + keys : own + width] = torch.eye(values)
        layer.out.weight.copy_(100 * torch.eye(width))
        model.head.weight.zero_()
        model.head.weight[:, keys:] = torch.eye(values)
    return model


@pytest.mark.parametrize(("name", "solved"), [("sdpa", True), ("mean_v", False)])
def test_weights_written_by_hand_solve_it_with_softmax_and_not_with_a_mean(name, solved):
    batch = SETTING.task.mixed(64, np.random.default_rng(3))
    targets = torch.from_numpy(batch.targets_bn)
    with torch.no_grad():
        named = written_by_hand(core_of(name))(torch.from_numpy(batch.tokens_bn)).argmax(-1)
    right = (named == targets)[targets != NOTHING].float().mean()
    assert right == 1.0 if solved else right < 0.5
