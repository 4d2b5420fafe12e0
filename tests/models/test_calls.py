"""Captured calls as data: on disk and back, cut off, gathered, merged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.core.wire import plain
from attnbench.models.capture.calls import FEW, Gathered, SeenCalls, Site, merged
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem

CAUSAL = Problem(mask=Mask.parse("causal"), phase="train")


def site(problem=CAUSAL, calls=1, seconds=1.0, **more):
    where = {"site": "model.py:5", "via": "sdpa", **more}
    return Site(problem, **where, calls=calls, seconds=seconds)


X = [[1, 8, 256, 64], [131072, 16384, 64, 1], "float32"]
FORM = {"api": "sdpa", "q": X, "k": X, "v": X, "is_causal": True, "enable_gqa": True}
"""A call's form, as a file has it."""


def decoding(kv_len):
    return CAUSAL.with_(q_len=1, kv_len=kv_len, phase="decode", mask=Mask())


SOME = SeenCalls(
    [site(seconds=3.0), site(decoding(77), 4, 0.5, note="as it is")],
    {"command": "python train.py"}, ["a sentence"],
    wall_s=9.0, attention_s=3.5, steps=12, step_s=0.4, step_share=0.31,
)  # fmt: skip


def test_calls_come_back_from_their_file(tmp_path):
    file = tmp_path / "calls.json"
    SOME.write(file)
    assert SeenCalls.read(file) == SOME
    assert list(tmp_path.iterdir()) == [file]
    assert json.loads(file.read_text())["calls"] == 1


FIRST = plain(SOME.sites[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no captured calls"),
        ("[" * 100_000, "no captured calls"),
        ({"step_s": "fast"}, "are damaged: .*step_s"),
        ({"step_share": float("nan")}, "are damaged: .*step_share"),
        ({"sites": [{**FIRST, "calls": 0}]}, "are damaged: calls of model.py:5 is 0"),
        ({"sites": [{**FIRST, "problem": {"batch": 2}}]}, "'heads' is missing"),  # no default
    ],
)
def test_what_holds_no_calls_or_figures_that_can_not_be_is_a_sentence(tmp_path, content, message):
    text = content if isinstance(content, str) else json.dumps({**SOME.facts(), **content})
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(CantBeDone, match=message):
        SeenCalls.read(tmp_path / "calls.json")


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 9)), max_size=300))
def test_no_call_is_lost_however_they_are_gathered(calls):
    once = Gathered().add_all(site(decoding(n), some, some / 8) for n, some in calls)
    twice = Gathered().add_all(once.each())  # written by a process, and merged
    for gathered in (once, twice):
        assert sum(s.calls for s in gathered.sites()) == sum(some for _, some in calls)
    assert [s.problem for s in once.sites()] == [s.problem for s in twice.sites()]
    assert len(once.sites()) <= max(FEW, 14)


def test_processes_are_merged_and_the_step_is_that_of_who_made_most():
    took = {"wall_s": 10.0, "attention_s": 2.0}
    trained = {"steps": 5, "step_s": 1.0, "step_share": 0.4}
    header = {"processes": 1, "threads": 2, "torch": "2"}
    a = SeenCalls([site(seconds=2.0, calls=10)], header, ["said", "both"], **took, **trained)
    some = [site(seconds=2.0), site(decoding(9), seconds=0.0)]
    b = SeenCalls(some, {"processes": 1, "threads": 1}, ["both"], False, **took)
    whole = merged([a, b])
    assert (whole.wall_s, whole.attention_s, whole.steps, whole.step_share) == (20.0, 4.0, 5, 0.4)
    assert whole.unseen == ["said", "both"] and not whole.complete
    assert whole.header == {"processes": 2, "threads": 3, "torch": "2"}
    assert [(s.calls, s.share) for s in whole.sites] == [(11, 0.4), (1, None)]
    window = merged([b])
    assert window.sites[0].share == pytest.approx(0.2) and merged([]).share is None


def test_a_steps_share_is_of_what_trains_alone():
    trained, judged = site(seconds=2.0, calls=10), site(CAUSAL.with_(phase="forward"), 1000, 8.0)
    steps = {"wall_s": 40.0, "attention_s": 10.0, "steps": 9, "step_s": 1.0, "step_share": 0.3}
    shares = {s.calls: s.share for s in merged([SeenCalls([trained, judged], **steps)]).sites}
    assert shares == {10: pytest.approx(0.3), 1000: None}
    both = SeenCalls([trained, site(decoding(9).with_(phase="train"), seconds=6.0)], **steps)
    assert [s.share for s in merged([both]).sites] == [pytest.approx(0.225), pytest.approx(0.075)]
    frozen = merged([SeenCalls([judged], **{**steps, "attention_s": 8.0})])
    assert frozen.sites[0].share == pytest.approx(0.3)


STEPS = {"steps": 4, "step_s": 10.0, "step_share": 0.6}


@pytest.mark.parametrize(
    ("seconds", "wall_s", "more", "share"),
    [(5.0, 2.0, {}, None), (5.0, 9.0, {**STEPS, "step_share": 1.2}, None), (1.0, 1.0, {}, 1.0)],
)
def test_calls_that_overlap_have_no_share_of_the_time(seconds, wall_s, more, share):
    calls = SeenCalls([site(seconds=seconds)], wall_s=wall_s, attention_s=seconds, **more)
    whole = merged([calls])
    assert whole.share == whole.sites[0].share == share
    assert any("calls overlap" in line for line in whole.unseen) == (share is None)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 2.0),  # no step: the mean of all
        (STEPS, 1.5),  # 6 s of a step, 4 calls in each
        ({**STEPS, "header": {"processes": 2}}, 2.0),
    ],
)
def test_a_call_takes_what_it_takes_in_a_median_step_and_the_first_calls_don_t_count(more, seconds):
    trained = site(calls=20, seconds=30.0, backward_s=10.0, share=0.6)
    calls = SeenCalls(**{"header": {"processes": 1}, **more})
    assert calls.a_call_s(trained) == pytest.approx(seconds)
