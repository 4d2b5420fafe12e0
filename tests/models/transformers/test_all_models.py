"""Every model class of transformers that can be made small, held against eager attention."""

import pytest
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from proofs import models

QUIET = pytest.mark.filterwarnings("ignore")
"""Models of all kinds warn of all kinds of things."""


def results(outcome):
    assert not outcome.skipped, outcome.skipped
    return {case: result for case, (result, _) in outcome.cases.items()}


@QUIET
@pytest.mark.parametrize("name", [models.AT_LOAD, models.AFTERWARDS])
def test_the_sweep_sees_a_mask_that_is_lost(monkeypatch, name):
    """Masks as transformers makes them for SDPA, which Bloom's own attention can't read."""
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, name, sdpa_mask)
    model_type, way = ("bloom", "at load") if name == models.AT_LOAD else ("llama", "afterwards")
    found = results(models.swept(model_type, dict(models.small.classes())[model_type]))
    lost = found[f"{way}, no padding"], found[f"{way}, later tokens"]
    assert lost == (models.DIFFERS,) * 2
    assert found["back to eager"] == models.AGREES


@QUIET
@pytest.mark.slow
def test_no_model_gives_anything_but_what_eager_gives_or_a_sentence():
    found = models.sweep()
    wrong = [
        (x.model, case, *seen)
        for x in found
        for case, seen in x.cases.items()
        if seen[0] in (models.DIFFERS, models.ERROR)
    ]
    assert wrong == []
    assert models.page(found) == models.PAGE.read_text()
