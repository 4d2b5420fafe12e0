"""A choice on the terminal: the answer, what must be known besides, who is out, what to paste."""

from dataclasses import replace

import pytest

from attnbench.answer import paste
from attnbench.answer.choose import Choice, Lead
from attnbench.answer.wants import Candidate, Excluded, Wants, Why
from attnbench.features.choose import view
from impls.masks import Mask
from impls.problem import Problem

PROBLEM = Problem(q_len=1024, kv_len=1024, mask=Mask.parse("causal"))
SAID = "b1 h8/8 n1024 d64 f32 causal forward (exact)"
NOBODY = Choice(PROBLEM, Wants(), None, why_not="nothing was measured of it")


def candidate(variant, median_s, **more):
    given = {
        "computes": "softmax",
        "low_s": 0.9 * median_s,
        "high_s": 1.1 * median_s,
        "measured": True,
        **more,
    }
    return Candidate(variant, median_s=median_s, **given)


SDPA = candidate("sdpa", 1e-3, memory_bytes=2**21, error=2.5e-7)
MATMUL, EINSUM = candidate("matmul", 2e-3), candidate("einsum", 4e-3)
WON = Choice(PROBLEM, Wants(), SDPA, next=MATMUL, lead=Lead(2.0, 1.6, 2.4))


def out(variant, why, said="[why]", **more):
    return Excluded(variant, why, said, **more)


@pytest.fixture
def lines(shown):
    """Of a choice."""
    return lambda choice: shown(view.show, choice).splitlines()


def beside(lines):
    """What is said between the answer and the table or the end."""
    return lines[1 : lines.index("")] if "" in lines else lines[1:]


def cells(lines, variant):
    """The row of a variant, without what stands between its cells."""
    (row,) = [line for line in lines if line.split()[:1] == [variant]]
    return [cell for cell in map(str.strip, row.split("  ")) if cell]


# ---- the answer and what it rests on -------------------------------------------------------------


def test_the_answer_comes_first_and_alone_where_nothing_else_is_known(lines):
    said = lines(WON)
    assert said[0] == (
        f"{SAID}: use sdpa, 1 ms [0.9 ms, 1.1 ms] and 2 MiB; 2.00× [1.60, 2.40] ahead of matmul"
    )
    assert beside(said) == ["error to exact softmax: 2.5e-07"]
    assert beside(lines(replace(WON, winner=replace(SDPA, error=None)))) == []


def test_nothing_measured_is_said_with_what_would_let_somebody_in_and_what_was_looked_at(lines):
    assert lines(NOBODY) == [f"{SAID}: no answer: nothing was measured of it"]
    looked = replace(NOBODY, relax="--max-memory 3MiB would let sdpa in", source="results/[box]/1")
    assert lines(looked) == [
        f"{SAID}: no answer: nothing was measured of it; --max-memory 3MiB would let sdpa in",
        "looked at: results/[box]/1",
    ]


def test_the_run_that_it_rests_on_is_named(lines):
    assert beside(lines(replace(WON, source="results/[box]/1")))[0] == "from results/[box]/1"


def test_a_prediction_is_said_to_be_one_in_the_answer_beside_it_and_in_the_table(lines):
    said = lines(replace(WON, winner=replace(SDPA, measured=False)))
    assert "use sdpa, predicted at 1 ms" in said[0]
    assert beside(said)[0] == (
        "predicted from the run's other problems: nine of ten such times lie in their interval; "
        "--measure measures it"
    )
    assert beside(said)[1] == (
        "error to exact softmax: 2.5e-07, at the worst where it was checked: not on this problem"
    )
    assert cells(said, "sdpa")[-1] == "predicted"
    assert "predicted" not in "".join(lines(WON))


@pytest.mark.parametrize(
    ("setup_s", "others", "next_", "told"),
    [
        (0.5, 0.0, MATMUL, "500 ms; against matmul that has paid after 500 calls"),
        (2.0, None, MATMUL, "2000 ms; against matmul that has paid after 2,000 calls"),
        (1e-3, 0.0, MATMUL, "1 ms; against matmul that has paid after 1 call"),
        (0.5, 0.5, MATMUL, "500 ms"),
        (0.5, None, None, "500 ms"),
    ],
)
def test_what_it_costs_once_is_told_and_when_that_has_paid(setup_s, others, next_, told, lines):
    other = next_ and replace(next_, setup_s=others)
    said = lines(replace(WON, winner=replace(SDPA, setup_s=setup_s), next=other))
    assert f"once, before the first call: {told}" in beside(said)


def test_it_pays_against_who_can_not_be_told_from_it_where_there_is_nobody_else(lines):
    near = candidate("chunked", 1.01e-3)
    won = replace(WON, winner=replace(SDPA, setup_s=0.1), equal=(near,), next=None, lead=None)
    assert "100 ms; against chunked that has paid after 10,000 calls" in beside(lines(won))[0]


