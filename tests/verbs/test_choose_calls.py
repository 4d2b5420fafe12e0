"""``attnbench choose --problems calls.json``: an answer a call site, and what the model gains."""

import json
from dataclasses import astuple

import pytest

from attnbench.answer.choose import Wants, make_choice
from attnbench.answer.choose_calls import site_times
from attnbench.answer.ranking import Candidate
from attnbench.models.capture.calls import SeenCalls, Site
from tests.verbs import chosen_runs as made


@pytest.fixture
def run(tmp_path):
    """sdpa takes twice as long as matmul, whatever the problem."""
    return made.written(tmp_path / "run", made.lines(("forward", "train"), sdpa=2.0, matmul=1.0))


def captured(tmp_path, *sites, **more):
    """In the program a call takes no longer than alone, if nothing else is said."""
    made_of = {"calls": 12, "seconds": 1e-6}
    found = [
        Site(
            **{"problem": p, "site": f"model.py:{n}", "via": via, "share": share, **made_of, **rest}
        )
        for n, (p, via, share, rest) in enumerate(sites)
    ]
    step = {"steps": 3, "step_s": 1.0, "step_share": sum(s.share or 0 for s in found)}
    calls = SeenCalls(sites=found, wall_s=10.0, attention_s=5.0, **step, **more)
    calls.write(tmp_path / "calls.json")
    return tmp_path / "calls.json"


@pytest.fixture
def gain(chooses, run, tmp_path):
    """What is said to be gained where sdpa's share of a step is 0.4."""

    def of(seconds=1e-6, **more):
        site = (made.problem(512, "train"), "sdpa", 0.4, {"seconds": seconds})
        file = captured(tmp_path, site, **more)
        return json.loads(chooses("--problems", file, "--from", run, "--json")[1])["gain"]

    return of


def test_what_a_step_gains_is_its_share_of_attention_times_what_attention_gains(gain):
    factor = (alone := gain())["factor"]
    assert alone["of"] == "a step"
    assert factor["value"] == pytest.approx(1 - 0.4 * 0.5)
    assert factor["low"] < factor["value"] < factor["high"]
    inside = gain(seconds=1)  # ten times as long as alone: in seconds next to nothing is gained
    (site,) = inside["sites"]
    assert (
        site["inside_s"] == pytest.approx(1 / 12) and site["inside_s"] > 5 * site["now_s"]["value"]
    )
    assert inside["factor"]["low"] == factor["low"] and 0.96 < inside["factor"]["high"] < 1
    wide = gain(step_share_between=[0.3, 0.5])["factor"]
    assert wide["value"] == factor["value"]
    assert wide["low"] < factor["low"] - 0.04 and wide["high"] > factor["high"] + 0.04


def test_a_site_that_nobody_can_answer_stays_and_says_why(chooses, run, tmp_path):
    file = captured(
        tmp_path,
        (made.problem(512, "train"), "sdpa", 0.3, {}),
        (made.problem(512, heads=64), "sdpa", 0.2, {}),
        (made.problem(512), "flex", 0.1, {"faithful": False, "note": "a score_mod of its own"}),
    )
    status, out, _ = chooses("--problems", file, "--from", run)
    assert status == 0
    assert "outside what was measured (heads 64, and 4 was measured)" in out
    assert "a score_mod of its own" in out
    assert "2 of 3 sites stay as they are" in out


def test_a_sites_figures_are_its_variants_with_half_of_the_margin_on_each_side():
    times = (("sdpa", 2.0), ("flex", 1.0), ("matmul", 1.01))
    known = [Candidate(v, "softmax", s, 0.9 * s, 1.1 * s, measured=True) for v, s in times]
    choice = make_choice(made.problem(512), Wants(), known, margin=0.21)
    site = site_times("a.py:1", 0.4, "sdpa", choice, off=(0.5, 3.0), inside_s=9.0)
    assert astuple(site.share) == pytest.approx((0.4, 0.2, 1.0)) and site.inside_s == 9.0
    assert astuple(site.now_s) == pytest.approx((2.0, 1.8 / 1.1, 2.2 * 1.1))
    assert (site.takes, site.then_s.value) == ("flex", 1.0)
    assert site_times("a.py:1", 0.4, "eager", choice).takes == "matmul"  # which ties already
    away = site_times("a.py:1", None, "of his own", choice)
    assert (away.share, away.now_s, away.takes) == (None, None, "flex")
    assert "(of his own) would take is not known: it was not measured" in away.why
    assert site_times("a.py:1", 0.4, "sdpa", None).why == "nothing was asked of it"


def test_what_a_call_uses_now_is_the_variant_that_does_the_same():
    alike = {"sdpa": "sdpa", "mha fast path": "sdpa", "transformers eager": "matmul", "his": "his"}
    assert {via: site_times("a.py:1", 0.1, via, None).uses for via in alike} == alike
