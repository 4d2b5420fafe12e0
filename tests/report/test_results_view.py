"""A run's tables: a word wherever a number is missing, and texts shown as they are."""

from pathlib import Path

import pytest

from attnbench.core.record import Distance, Error, Status
from attnbench.features.run import view
from impls.loading import load_file

made = load_file(Path(__file__).with_name("records.py"))
at, grid, timed, untimed = made.at, made.grid, made.timed, made.untimed


def test_results_give_median_interval_memory_error_and_share(shown):
    text = shown(
        view.show_results,
        [timed("a", 1e-3), timed("b", 2e-3, at(64)), timed("a", 4e-3, at(64)), timed("b", 8e-3)],
    )
    rows = grid(text)
    assert rows[0] == ["variant", "32", "64", "peak MiB at 64", "worst error at 64", "of ceiling"]
    assert rows[1] == ["a", "1 ±2.0", "4 ±2.0", "3", "2.0e-07", "42%"]
    assert rows[2] == ["b", "8 ±2.0", "2 ±2.0", "3", "2.0e-07", "42%"]
    for word in ("forward", "mask none", "normal inputs", "b1 h2/2", "d64", "float32", "cpu"):
        assert word in text


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.MEASURED])
def test_a_status_stands_where_there_is_no_time_and_its_reason_below(shown, status):
    text = shown(view.show_results, [timed("a", 1e-3), untimed("b", status, remedy="do this")])
    rows = grid(text)
    assert [len(row) for row in rows] == [5, 5, 5]
    assert rows[2][:2] == ["b", str(status)]
    assert f"{status}: b on b1 h2/2 n32 d64 f32 none forward: the reason → do this" in text


def test_no_cell_is_empty_whatever_is_missing(shown):
    records = [
        timed("a", 1e-3),
        timed("b", 1e-3, memory=None, error=None, share_of_ceiling=None),
        timed(
            "c",
            1e-3,
            error={"forward": Error(relative=None, max=None, worst_row=None, cosine=None)},
        ),
        untimed("d", Status.CRASHED),
        timed("a", 1e-3, at(64)),
        timed("e", 1e-3, at(64)),
    ]
    rows = grid(shown(view.show_results, records))
    assert {len(row) for row in rows} == {6}
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["b"][1] == by_name["d"][1] == "not run"
    assert by_name["e"][0] == "not run"


def test_another_operator_shows_its_distance_from_softmax(shown):
    far = Distance(relative=0.731, max=1.0, worst_row=1.0, cosine=0.5, skill=0.1)
    text = shown(view.show_results, [timed("a", 1e-3, distance=far, computes="its own operator")])
    assert "(softmax: 0.73)" in text


def test_each_regime_has_a_table_of_its_own(shown):
    changes = [
        {},
        {"phase": "train"},
        {"dtype": "bfloat16"},
        {"inputs": "peaky"},
        {"batch": 2},
        {"kv_heads": 1},
        {"head_dim": 32},
        {"v_head_dim": 32},
    ]
    records = [timed("a", 1e-3, made.PROBLEM.with_(**c)) for c in changes]
    text = shown(view.show_results, records)
    assert text.count("variant") == len(changes)
    titles = [line for line in text.splitlines() if "median ms" in line]
    assert len(set(titles)) == len(changes)


def test_a_reason_shared_by_many_is_said_once(shown):
    records = [untimed("a", Status.UNSUPPORTED, at(n)) for n in (16, 32, 64)]
    text = shown(view.show_results, records)
    assert text.count("the reason") == 1
    assert "and 2 more" in text


def test_markup_in_a_reason_or_a_remedy_stays_text(shown):
    text = shown(
        view.show_results, [untimed("a", Status.FAILED, reason=made.MARKUP, remedy=made.MARKUP)]
    )
    assert f"{made.MARKUP} → {made.MARKUP}" in text


def test_nothing_is_cut_off_where_there_is_no_terminal(capsys):
    lengths = [2**n for n in range(4, 20)]
    view.show_results([timed("a.long.name", 1.2345 * n, at(n)) for n in lengths])
    text = capsys.readouterr().out
    assert "…" not in text
    for length in lengths:
        assert f"{1234.5 * length:.4g} ±2.0" in text


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    records = [timed("a", 1e-3), untimed("b", Status.FAILED, reason=reason, remedy=reason)]
    assert f"{reason} → {reason}" in in_a_pipe(view.show_results, records)


def test_a_share_above_the_measured_ceiling_is_marked_and_explained(shown):
    records = [timed("a", 1e-3, share_of_ceiling=1.12), timed("b", 2e-3, share_of_ceiling=1.0)]
    text = shown(view.show_results, records)
    assert [row[-1] for row in grid(text)[1:3]] == ["112%*", "100%"]
    lines = text.splitlines()
    (note,) = [n for n, line in enumerate(lines) if line.startswith("* above the measured ceiling")]
    assert lines[note - 1].startswith("b ")  # right below its table


def test_no_mark_is_explained_where_none_stands(shown):
    higher = timed("a", 1e-3, share_of_ceiling=1.12)  # not shown: 64 is the longest length
    for records in ([timed("a", 1e-3)], [higher, timed("a", 1e-3, at(64))]):
        text = shown(view.show_results, records)
        assert "*" not in text
