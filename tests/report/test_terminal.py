"""Tables for the terminal: a word wherever a number is missing, and texts shown as they are."""

import io
import re

import pytest
from rich.console import Console

import impls
from attnbench.record import Distance, Error, Memory, Record, Status, Time
from attnbench.report import terminal
from attnbench.report.map_picture import BadPicture, draw
from impls import BrokenRow
from impls.problem import Problem
from impls.spec import Variant

PROBLEM = Problem(heads=2, kv_heads=2, q_len=32, kv_len=32)
MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def at(length, **more):
    return PROBLEM.with_(q_len=length, kv_len=length, **more)


def timed(variant, median, problem=PROBLEM, **more):
    time = Time(
        median_s=median, low_s=median * 0.98, high_s=median * 1.02, q25_s=median, q75_s=median,
        min_s=median, n=1, clock="host", stop="budget", samples_s=[median],
    )  # fmt: skip
    given = {
        "memory": Memory(peak_bytes=3 << 20, saved_bytes=None, expected_bytes=None, method="m"),
        "error": {"forward": Error(relative=2e-7, max=1.0, worst_row=1.0, cosine=1.0, ratio=1.25)},
        "share_of_ceiling": 0.42, "computes": "softmax", **more,
    }  # fmt: skip
    return Record(status=Status.MEASURED, variant=variant, problem=problem.to_dict(), time=time,
                  **given)  # fmt: skip


def untimed(variant, status, problem=PROBLEM, reason="the reason", **more):
    return Record(status=status, reason=reason, variant=variant, problem=problem.to_dict(), **more)


@pytest.fixture
def shown(monkeypatch):
    """Calls a function of the terminal and returns the text that it printed."""

    def show(function, *given):
        file = io.StringIO()
        wide = Console(file=file, width=240, highlight=False)
        monkeypatch.setattr(terminal, "console", lambda: wide)
        function(*given)
        return file.getvalue()

    return show


