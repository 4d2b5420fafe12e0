"""Which records may share a line, and in which order the lines are shown."""

import math
from pathlib import Path

import pytest

from attnbench.answer.regimes import regimes, time_of
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
timed, line, untimed = made.timed, made.line, made.untimed


def test_problems_alike_in_all_but_their_length_are_one_regime():
    (found,) = regimes([*line("a", {512: 2.0, 128: 1.0}), timed("b", 256, 1.0)])
    assert found.lengths == [128, 256, 512]
    assert [list(some) for some in found.cells.values()] == [["a"], ["b"], ["a"]]


@pytest.mark.parametrize(
    "other",
    [
        {"heads": 4, "kv_heads": 4},
        {"kv_heads": 2},
        {"head_dim": 32},
        {"v_head_dim": 32},
        {"dtype": "bfloat16"},
        {"phase": "train"},
        {"inputs": "peaky"},
        {"device": "cuda"},
        {"world": 2},
        {"node": "the other kind"},
    ],
)
def test_what_differs_otherwise_is_another_regime(other):
    found = regimes([*line("a", {128: 1.0, 256: 2.0}), *line("a", {128: 1.0, 256: 2.0}, **other)])
    assert [r.lengths for r in found] == [[128, 256]] * 2
    assert len({str(r) for r in found}) == 2


def test_decoding_is_a_line_over_keys():
    records = [timed("a", n, 1.0, q_len=1, phase="decode") for n in (1, 128, 256)]
    (found,) = regimes(records)
    assert found.lengths == [1, 128, 256]
    assert "a call" not in str(found)


def test_what_was_never_tried_is_missing_on_each_kind_of_machine():
    records = [timed("a", 128, 1.0, node="x"), timed("a", 128, 2.0, node="y"), untimed("b", 128)]
    found = regimes(records)
    assert [(r.node, list(r.cells[128]), list(r.timed(128))) for r in found] == [
        ("x", ["a", "b"], ["a"]),
        ("y", ["a", "b"], ["a"]),
    ]


def test_what_ran_over_processes_is_not_among_what_ran_in_one():
    records = [timed("ring", 128, 1.0, world=2), timed("a", 128, 2.0), untimed("b", 128)]
    assert [(r.world, list(r.cells[128])) for r in regimes(records)] == [
        (2, ["ring", "b"]),
        (None, ["a", "b"]),
    ]


def test_several_queries_a_call_are_said():
    (found,) = regimes([timed("a", n, 1.0, q_len=4, phase="decode") for n in (128, 256)])
    assert "4 queries a call" in str(found)


def test_batches_with_lengths_of_their_own_are_lines_of_their_own():
    found = regimes([timed("a", n, 1.0, batch=b) for b in (1, 4) for n in (128, 256)])
    assert [(r.fixed["batch"], r.tokens, r.lengths) for r in found] == [
        (1, None, [128, 256]),
        (4, None, [128, 256]),
    ]


def test_where_the_batch_shrinks_as_sequences_grow_the_line_is_of_as_many_tokens():
    (found,) = regimes([timed("a", 1024 // b, 1.0, batch=b) for b in (8, 4, 2, 1)])
    assert (found.tokens, found.lengths) == (1024, [128, 256, 512, 1024])
    assert "batch" not in found.fixed
    assert "1024 tokens a batch" in found.shape


def test_a_place_may_lie_on_a_line_of_either_sort():
    places = [(1, 256), (1, 512), (1, 1024), (4, 256)]
    found = regimes([timed("a", n, 1.0, batch=b) for b, n in places])
    assert [(r.tokens, r.lengths) for r in found] == [(None, [256, 512, 1024]), (1024, [256, 1024])]


def test_one_length_and_several_batches_are_as_many_regimes():
    found = regimes([timed("a", 256, 1.0, batch=b) for b in (1, 2, 8)])
    assert [(r.tokens, r.fixed["batch"]) for r in found] == [(None, 1), (None, 2), (None, 8)]


def test_training_comes_first_and_layers_last():
    records = [
        timed("a", 128, 1.0, level="layer", phase="train"),
        timed("a", 128, 1.0),
        timed("a", 128, 1.0, q_len=1, phase="decode"),
        timed("a", 128, 1.0, phase="train"),
    ]
    assert [(r.phase, r.fixed["level"]) for r in regimes(records)] == [
        ("train", "core"),
        ("forward", "core"),
        ("decode", "core"),
        ("train", "layer"),
    ]


def test_a_kind_of_machine_is_named_only_where_there_are_several():
    one = [timed("a", 128, 1.0, node="fast box")]
    assert "fast box" not in str(regimes(one)[0])
    two = [*one, timed("a", 128, 1.0, node="slow box")]
    assert ["fast box" in str(r) or "slow box" in str(r) for r in regimes(two)] == [True, True]


@pytest.mark.parametrize("median", [None, math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_number_above_zero_is_no_time(median):
    (found,) = regimes([timed("a", 128, median), timed("b", 128, 1.0)])
    assert list(found.timed(128)) == ["b"]
    record = timed("a", 128, 1.0)
    odd = record.with_(time=record.time.with_(high_s=median))
    assert time_of(odd) is None
    assert time_of(untimed("a", 128)) is None is time_of(None)


def test_the_longest_is_where_at_least_half_of_the_most_have_a_time():
    names = "abcd"
    records = [timed(v, 128, 1.0) for v in names] + [timed(v, 256, 1.0) for v in "ab"]
    records += [untimed(v, 256) for v in "cd"] + [timed("a", 512, 1.0)]
    assert regimes(records)[0].longest() == 256
    assert regimes([untimed("a", 128)])[0].longest() is None


def test_no_records_are_no_regimes():
    assert regimes([]) == []


def test_the_order_in_which_a_problem_is_written_is_of_no_account():
    one, other = timed("a", 128, 1.0), timed("b", 128, 2.0)
    turned = other.with_(problem=dict(reversed(other.problem.to_dict().items())))
    (regime,) = regimes([one, turned])
    assert set(regime.cells[128]) == {"a", "b"}


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("dense:/home/me/masks/m.npy", "dense:m.npy"),
        ("causal+bias:../b.npy", "causal+bias:b.npy"),
        ("window:8,0", "window:8,0"),
    ],
)
def test_a_mask_of_a_file_is_called_by_the_file_s_name_alone(mask, said):
    record = timed("a", 128, 1.0)
    (found,) = regimes([record.with_(problem={**record.problem.to_dict(), "mask": mask})])
    assert found.mask == said
    assert str(found).startswith(f"forward, {said}, ")
