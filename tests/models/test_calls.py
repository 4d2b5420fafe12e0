"""Captured calls as data: on disk and back, cut off, gathered, merged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.models.capture.calls import FEW, MOST, Gathered, SeenCalls, Site, merged
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem

CAUSAL = Problem(mask=Mask.parse("causal"), phase="train")


def site(problem=CAUSAL, calls=1, seconds=1.0, **more):
    return Site(
        problem, **{"site": "model.py:5", "via": "sdpa", **more}, calls=calls, seconds=seconds
    )


def decoding(kv_len):
    return CAUSAL.with_(q_len=1, kv_len=kv_len, phase="decode", mask=Mask())


SOME = SeenCalls(
    [site(seconds=3.0), site(decoding(77), 4, 0.5, note="as it is", samples="a.npz")],
    {"command": "python train.py"},
    ["a sentence"],
    wall_s=9.0,
    attention_s=3.5,
    steps=12,
    step_s=0.4,
    step_share=0.31,
)


def test_calls_come_back_from_their_file(tmp_path):
    file = tmp_path / "calls.json"
    SOME.write(file)
    assert SeenCalls.read(file) == SOME
    assert list(tmp_path.iterdir()) == [file]
    assert json.loads(file.read_text())["calls"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no captured calls"),
        ("{}", "no captured calls"),
        ("[1]", "no captured calls"),
        ('{"calls": 7}', "no captured calls"),
        ('{"calls": 1, "sites": [{"site": 3}]}', "damaged"),
        ('{"calls": 1, "sites": 5}', "damaged"),
        ("[" * 100_000, "no captured calls"),
        ('{"calls": ' + "1" * 5_000 + "}", "no captured calls"),
    ],
    ids=lambda x: x[:30],
)
def test_what_holds_no_calls_is_a_sentence(text, said, tmp_path):
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(CantBeDone, match=said):
        SeenCalls.read(tmp_path / "calls.json")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"step_s": "fast"}, ".*step_s"),
        ({"wall_s": -1}, ".*wall_s"),
        ({"step_share": float("nan")}, ".*step_share"),
        ({"sites": {"calls": 0}}, "calls of model.py:5 is 0"),
        ({"sites": {"seconds": -1}}, ".*seconds"),
        ({"sites": {"backward_s": True}}, ".*backward_s"),
        ({"sites": {"problem": {"batch": 2}}}, "'heads' is missing"),  # no default stands for it
    ],
)
def test_figures_that_can_not_be_are_damage(changed, said, tmp_path):
    values = SOME.to_dict()
    first, *rest = values["sites"]
    site = {**first, **changed.get("sites", {})}
    (tmp_path / "calls.json").write_text(json.dumps({**values, **changed, "sites": [site, *rest]}))
    with pytest.raises(CantBeDone, match=f"are damaged: {said}"):
        SeenCalls.read(tmp_path / "calls.json")


def test_no_file_and_no_text_are_sentences(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, why in {"none.json": "No such file", "bytes": "no captured calls"}.items():
        with pytest.raises(CantBeDone, match=why):
            SeenCalls.read(tmp_path / name)
    with pytest.raises(CantBeDone, match="can't write"):
        SOME.write(tmp_path / "no" / "calls.json")


def test_problems_are_each_once_those_of_most_seconds_first():
    other = CAUSAL.with_(q_len=9, kv_len=9)
    calls = SeenCalls(
        [
            site(seconds=1.0),
            site(other, seconds=1.5),
            site(site="b.py:1", seconds=1.0),
            site(CAUSAL.with_(batch=3), faithful=False),
        ]
    )
    assert calls.problems() == [CAUSAL, other]


def test_a_growing_cache_is_gathered_by_octaves():
    whole = Gathered().add_all(site(decoding(n), 2, 0.1) for n in range(100, 300))
    found = sorted(whole.sites(), key=lambda s: s.problem.kv_len)
    # keys up to 128, 256 and 299, and the middle ones of them
    assert [s.calls for s in found] == [2 * 29, 2 * 128, 2 * 43]
    assert [s.problem.kv_len for s in found[:1]] == [114]
    assert all(128 < s.problem.kv_len <= 256 for s in found[1:2])
    assert sum(s.seconds for s in found) == pytest.approx(20.0)
    assert "stands for 29 problems of 100 to 128 keys" in found[0].note
    assert f"stands for {MOST} problems" in found[1].note and "and more" in found[1].note
    few = [site(decoding(n)) for n in range(100, 101 + FEW)]
    kept = Gathered().add_all(few[:FEW]).sites()
    assert len(kept) == FEW and all(not s.note for s in kept)
    assert len(Gathered().add_all(few).sites()) == 1


def test_paddings_of_many_lengths_are_one_site_and_other_masks_another():
    padded = [
        CAUSAL.with_(batch=2, mask=Mask.parse(f"causal+padding:{n},256")) for n in range(1, 101)
    ]
    found = Gathered().add_all(map(site, padded)).add_all([site()] * 3).sites()
    assert sorted(s.calls for s in found) == [3, 100]
    assert str(found[0].problem.mask).startswith("causal+padding:")


def test_the_one_with_a_sample_stands_for_the_others():
    some = [site(decoding(n), samples="x.npz" if n == 101 else "") for n in range(100, 120)]
    (found,) = Gathered().add_all(some).sites()
    assert (found.problem.kv_len, found.samples) == (101, "x.npz")


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
    frozen = merged([SeenCalls([judged], **{**steps, "attention_s": 8.0})])
    assert frozen.sites[0].share == pytest.approx(0.3)


def test_calls_that_overlap_have_no_share_of_the_time():
    over = [
        SeenCalls([site(seconds=5.0)], wall_s=2.0, attention_s=5.0),
        SeenCalls(
            [site(seconds=5.0)], wall_s=9.0, attention_s=5.0, steps=3, step_s=1.0, step_share=1.2
        ),
    ]
    for part in over:
        whole = merged([part])
        assert whole.share is None and whole.sites[0].share is None
        assert any("calls overlap" in line for line in whole.unseen)
    whole = merged([SeenCalls([site()], wall_s=1.0, attention_s=1.0)])
    assert whole.share == 1.0 and whole.unseen == []


def test_nothing_timed_is_no_share():
    calls = SeenCalls([site(seconds=0.0)], wall_s=3.0)
    assert calls.share is None and not calls.overlap and merged([calls]).sites[0].share is None


def test_a_sample_is_not_given_to_a_problem_of_other_lengths():
    kept = Gathered().add_all(site(decoding(n)) for n in range(129, 129 + MOST))
    kept.add(site(decoding(250), samples="x.npz"))
    assert sum(s.calls for s in kept.sites()) == MOST + 1
    assert all(not s.samples for s in (*kept.sites(), *kept.each()))


def test_samples_become_the_inputs_of_the_problem():
    (found,) = merged([SeenCalls([site(samples="/x/y.npz")])]).sites
    assert found.problem.inputs == "captured:/x/y.npz"


def test_by_how_much_a_share_may_be_off_is_what_its_steps_say():
    assert SeenCalls(step_share=0.4, step_share_between=[0.3, 0.6]).off == pytest.approx(
        (0.75, 1.5)
    )
    assert SeenCalls(step_share=0.4).off == (1.0, 1.0)
    assert SeenCalls(attention_s=1.0, wall_s=2.0).off == (1.0, 1.0)


@pytest.mark.parametrize(
    ("told", "takes"),
    [
        ({}, 2.0),  # no step: the mean of all
        ({"steps": 4, "step_s": 10.0, "step_share": 0.6}, 1.5),  # 6 s of a step, 4 calls in each
        ({"steps": 4, "step_s": 10.0, "step_share": 0.6, "header": {"processes": 2}}, 2.0),
    ],
)
def test_a_call_takes_what_it_takes_in_a_median_step_and_the_first_calls_don_t_count(told, takes):
    trained = site(calls=20, seconds=30.0, backward_s=10.0, share=0.6)
    assert SeenCalls(**{"header": {"processes": 1}, **told}).a_call_s(trained) == pytest.approx(
        takes
    )


def test_a_call_without_a_time_takes_nobody_knows_what():
    assert SeenCalls().a_call_s(site(calls=3, seconds=0.0)) is None
