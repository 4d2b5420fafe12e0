"""Models of transformers made small, and what they give when a variant attends."""

import torch
import transformers

from proofs import models_small
from proofs.models import forward, tokens

CLASSES = dict(models_small.classes())


def made(model_type, implementation="eager", **fields):
    """The model of that type; ``fields``: of its configuration."""
    config = models_small.small_config(model_type)
    for name, value in fields.items():
        setattr(config, name, value)
    model = getattr(transformers, CLASSES[model_type][0])
    return models_small.small_model(model, config, implementation)


def asked(model, pad="none"):
    return models_small.question(model, pad)


def by(model, variant, ask, question):
    """What ``ask`` makes of the model when a variant attends."""
    model.set_attn_implementation(variant)
    try:
        return ask(model, question)
    finally:
        model.set_attn_implementation("eager")


def logits(model, question):
    return forward(model, question)[0]


def same(model, variant, question, asks=(forward, tokens)):
    """Asserts that whatever is asked the model answers as it does under eager attention."""
    for ask in asks:
        expected, given = ask(model, question), by(model, variant, ask, question)
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            largest = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * largest)
