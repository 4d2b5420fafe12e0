"""What is to be found out of each variant, what its formulas say, and what can't be searched."""

import dataclasses
from pathlib import Path

import pytest

import impls
from attnbench.answer.search import sized
from attnbench.core.machine import this_machine
from attnbench.features.limits import search
from attnbench.features.limits.search import MEMORY
from impls.loading import load_file
from impls.problem import InvalidProblem

searching = load_file(Path(__file__).with_name("searching.py"))
BUDGET = searching.BUDGET
FORMS = searching.FORMS
GRID = searching.GRID
planned = searching.planned


def test_without_names_it_is_every_core_that_can_run_here_and_takes_the_problem():
    found = planned()
    names = {x.variant.name for x in found}
    assert {"einsum", "sdpa.flash", "linear.elu", "delta"} <= names
    assert not names & {"sdpa.cudnn", "flash_attn2", "mha", "lsh"}  # elsewhere, a layer, no causal
    assert {x.problem.phase for x in found} == {"forward", "train"}
    assert not [x for x in found if x.variant.name == "numpy" and x.problem.phase == "train"]


def test_the_problem_is_the_cpu_presets():
    (limit,) = planned("einsum", phase=("forward",))
    assert limit.problem.slug == "b1 h4/4 n256 d64 f32 causal forward"
    assert sized(limit.problem, limit.by, 4992).slug == "b1 h4/4 n4992 d64 f32 causal forward"


@pytest.mark.parametrize(
    ("by", "phase", "seq", "slug"),
    [
        ("seq", "decode", "256", "b1 h4/4 n1x512 d64 f32 causal decode"),
        ("batch", "forward", "300", "b512 h4/4 n300 d64 f32 causal forward"),
    ],
)
def test_what_is_searched_changes_and_nothing_else(by, phase, seq, slug):
    (limit,) = planned("sdpa.flash", by=by, phase=(phase,), seq=(seq,))
    assert sized(limit.problem, limit.by, 512).slug == slug


def test_rows_of_several_processes_are_not_asked():
    table = impls.table()
    table.rows["many"] = dataclasses.replace(
        table.rows["einsum"],
        name="many",
        ranks=True,
        shares="operator:is_",
        options={"world": 2},
    )
    (limit,) = search.plan(
        table, ["many"], GRID.with_(phase=("forward",)), "seq", BUDGET, this_machine()
    )
    assert (limit.closed.why, limit.closed.reason) == ("unsupported", search.RANKS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": (2, 4)}, "limits takes one value of heads: what is searched is the seq alone"),
        ({"seq": ("64", "128")}, "limits takes one value of seq"),
        ({"inputs": ("captured:x.npz",)}, "captured inputs have one length"),
        (
            {"mask": ("document:100,156",)},
            "limits can't search the seq under this mask: at 64, .*use --by batch",
        ),
        ({"mask": ("causal+prefix:100",)}, "at 64, mask prefix:100"),
    ],
)
def test_what_makes_no_search_is_refused_in_a_sentence(changes, said):
    with pytest.raises(InvalidProblem, match=said):
        planned("einsum", **changes)


def test_a_mask_of_one_batch_can_not_be_searched_by_batch():
    with pytest.raises(InvalidProblem, match=r"under this mask: at 2, .*use --by seq"):
        planned("einsum", by="batch", batch=(3,), mask=("padding:90,128,256",))


@pytest.mark.parametrize("name", FORMS)
def test_the_limit_by_formula_is_that_of_a_form_written_out_here(name):
    """Scores and weights of 4 heads; an output, a log-sum a row and one thread's tile."""
    (limit,) = planned(name, phase=("forward",))
    found = limit.search.reaches(MEMORY)
    assert FORMS[name](found) <= BUDGET.peak_bytes < FORMS[name](found + 64)
