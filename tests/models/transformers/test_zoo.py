"""Models that transformers runs by its own plain attention give the same through ours."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from attnbench.answer.paste import spelled
from attnbench.models.attention import attention
from impls.loading import load_file

zoo = load_file(Path(__file__).with_name("zoo.py"))
CASES = [(name, pad) for name, small in zoo.ZOO.items() for pad in small.pads]
WRITES = [(name, pad) for name, pad in CASES if zoo.ZOO[name].writes and pad != "right"]
CLOSE = 1e-5


def same_logits(name: str, pad: str, variant: str, tokens: int | None = None) -> None:
    model, question = zoo.ZOO[name].made(), zoo.asked(zoo.ZOO[name], pad)
    if tokens is not None:
        short = {"input_ids": question.given["input_ids"][:, :tokens]}
        question = question._replace(given=short, counts=question.counts[:, :tokens])
    expected = zoo.logits(model, question)
    given = zoo.by(model, spelled(variant), zoo.logits, question)
    torch.testing.assert_close(given, expected, rtol=0.0, atol=CLOSE * float(expected.abs().max()))


def same_tokens(name: str, pad: str, variant: str) -> None:
    model, question = zoo.ZOO[name].made(), zoo.asked(zoo.ZOO[name], pad)
    expected, wanted = zoo.written(model, question)
    tokens, given = zoo.by(model, spelled(variant), zoo.written, question)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(given, wanted, rtol=0.0, atol=CLOSE * float(wanted.abs().max()))


def same_training_step(name: str, pad: str, variant: str) -> None:
    model, question = zoo.ZOO[name].made(), zoo.asked(zoo.ZOO[name], pad)
    loss, expected = zoo.learned(model, question)
    lost, given = zoo.by(model, spelled(variant), zoo.learned, question)
    torch.testing.assert_close(lost, loss, rtol=CLOSE, atol=0.0)
    assert given.keys() == expected.keys()
    largest = max(float(x.norm()) for x in expected.values())
    for weight, gradient in expected.items():
        off = float((given[weight] - gradient).norm())
        assert off <= CLOSE * 10 * float(gradient.norm()) + CLOSE / 10 * largest, (weight, off)


@pytest.mark.parametrize("variant", ["einsum", "sdpa.flash"])
@pytest.mark.parametrize(("name", "pad"), CASES)
def test_logits_gradients_and_tokens_are_eagers(name, pad, variant):
    same_logits(name, pad, variant)
    same_training_step(name, pad, variant)
    if (name, pad) in WRITES:
        same_tokens(name, pad, variant)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_a_variant_of_windows_serves_the_layers_without_one_and_short_texts_too(name):
    same_logits(name, "none", "window.blocked")
    same_training_step(name, "right", "window.blocked")
    same_tokens(name, "none", "window.blocked")
    same_logits(name, "none", "window.blocked", tokens=3)


DROPPING = {
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
    "gpt2": {"resid_pdrop": 0.1, "attn_pdrop": 0.2, "embd_pdrop": 0.1},
    "whisper": {"dropout": 0.1, "attention_dropout": 0.2},
}


@pytest.mark.parametrize(
    ("name", "variant"), [("bert", "matmul"), ("gpt2", "einsum"), ("whisper", "sdpa")]
)
def test_dropout_drops_the_weights_that_transformers_own_attention_drops(name, variant):
    """Of one seed the same weights are dropped, so the whole step is the same."""
    small = zoo.ZOO[name]
    model = small._replace(settings={**small.settings, **DROPPING[name]}).made()
    pad = "right" if "right" in small.pads else "none"
    question, steps = zoo.asked(small, pad), []
    for implementation in ("sdpa" if variant == "sdpa" else "eager", spelled(variant)):
        torch.manual_seed(5)
        steps.append(zoo.by(model, implementation, zoo.learned, question))
    (loss, expected), (lost, given) = steps
    torch.testing.assert_close(lost, loss, rtol=CLOSE, atol=0.0)
    for weight, gradient in expected.items():
        torch.testing.assert_close(given[weight], gradient, rtol=1e-3, atol=1e-5)
    plain, _ = zoo.by(small.made(), spelled(variant), zoo.learned, question)
    assert abs(float(plain - lost)) > 1e-3


def test_an_operator_of_its_own_gets_q_as_it_was_before_the_layer_scaled_it():
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    attend, given = attention("linear.elu"), torch.nn.Module()
    expected = attend(q, k, v, is_causal=True).transpose(1, 2)
    asked = {"scaling": 1.0, "is_causal": True}
    out, _ = AttentionInterface()["attnbench:linear.elu"](given, q * 8**-0.5, k, v, None, **asked)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("variant", ["inplace", "numpy"])
def test_a_variant_without_a_backward_writes_what_eager_writes(variant):
    same_logits("llama", "left", variant)
    same_tokens("llama", "left", variant)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_variant_does_what_eager_does_and_is_compiled():
    same_logits("llama", "left", "compiled")
    same_training_step("llama", "left", "compiled")
    assert counters["stats"]["unique_graphs"] > 0
