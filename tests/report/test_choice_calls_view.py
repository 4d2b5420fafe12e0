"""The answers for a program on the terminal: each problem's, each place's, the gain, the lines."""

import pytest

from attnbench.answer import paste
from attnbench.answer.choose import Choice
from attnbench.answer.choose_calls import GainInterval, SiteTimes, gain
from attnbench.answer.wants import Candidate, Wants
from attnbench.features.choose import view
from impls.masks import Mask
from impls.problem import Problem

EXACTLY = GainInterval.exactly
SHORT, LONG = (Problem(q_len=n, kv_len=n, mask=Mask.parse("causal")) for n in (256, 1024))


def won(problem, variant):
    best = Candidate(variant, "softmax", 1e-3, 1e-3, 1e-3, measured=True)
    return Choice(problem, Wants(), best)


ANSWERS = {SHORT: won(SHORT, "sdpa"), LONG: won(LONG, "chunked")}
NOBODY = Choice(SHORT, Wants(), None, why_not="nobody serves it")
FASTER = SiteTimes(
    "a.py:1 · short", EXACTLY(0.4), "matmul", EXACTLY(2e-3), "sdpa", EXACTLY(1e-3), inside_s=2e-3
)
LONGER = SiteTimes(
    "b.py:2 · [long]",
    EXACTLY(0.2),
    "matmul",
    EXACTLY(8e-3),
    "chunked",
    GainInterval(2e-3, 1e-3, 4e-3),
)
SAME = SiteTimes("c.py:3", EXACTLY(0.1), "sdpa", EXACTLY(1e-3), "sdpa", EXACTLY(1e-3))
UNKNOWN = SiteTimes("d.py:4", None, "flex", None, "sdpa", EXACTLY(1e-3), "how long is not [known]")
NONE = SiteTimes("e.py:5", EXACTLY(0.05), "mha", None, why="nobody serves it")


@pytest.fixture
def lines(shown):
    """Of answers and places."""

    def said(choices, *sites, of="a step"):
        text = shown(view.show_calls, choices, gain(sites, of))
        return text.splitlines()

    return said


def cells(lines, site):
    """The row of a place: what stands between two blanks or more, since names hold one."""
    (row,) = [line for line in lines if line.startswith(site) and f"{site}:" not in line]
    return [cell for cell in map(str.strip, row.removeprefix(site).split("  ")) if cell]


def test_each_problem_has_its_answer_first_and_who_has_none_says_why(lines):
    said = lines({SHORT: NOBODY, LONG: ANSWERS[LONG]}, LONGER)
    assert said[0] == f"{SHORT} (exact): no answer: nobody serves it"
    assert said[1] == ANSWERS[LONG].sentence()
    assert said[2] == ""


def test_each_place_has_what_it_uses_what_it_would_take_and_both_times(lines):
    said = lines(ANSWERS, FASTER, LONGER, SAME, UNKNOWN, NONE)
    assert " ".join(said[3].split()) == (
        "site of a step uses now, in the program now, alone take then, alone then / now"
    )
    assert cells(said, FASTER.site) == [
        "40.0%",
        "matmul",
        "2 ms",
        "2 ms",
        "sdpa",
        "1 ms",
        "0.50 [0.50, 0.50]",
    ]
    assert cells(said, LONGER.site) == [
        "20.0%",
        "matmul",
        "–",
        "8 ms",
        "chunked",
        "2 ms",
        "0.25 [0.12, 0.50]",
    ]
    assert cells(said, SAME.site) == ["10.0%", "sdpa", "–", "1 ms", "sdpa", "1 ms", "–"]
    assert cells(said, UNKNOWN.site) == ["–", "flex", "–", "–", "sdpa", "1 ms", "–"]
    assert cells(said, NONE.site) == ["5.0%", "mha", "–", "–", "–", "–", "–"]


def test_what_is_gained_is_said_and_which_places_stay_as_they_are_and_why(lines):
    sites = (FASTER, LONGER, SAME, UNKNOWN, NONE)
    said = lines(ANSWERS, *sites)
    place = said.index(gain(sites).sentence())
    assert said[place].endswith("3 of 5 sites stay as they are")
    assert said[place + 1 : place + 4] == [
        "c.py:3: it uses sdpa already",
        "d.py:4: how long is not [known]",
        "e.py:5: nobody serves it",
    ]


def test_shares_of_the_whole_program_are_said_to_be_that(lines):
    said = lines(ANSWERS, FASTER, of="the program's time")
    assert "of the program's time" in said[3]
    assert any(line.startswith("attention is 40 % of the program's time") for line in said)


def test_each_variant_that_would_be_taken_is_pasted_once_with_what_proves_it(lines):
    again = FASTER.__class__(**{**FASTER.__dict__, "site": "f.py:6", "share": EXACTLY(0.1)})
    said = lines(ANSWERS, FASTER, again, LONGER)
    text = "\n".join(said)
    for name, problem in (("sdpa", SHORT), ("chunked", LONG)):
        block = [
            f"to use {name}:",
            *(f"    {line}" for line in paste.lines(name, problem)),
            "or in a model of transformers:",
            *(f"    {line}" for line in paste.in_transformers(name)),
            "what proves it:",
            f"    {paste.proof(ANSWERS[problem])}",
        ]
        assert text.count("\n".join(block)) == 1


def test_several_variants_are_told_to_be_dispatched_and_one_is_not(lines):
    several = "several variants, for several kinds of call: measure them in one run"
    assert several in lines(ANSWERS, FASTER, LONGER)[-1]
    assert several not in "\n".join(lines(ANSWERS, FASTER, SAME))


def test_where_nothing_would_change_nothing_is_pasted(lines):
    said = lines({SHORT: ANSWERS[SHORT]}, SAME)
    assert "no site would take another variant" in "\n".join(said)
    assert "to use" not in "\n".join(said)
    assert said[-1] == "c.py:3: it uses sdpa already"


def test_of_several_problems_with_one_winner_the_first_is_pasted(lines):
    both = {LONG: won(LONG, "sdpa"), SHORT: won(SHORT, "sdpa")}
    text = "\n".join(lines(both, FASTER))
    assert paste.proof(both[LONG]) in text
    assert paste.proof(both[SHORT]) not in text


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    silent = SiteTimes("e.py:5", EXACTLY(0.05), "mha", None, why=reason)
    nobody = {SHORT: Choice(SHORT, Wants(), None, why_not=reason)}
    text = in_a_pipe(view.show_calls, nobody, gain([silent]))
    assert text.count(reason) == 2