def test_what_is_not_exact_says_its_error_and_what_it_keeps(lines):
    near = replace(SDPA, computes="approximates softmax", error=0.12, skill=0.734)
    said = lines(replace(WON, winner=near))
    assert beside(said) == ["error to exact softmax: 1.2e-01; it keeps 73% of what softmax does"]
    assert cells(said, "sdpa")[-1] == "approximates softmax"


def test_a_time_in_doubt_is_said_to_be(lines):
    doubtful = replace(SDPA, flags=("drift: 4 %", "drift: 5 %", "throttled"))
    said = lines(replace(WON, winner=doubtful))
    assert said[0].endswith("ahead of matmul (in doubt: drift and throttled)")
    assert cells(said, "sdpa")[-1] == "in doubt"
    assert "in doubt" not in "".join(lines(WON))


def test_who_might_be_faster_is_named_and_who_can_not_be_is_not(lines):
    some = (
        out("flex", Why.UNKNOWN),
        out("online", Why.ABSENT, at_best_s=1e-4),
        out("late", Why.UNKNOWN, at_best_s=1.0),
        out("broken", Why.STATUS),
    )
    said = beside(lines(replace(WON, excluded=some)))
    assert said[-1] == "too little is known of flex, online: they might be faster"
    assert not any("too little" in line for line in lines(replace(WON, excluded=some[2:])))


# ---- who else could be chosen, and who not -------------------------------------------------------


def test_the_table_has_all_that_could_be_chosen_the_fastest_first(lines):
    equal = candidate("[chunked]", 1.01e-3, memory_bytes=None, error=None)
    said = lines(replace(WON, equal=(equal,), slower=(EINSUM,)))
    rows = [cells(said, name) for name in ("sdpa", "[chunked]", "matmul", "einsum")]
    assert rows == [
        ["sdpa", "1", "0.9 to 1.1", "1.00", "2 MiB", "2.5e-07"],
        ["[chunked]", "1.01", "0.909 to 1.111", "1.01", "–", "–", "can't be told from it"],
        ["matmul", "2", "1.8 to 2.2", "2.00", "–", "–"],
        ["einsum", "4", "3.6 to 4.4", "4.00", "–", "–"],
    ]
    places = [n for n, line in enumerate(said) if line.split()[:1] in [[r[0]] for r in rows]]
    assert places == sorted(places)


def test_the_words_of_a_row_are_split_by_semicolons(lines):
    both = candidate("a", 1.01e-3, computes="its own operator", measured=False, flags=("drift",))
    said = lines(replace(WON, equal=(both,)))
    assert cells(said, "a")[-1] == "predicted; can't be told from it; its own operator; in doubt"


@pytest.mark.parametrize("why", Why)
@pytest.mark.parametrize("start", [WON, NOBODY], ids=["won", "nobody"])
def test_each_reason_that_keeps_somebody_out_has_its_line(why, start, lines):
    said = lines(replace(start, excluded=(out("[a]", why), out("b", why))))
    (line,) = [line for line in said if line.startswith("left out, ")]
    brief = why in (Why.COMPUTES, Why.SUPPORT)
    assert line == f"left out, {why}: [a], b" + ": [why]" * (not brief)


def test_who_is_out_for_one_reason_in_other_words_has_a_line_for_each_of_these(lines):
    some = (
        out("a", Why.MEMORY, "one"),
        out("b", Why.MEMORY, "two"),
        out("c", Why.MEMORY, "one"),
        out("d", Why.SUPPORT, "three"),
    )
    said = [line for line in lines(replace(NOBODY, excluded=some)) if "left out" in line]
    assert said == [
        "left out, doesn't take it: d",
        "left out, memory: a, c: one",
        "left out, memory: b: two",
    ]


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, " and 1 more"), (30, " and 22 more")])
def test_of_many_that_one_reason_keeps_out_eight_are_named(count, more, lines):
    names = [f"v{n}" for n in range(count)]
    for why, end in ((Why.COMPUTES, ""), (Why.STATUS, ": [why]")):
        said = lines(replace(NOBODY, excluded=tuple(out(name, why) for name in names)))
        assert said[-1] == f"left out, {why}: {', '.join(names[:8])}{more}{end}"


# ---- what to paste -------------------------------------------------------------------------------


def test_what_to_paste_and_what_proves_it_end_an_answer(shown):
    text = shown(view.show, WON)
    assert text.endswith(
        f"""
to use it:
    import torch.nn.functional as F
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)

or in a model of transformers:
    import attnbench.models.transformers
    model.set_attn_implementation("attnbench:sdpa")

what proves it:
    {paste.proof(WON)}
"""
    )
    assert "to use it" not in shown(view.show, NOBODY)


def test_a_long_line_wraps_in_a_pipe(in_a_pipe, reason):
    some = tuple(out(f"v{n}", Why.STATUS, reason) for n in range(9))
    text = in_a_pipe(view.show, replace(NOBODY, excluded=some, why_not=reason))
    assert text.count(reason) == 2
