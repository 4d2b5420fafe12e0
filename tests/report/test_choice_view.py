"""A choice on the terminal: the answer, the other candidates, the excluded, what to paste."""

from dataclasses import replace

from attnbench.answer.choose import Choice, Excluded, Wants, Why
from attnbench.answer.choose_calls import GainInterval, SiteTimes, gain
from attnbench.answer.ranking import Candidate, Lead, Ranking
from attnbench.features.choose import view
from impls.masks import Mask
from impls.problem import Problem

SHORT, PROBLEM = (Problem(q_len=n, kv_len=n, mask=Mask.parse("causal")) for n in (256, 1024))
NONE = Choice(PROBLEM, Wants(), why_not="nothing was measured of it")
EXACTLY = GainInterval.exactly


def candidate(variant, median_s):
    return Candidate(variant, "softmax", median_s, 0.9 * median_s, 1.1 * median_s, True)


SDPA = candidate("sdpa", 1e-3)
MATMUL = candidate("matmul", 2e-3)


def won(winner=SDPA, equal=(), slower=(MATMUL,), problem=PROBLEM, **more):
    lead = Lead(2.0, 1.6, 2.4) if slower else None
    return Choice(problem, Wants(), Ranking(winner, equal, slower, lead), **more)


def test_each_reason_for_exclusion_has_its_line_and_who_might_be_faster_is_named(shown):
    names = [f"v{n}" for n in range(9)]
    for why in Why:
        some = (*(Excluded(name, why, "[why]") for name in names), Excluded("c", why, "two"))
        lines = shown(view.show, replace(NONE, excluded=some)).splitlines()
        left_out = [line for line in lines if "left out" in line]
        if why in (Why.COMPUTES, Why.SUPPORT):
            assert left_out == [f"left out, {why}: {', '.join(names[:8])} and 2 more"]
        else:
            one = f"left out, {why}: {', '.join(names[:8])} and 1 more: [why]"
            assert left_out == [one, f"left out, {why}: c: two"]
    quick = Excluded("quick", Why.ABSENT, "x", at_best_s=1e-4)
    late = Excluded("late", Why.UNKNOWN, "x", at_best_s=1.0)
    said = shown(view.show, won(excluded=(Excluded("flex", Why.UNKNOWN, "x"), quick, late)))
    assert "too little is known of flex, quick: they might be faster" in said


# ---- the answers for a captured program ----------------------------------------------------------

CHUNKED = won(replace(SDPA, variant="chunked"), slower=())
FASTER = SiteTimes(
    "a.py:1 · short", EXACTLY(0.4), "matmul", EXACTLY(2e-3), "sdpa", EXACTLY(1e-3), inside_s=2e-3
)
LONGER = SiteTimes(
    *("b.py:2 · [long]", EXACTLY(0.2), "matmul", EXACTLY(8e-3)),
    *("chunked", GainInterval(2e-3, 1e-3, 4e-3)),
)
UNKNOWN = SiteTimes("d.py:4", None, "flex", None, "sdpa", EXACTLY(1e-3), "how long is not [known]")
SILENT = SiteTimes("e.py:5", EXACTLY(0.05), "mha", None, why="nobody serves it")


def test_a_program_has_its_answers_its_sites_and_its_gain(shown):
    sites = (FASTER, LONGER, UNKNOWN, SILENT)
    choices, found = {SHORT: NONE, PROBLEM: CHUNKED}, gain(sites, "a step")
    said = shown(view.show_calls, choices, found).splitlines()
    assert said[:3] == [NONE.sentence(), CHUNKED.sentence(), ""]
    rows = {line[:6]: line for line in said[4:9]}
    told = [" ".join(rows[s.site[:6]].removeprefix(s.site).split()) for s in sites]
    assert told == [
        "40.0% matmul 2 ms 2 ms sdpa 1 ms 0.50 [0.50, 0.50]",
        "20.0% matmul – 8 ms chunked 2 ms 0.25 [0.12, 0.50]",
        "– flex – – sdpa 1 ms –",
        "5.0% mha – – – – –",
    ]
    place = said.index(found.sentence())
    assert said[place].endswith("2 of 4 sites stay as they are")
    reasons = ["d.py:4: how long is not [known]", "e.py:5: nobody serves it"]
    assert said[place + 1 : place + 3] == reasons