def grid(text):
    """The cells of the first table in a text: rows of words that two spaces part."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("variant"))
    rows = []
    for line in lines[first:]:
        if not line.strip() or re.match(r"\w+: ", line):
            break
        rows.append(re.split(r"\s{2,}", line.strip()))
    return rows


# ---- a run's results -----------------------------------------------------------------------------


def test_results_give_median_interval_memory_error_and_share(shown):
    text = shown(terminal.results, [timed("a", 1e-3), timed("b", 2e-3, at(64)),
                                    timed("a", 4e-3, at(64)), timed("b", 8e-3)])  # fmt: skip
    rows = grid(text)
    assert rows[0] == ["variant", "32", "64", "peak MiB at 64", "worst error at 64", "of ceiling"]
    assert rows[1] == ["a", "1 ±2.0", "4 ±2.0", "3", "2.0e-07", "42%"]
    assert rows[2] == ["b", "8 ±2.0", "2 ±2.0", "3", "2.0e-07", "42%"]
    for word in ("forward", "mask none", "normal inputs", "b1 h2/2", "d64", "float32", "cpu"):
        assert word in text


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.MEASURED])
def test_a_status_stands_where_there_is_no_time_and_its_reason_below(shown, status):
    text = shown(terminal.results, [timed("a", 1e-3), untimed("b", status, remedy="do this")])
    rows = grid(text)
    assert [len(row) for row in rows] == [5, 5, 5]
    assert rows[2][:2] == ["b", str(status)]
    assert f"{status}: b on b1 h2/2 n32 d64 f32 none forward: the reason → do this" in text


def test_no_cell_is_empty_whatever_is_missing(shown):
    records = [
        timed("a", 1e-3), timed("b", 1e-3, memory=None, error=None, share_of_ceiling=None),
        timed("c", 1e-3, error={"forward": Error(relative=None, max=None, worst_row=None,
                                                 cosine=None)}),
        untimed("d", Status.CRASHED), timed("a", 1e-3, at(64)), timed("e", 1e-3, at(64)),
    ]  # fmt: skip
    rows = grid(shown(terminal.results, records))
    assert {len(row) for row in rows} == {6}
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["b"][1] == by_name["d"][1] == "not run"
    assert by_name["e"][0] == "not run"


def test_another_operator_shows_its_distance_from_softmax(shown):
    far = Distance(relative=0.731, max=1.0, worst_row=1.0, cosine=0.5, skill=0.1)
    text = shown(terminal.results, [timed("a", 1e-3, distance=far, computes="its own operator")])
    assert "(softmax: 0.73)" in text


def test_each_regime_has_a_table_of_its_own(shown):
    changes = [{}, {"phase": "train"}, {"dtype": "bfloat16"}, {"inputs": "peaky"}, {"batch": 2},
               {"kv_heads": 1}, {"head_dim": 32}, {"v_head_dim": 32}]  # fmt: skip
    records = [timed("a", 1e-3, PROBLEM.with_(**c)) for c in changes]
    text = shown(terminal.results, records)
    assert text.count("variant") == len(changes)
    titles = [line for line in text.splitlines() if "median ms" in line]
    assert len(set(titles)) == len(changes)


def test_a_reason_shared_by_many_is_said_once(shown):
    records = [untimed("a", Status.UNSUPPORTED, at(n)) for n in (16, 32, 64)]
    text = shown(terminal.results, records)
    assert text.count("the reason") == 1
    assert "and 2 more" in text


def test_markup_in_a_reason_or_a_remedy_stays_text(shown):
    text = shown(terminal.results, [untimed("a", Status.FAILED, reason=MARKUP, remedy=MARKUP)])
    assert f"{MARKUP} → {MARKUP}" in text


def test_nothing_is_cut_off_where_there_is_no_terminal(capsys):
    lengths = [2**n for n in range(4, 20)]
    terminal.results([timed("a.long.name", 1.2345 * n, at(n)) for n in lengths])
    text = capsys.readouterr().out
    assert "…" not in text
    for length in lengths:
        assert f"{1234.5 * length:.4g} ±2.0" in text


# ---- a check -------------------------------------------------------------------------------------


def test_a_check_counts_what_was_right_and_shows_the_worst_error(shown):
    worse = {"forward": Error(relative=1.0, max=1.0, worst_row=1.0, cosine=1.0, ratio=3.5)}
    text = shown(terminal.checks, [timed("a", 1e-3), timed("a", 1e-3, at(64), error=worse)])
    assert grid(text)[1] == ["a", "2 of 2", "3.50 × plain"]


def test_a_check_shows_each_problem_that_was_not_right_with_its_reason(shown):
    text = shown(terminal.checks, [timed("a", 1e-3), untimed("a", Status.WRONG, at(64),
                                                             reason=MARKUP)])  # fmt: skip
    assert "1 of 2" in text
    assert "wrong" in text
    assert MARKUP in text
    assert "none forward float32" in text


def test_a_check_of_what_can_not_run_says_why(shown):
    text = shown(terminal.checks, [untimed("a", Status.UNAVAILABLE, reason=MARKUP)])
    assert "–" in text
    assert MARKUP in text


# ---- the table and one variant -------------------------------------------------------------------


def row(**more):
    plain = {"name": "x", "title": "a title", "family": "f", "computes": "softmax", "build": "a:b"}
    return Variant(**{**plain, **more})


def test_the_list_has_a_line_for_every_row_with_yes_or_a_reason(shown):
    rows = [(r, None if n % 2 else "it lacks a thing", "get one")
            for n, r in enumerate(impls.table().rows.values())]  # fmt: skip
    lines = shown(terminal.variants, rows, []).splitlines()
    for made, reason, _ in rows:
        (line,) = [x for x in lines if x.split()[:1] == [made.name]]
        assert made.computes in line
        assert ("it lacks a thing → get one" if reason else made.title) in line
        assert ("no" if reason else "yes") in line.split()


def test_the_list_shows_broken_rows_and_texts_as_they_are(shown):
    broken = [BrokenRow("y[0]", MARKUP, "mend it")]
    text = shown(terminal.variants, [(row(title=MARKUP), None, ""),
                                     (row(name="z"), MARKUP, MARKUP)], broken)  # fmt: skip
    assert "y[0]" in text
    assert "broken" in text
    assert text.count(MARKUP) == 4


@pytest.mark.parametrize(
    "changes",
    [{"title": MARKUP}, {"family": MARKUP}, {"paper": MARKUP}, {"origin": MARKUP},
     {"build": f"/a/{MARKUP}/t.py:build"}, {"options": {"way": MARKUP}}],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_one_variant_shows_the_texts_of_its_row_as_they_are(shown, changes):
    assert MARKUP in shown(terminal.variant, row(**changes), "mathematics", None, "")


def test_the_list_shows_a_family_as_it_is(shown):
    assert MARKUP in shown(terminal.variants, [(row(family=MARKUP), None, "")], [])


def test_one_variant_shows_its_mathematics_and_why_it_can_not_run(shown):
    text = shown(terminal.variant, row(), f"out = {MARKUP}", MARKUP, "pip install 'thing[cuda]'")
    assert f"out = {MARKUP}" in text
    assert f"no: {MARKUP} → pip install 'thing[cuda]'" in text


# ---- the attention map ---------------------------------------------------------------------------


def test_a_map_has_a_row_and_a_column_for_each_word(shown):
    words = ["the", "[", "cat", "the"]
    weights = [[0.1 * r + 0.01 * c for c in range(4)] for r in range(4)]
    lines = shown(terminal.attention_map, words, weights).splitlines()
    assert lines[0].split() == words
    for line, word, row_of in zip(lines[1:], words, weights, strict=False):
        assert line.split() == [word, *(f"{w:.2f}" for w in row_of)]


def test_a_weight_that_is_no_number_says_so(shown):
    assert "nan" in shown(terminal.attention_map, ["a"], [[None]])


def test_a_map_of_a_long_sentence_keeps_every_weight(capsys):
    words = [f"word{n}" for n in range(30)]
    terminal.attention_map(words, [[0.25] * 30] * 30)
    assert capsys.readouterr().out.count("0.25") == 900


def test_a_picture_that_is_no_picture_or_can_not_be_written_is_a_sentence(tmp_path):
    with pytest.raises(BadPicture, match=r"\.png or \.svg"):
        draw(["a"], [[1.0]], "t", tmp_path / "map.jpg")
    with pytest.raises(BadPicture, match="can't write"):
        draw(["a"], [[1.0]], "t", tmp_path / "no" / "map.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "start"), [("m.png", b"\x89PNG"), ("m.svg", b"<?xml")])
def test_a_picture_is_drawn_of_any_words_and_of_missing_weights(tmp_path, name, start):
    draw(["$", "a_b", "$"], [[1.0, None, 0.0]] * 3, "t $x$", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
