"""``attnbench choose --problems calls.json``: an answer a call site, and what the model gains."""

import json
from pathlib import Path

import pytest

from attnbench.answer.choose_calls import site_times
from attnbench.models.capture.calls import SeenCalls, Site
from impls.loading import load_file

made = load_file(Path(__file__).with_name("chosen_runs.py"))


@pytest.fixture
def run(tmp_path):
    """sdpa takes twice as long as matmul, whatever the problem."""
    return made.written(tmp_path / "run", made.lines(("forward", "train"), sdpa=2.0, matmul=1.0))


def captured(tmp_path, *sites, **more):
    """In the program a call takes no longer than alone, if nothing else is said."""
    found = [
        Site(
            **{
                "problem": p,
                "site": f"model.py:{n}",
                "via": via,
                "calls": 12,
                "seconds": 1e-6,
                "share": share,
                **rest,
            }
        )
        for n, (p, via, share, rest) in enumerate(sites)
    ]
    calls = SeenCalls(
        sites=found,
        wall_s=10.0,
        attention_s=5.0,
        steps=3,
        step_s=1.0,
        step_share=sum(s.share or 0 for s in found),
        **more,
    )
    calls.write(tmp_path / "calls.json")
    return tmp_path / "calls.json"


def test_what_a_step_gains_is_its_share_of_attention_times_what_attention_gains(
    chooses, run, tmp_path
):
    file = captured(tmp_path, (made.problem(512, "train"), "sdpa", 0.4, {}))
    status, out, _ = chooses("--problems", file, "--from", run, "--json")
    gain = json.loads(out)["gain"]
    assert status == 0
    assert gain["factor"]["value"] == pytest.approx(1 - 0.4 * 0.5)
    assert gain["factor"]["low"] < gain["factor"]["value"] < gain["factor"]["high"]
    assert gain["of"] == "a step"


def test_what_a_call_takes_longer_in_the_program_widens_what_is_gained(chooses, run, tmp_path):
    """Ten times as long as alone: in proportion half is gained, in seconds next to nothing."""
    alone, inside = (
        json.loads(chooses("--problems", captured(tmp_path, site), "--from", run, "--json")[1])[
            "gain"
        ]
        for site in (
            (made.problem(512, "train"), "sdpa", 0.4, {"seconds": seconds}) for seconds in (1e-6, 1)
        )
    )
    site = inside["sites"][0]
    assert site["inside_s"] == pytest.approx(1 / 12)
    assert site["inside_s"] > 5 * site["now_s"]["value"]
    assert inside["factor"]["low"] == alone["factor"]["low"]
    assert 0.96 < inside["factor"]["high"] < 1


def test_what_the_share_may_be_off_widens_what_is_gained(chooses, run, tmp_path):
    site = (made.problem(512, "train"), "sdpa", 0.4, {})
    narrow, wide = (
        json.loads(
            chooses("--problems", captured(tmp_path, site, **more), "--from", run, "--json")[1]
        )
        for more in ({}, {"step_share_between": [0.3, 0.5]})
    )
    assert wide["gain"]["factor"]["value"] == narrow["gain"]["factor"]["value"]
    assert wide["gain"]["factor"]["low"] < narrow["gain"]["factor"]["low"] - 0.04
    assert wide["gain"]["factor"]["high"] > narrow["gain"]["factor"]["high"] + 0.04


def test_each_site_has_its_line_and_what_to_paste(chooses, run, tmp_path):
    file = captured(
        tmp_path,
        (made.problem(512, "train"), "sdpa", 0.3, {}),
        (made.problem(700), "transformers eager", 0.1, {}),
    )
    _, out, _ = chooses("--problems", file, "--from", run)
    assert "model.py:0 · b1 h4/4 n512" in out and "model.py:1 · b1 h4/4 n700" in out
    assert "attention is 40 % of a step; taking these, a step takes 0.85" in out
    assert "it uses matmul already" in out
    assert 'attend = attnbench.attention("matmul")' in out
    assert 'model.set_attn_implementation("attnbench:matmul")' in out


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


def test_where_nobody_can_be_answered_the_status_is_1(chooses, run, tmp_path):
    file = captured(tmp_path, (made.problem(512, heads=64), "sdpa", 0.2, {}))
    assert chooses("--problems", file, "--from", run)[0] == 1


def test_without_a_site_that_is_a_problem_it_is_refused(chooses, run, tmp_path):
    file = captured(tmp_path, (made.problem(512), "flex", 0.1, {"faithful": False}))
    status, _, err = chooses("--problems", file, "--from", run)
    assert status == 2 and "no call that can be put as a problem" in err


@pytest.mark.parametrize(
    ("via", "variant"),
    [
        ("sdpa", "sdpa"),
        ("mha", "sdpa"),
        ("mha fast path", "sdpa"),
        ("flex", "flex"),
        ("transformers eager", "matmul"),
        ("transformers sdpa", "sdpa"),
        ("somebody's", "somebody's"),
    ],
)
def test_what_a_call_uses_now_is_the_variant_that_does_the_same(via, variant):
    assert site_times("a.py:1", 0.1, via, None).uses == variant
