"""The rows: data that loads without torch, and figures that are what the sources say."""

import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench.features.claims import claim as claims
from attnbench.features.claims.measured.gpu_rates import flops
from attnbench.features.claims.measured.ruler import problem
from attnbench.features.claims.rows import words_printed
from impls import table
from impls.loading import load_function

ROOT = Path(attnbench.__file__).parents[1]
ALL = claims.claims()


def test_names_are_of_one_claim_each():
    assert len({claim.name for claim in ALL}) == len(ALL)


def test_the_rows_are_read_without_torch():
    code = (
        "import sys; from attnbench.features.claims.claim import claims; claims(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("how", sorted({claim.how for claim in ALL}))
def test_each_function_that_a_row_names_is_there(how):
    assert callable(load_function(how))


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.name)
def test_each_row_says_where_it_was_read_and_what_was_done(claim):
    source = claim.source
    assert all((source.title, source.author, source.where, source.read))
    assert claim.statement.endswith(".")
    assert claim.setting.endswith(".")
    if any(point.ours for point in claim.points):
        assert "ours" in claim.setting  # whose the limit is, stands where the setting is read


@pytest.mark.parametrize("claim", [c for c in ALL if c.timed], ids=lambda claim: claim.name)
def test_what_is_measured_is_taken_by_the_rows_that_are_named(claim):
    rows = table()
    for point in claim.points:
        for word in ("variant", "judged", "against"):
            if word in point.cell:
                row = rows.find(point.cell[word])
                assert row.supports(problem(point.cell["problem"])) is None


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(claims.UnknownClaim, match="did you mean key-bias"):
        claims.find(["keybias"])
    assert [c.name for c in claims.find(["words-small", "key-bias", "key-bias"])] == [
        "words-small",
        "key-bias",
    ]


def cell_of(name, point):
    (claim,) = claims.find([name])
    return next(each for each in claim.points if each.name == point)


@pytest.mark.parametrize(
    ("name", "point", "ms"),
    [
        ("h200-llama-cudnn", "none forward b2 h64 n8192 d128", 6.271),
        ("h200-llama-cudnn", "causal forward b2 h64 n8192 d128", 3.357),
        ("h200-llama-cudnn", "none backward b2 h64 n8192 d128", 19.572),
        ("h200-llama-fa4", "causal backward b2 h64 n16384 d128", 36.265),
        ("h200-flash3-long", "none forward b1 h8 n32768 d64", 4.517),
    ],
)
def test_rates_are_counted_as_the_source_counts_them(name, point, ms):
    """Where a source gives milliseconds too, they and the FLOPs give its own rate."""
    one = cell_of(name, point)
    rate = flops(problem(one.cell["problem"])) / 1e12 / (ms / 1e3)
    assert rate == pytest.approx(one.published, rel=2e-3)


def test_printed_tables_have_the_form_of_their_sentences():
    for sentence, rows in words_printed.WEIGHTS.items():
        words = sentence.split()
        assert [len(row) for row in rows] == [len(words)] * len(words)
        for row in rows:
            assert sum(row) == pytest.approx(1.0, abs=0.005 * len(words))
        assert len(words_printed.SHIP_WEIGHTS[sentence]) == len(words)
        assert sum(words_printed.SHIP_WEIGHTS[sentence]) == pytest.approx(1.0, abs=6e-4)
        assert len(words_printed.BY_ATTENTION[sentence]) == len(words_printed.SHIP_VECTOR) == 50
