"""strided, fixed, dilated, longformer, bigbird, decoding: the last rows, and the keys they read."""

import pytest

from impls.loading import load_function
from impls.spec import Unsupported
from tests.impls.sparse.pattern_rows import ROWS, SMALL, attend_of, problem, row_of, seen_by


@pytest.mark.parametrize(("mask", "new"), [("none", 1), ("causal", 5)])
@pytest.mark.parametrize("name", ROWS)
def test_decoding_passes_the_gate_and_costs_the_keys_that_it_reads(verdict, name, mask, new):
    whole = problem(301, mask, heads=4, kv_heads=2)
    step = whole.with_(q_len=new, phase="decode")
    assert verdict(SMALL[name], step).reason is None
    row = row_of(SMALL[name])
    seen = seen_by(SMALL[name], problem(301, mask))[-new:]
    read = int(seen.any(0).sum())
    assert attend_of(SMALL[name], step).note().startswith(f"{read} of 301 keys")
    cost = load_function(row.cost)(step, **row.chosen)
    assert cost.flops == 2 * int(seen.sum()) * 4 * (16 + 16)
    assert cost.bytes == 4 * (4 * new + 2 * read) * (16 + 16)


@pytest.mark.parametrize(
    ("mask", "new", "sentence"),
    [
        ("causal@upper-left", 2, r"decodes the last tokens of a sequence; causal@upper-left would"),
        ("none", 62, "q_len=62 must be at most kv_len=61"),
    ],
)
@pytest.mark.parametrize("name", ROWS)
def test_decoding_tokens_that_are_not_the_last_is_refused(name, mask, new, sentence):
    step = problem(61, mask, q_len=new, phase="decode")
    with pytest.raises(Unsupported, match=sentence):
        attend_of(name, step)


@pytest.mark.parametrize("name", ROWS)
def test_unequal_lengths_outside_decoding_are_refused(name):
    with pytest.raises(Unsupported, match="needs q_len equal to kv_len"):
        attend_of(name, problem(61, "none", q_len=7))
