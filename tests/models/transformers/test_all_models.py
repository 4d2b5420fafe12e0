"""Every model class of transformers that can be made small, held against eager attention."""

import itertools
import re
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AttentionInterface
from transformers.models.auto.configuration_auto import model_type_to_module_name

from attnbench.answer.paste import spelled
from attnbench.models.attention import attention
from attnbench.models.transformers import register
from proofs import models
from tests.models.transformers.small import (
    CLASSES,
    asked,
    by,
    forward,
    gradients,
    made,
    same,
    tokens,
)

QUIET = pytest.mark.filterwarnings("ignore")
"""Models of all kinds warn of all kinds of things."""


def results(outcome):
    assert not outcome.skipped, outcome.skipped
    return {case: result for case, (result, _) in outcome.cases.items()}


def attention_code(model_type):
    """The text of every function that calls an attention, and every call for a mask, without names
    of classes and what is said of them: files of transformers are copies of one another.
    """
    found, mask_calls = set(), re.compile(r"= [\w.]*_mask\((?:[^()]|\([^()]*\))*\)")
    folder = Path(transformers.__file__).parent / "models"
    for file in (folder / model_type_to_module_name(model_type)).glob("modeling_*.py"):
        code = re.sub(r'"""[^"]*"""|#[^\n]*', "", file.read_text())
        for function in re.split(r"\n(?=\S| {4}\S)", code):
            text = "".join(re.sub(r"\b[A-Z]\w+", "X", function).split())
            mine = [text] if "=attention_interface(" in text else mask_calls.findall(function)
            found |= {"".join(one.split()) for one in mine}
    return found


def one_of_each():
    """Types that have among them all of the code of those that can be tried."""
    tried = models.PAGE.read_text().partition("\n## Not tried")[0]
    named = set(re.findall(r"\w+", tried))
    left = {t: attention_code(t) for t, names in CLASSES.items() if named & {*names}}
    chosen = [t for t, code in left.items() if not code]  # made of others' models
    while any(left.values()):
        chosen.append(max(left, key=lambda t: len(left[t])))
        left = {t: code - left[chosen[-1]] for t, code in left.items()}
    return chosen


def place(page, name):
    """What the page says of a class: its row's end, or the words above the list that names it."""
    for above, part in itertools.pairwise(page.split("\n\n")):
        for line in part.splitlines():
            if re.search(rf"\b{name}\b", line):
                return line.split("|")[2] if "|" in line else above
    return None


@QUIET
@pytest.mark.slow
def test_no_model_gives_anything_but_what_eager_gives_or_a_sentence():
    """Of models whose attention has the same source, one; ``proofs/models.py`` tries them all."""
    found = models.sweep(one_of_each())
    ends = [(x.model, case, *seen) for x in found for case, seen in x.cases.items()]
    assert [end for end in ends if end[2] in (models.DIFFERS, models.ERROR)] == []
    kept, now = models.PAGE.read_text(), models.page(found)
    assert len(found) > 100 and f"transformers {transformers.__version__}," in kept
    for one in found:
        assert place(now, one.model) == place(kept, one.model), one.model


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize(
    "model_type", ["llama", "gemma3_text", "bert", "t5", "whisper", "bloom", "xglm"]
)
def test_outputs_gradients_and_tokens_are_eagers(monkeypatch, model_type):
    monkeypatch.setattr(models, "CLOSE", 1e-5)
    monkeypatch.setattr(models, "AT_LOAD", spelled("einsum"))
    monkeypatch.setattr(models, "AFTERWARDS", spelled("sdpa.flash"))
    outcome = models.swept(model_type, CLASSES[model_type])
    found = results(outcome)
    assert set(found.values()) == {models.AGREES}, outcome.cases  # Bloom's and XGLM's own too
    assert {"afterwards, gradients", "at load, no padding"} <= found.keys()
    assert ("afterwards, padded left" in found) == (model_type != "whisper")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "variant"),
    [
        ("gemma3_text", "window.blocked"),  # some of whose layers have no window
        ("llama", "numpy"),  # which has no backward
        ("llama", "chunked?block=3"),
    ],
)
def test_a_variant_writes_what_eager_writes_to_short_texts_too(model_type, variant):
    model = made(model_type)
    question, name = asked(model, "left" if model_type == "llama" else "none"), register(variant)
    assert name == spelled(variant)
    short = {"input_ids": question["input_ids"][:, -3:]}
    same(model, name, short)
    more = (gradients,) if model_type != "llama" else ()
    same(model, name, question, (forward, tokens, *more))


def test_dropout_drops_the_weights_that_transformers_own_attention_drops():
    """Of one seed the same weights are dropped, so the whole step is the same."""
    for name, own, mine, dropping in (
        ("gpt2", "eager", "einsum", {"resid_pdrop": 0.1, "attn_pdrop": 0.2, "embd_pdrop": 0.1}),
        ("whisper", "sdpa", "sdpa", {"dropout": 0.1, "attention_dropout": 0.2}),
    ):
        model, plain, mine = made(name, **dropping).train(), made(name).train(), spelled(mine)
        question = asked(model)
        expected, given = (by(model, one, gradients, question) for one in (own, mine))
        torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-5)
        without = by(plain, mine, gradients, question)
        assert float((without[0] - given[0]).norm()) > 1e-3


def test_an_operator_of_its_own_gets_q_as_it_was_before_the_layer_scaled_it():
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    attend, given = attention("linear.elu"), torch.nn.Module()
    expected = attend(q, k, v, is_causal=True).transpose(1, 2)
    asked = {"scaling": 1.0, "is_causal": True}
    out, _ = AttentionInterface()["attnbench:linear.elu"](given, q * 8**-0.5, k, v, None, **asked)
    torch.testing.assert_close(out, expected)
