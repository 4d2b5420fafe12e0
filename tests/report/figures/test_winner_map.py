"""The winner map: who wins and by how much, ties as ties, and a reason wherever nobody does."""

import math
import re
from pathlib import Path

import pytest

from attnbench.report.figures import winner_map
from attnbench.report.figures.sheet import DEEPEST
from impls.loading import load_file
from impls.masks import Mask

staged = load_file(Path(__file__).with_name("staged.py"))
exact, other, rows, said, untimed = (
    staged.exact,
    staged.other,
    staged.rows,
    staged.said,
    staged.untimed,
)


def draw(records, **more):
    run, scenes, looks = staged.staged(records, **more)
    return winner_map.draw(run, scenes, looks)


def test_a_winner_is_named_with_its_lead_and_its_time():
    words = said(draw([exact("a", 256, 0.010), exact("b", 256, 0.0131)]))
    assert {"a", "1.31×", "10 ms", "256"} <= set(words)
    assert "b" not in words


def test_a_tie_is_said_and_hatched_and_a_winner_is_not():
    tie = draw([exact("a", 256, 1.0), exact("b", 256, 1.01), exact("c", 256, 2.0)])
    assert {"tie of 2", "a, b"} <= set(said(tie))
    assert "<pattern" in tie.svg
    assert re.search(r"fill:url\(#map-0-\d+\)", tie.svg)
    clear = draw([exact("a", 256, 1.0), exact("b", 256, 2.0)])
    assert "<pattern" not in clear.svg
    assert rows(tie)[0]["tied with"] == "b"
    assert rows(tie)[0]["next"] == "c"


def test_names_of_a_tie_are_whole_and_the_rest_is_counted():
    names = ["sdpa.flash", "matmul.prescale", "chunked", "online"]
    lengths = (256, 512, 1024, 2048, 4096)
    words = said(draw([exact(n, k, 1.0 + i / 1000) for i, n in enumerate(names) for k in lengths]))
    (cell,) = {word for word in words if word.startswith("sdpa.flash")}
    assert cell == "sdpa.flash +3"
    wide = said(draw([exact(n, 256, 1.0 + i / 1000) for i, n in enumerate(names)]))
    assert ", ".join(names) in wide


def test_cells_are_as_wide_as_the_sheet_allows():
    for lengths in ((256,), (256, 512), staged.LENGTHS):
        drawn = draw([exact(n, k, 1.0 + (n == "b")) for n in "ab" for k in lengths])
        rights = [
            float(number)
            for path in staged.tree(drawn).iter(f"{staged.SVG}path")
            for number in re.findall(r"[ML] ?([\d.]+)", path.get("d"))
        ]
        assert 495 < max(rights) <= 504


def test_who_leads_most_often_is_said():
    records = [exact("a", n, 1.0) for n in (256, 512, 1024)]
    records += [exact("b", 256, 2.0), exact("b", 512, 1.0), exact("b", 1024, 0.5)]
    assert "a is the fastest or ties with it on 2 of 3, alone on 1" in said(draw(records))


def test_what_a_tie_is_is_said_with_the_margin_of_the_run(monkeypatch):
    from attnbench.report import scenes

    monkeypatch.setattr(scenes, "margin_of", lambda records: 0.123)
    assert any("a tie, within 12.3\xa0%" in word for word in said(draw([exact("a", 256, 1.0)])))


def test_the_only_one_is_said_to_be():
    assert {"a", "only one"} <= set(said(draw([exact("a", 256, 1.0)])))


def test_doubt_is_marked_and_the_mark_explained():
    doubted = exact("a", 256, 1.0)
    doubted = doubted.with_(time=doubted.time.with_(flags=["contended"]))
    words = said(draw([doubted, exact("b", 256, 2.0)]))
    assert "2× ?" in words
    assert any("?: in doubt" in word for word in words)
    assert not any("doubt" in word for word in said(draw([exact("a", 256, 1.0)])))


@pytest.mark.parametrize(
    ("status", "first", "second"),
    [
        ("out_of_memory", "out of memory", None),
        ("timed_out", "timed out", None),
        ("unavailable", "not available", None),
        ("crashed", "crashed", None),
        ("implausible", "not believed", None),
    ],
)
def test_a_length_that_nobody_won_says_why(status, first, second):
    failed = untimed("a", status, staged.at(512), computes="softmax")
    drawn = draw([exact("a", 256, 1.0), failed])
    assert first in said(drawn)
    assert rows(drawn)[1]["why none"] == first


def test_what_says_something_of_the_length_goes_before_what_never_runs():
    never = [untimed(f"n{k}", "unavailable", staged.at(512), computes="softmax") for k in range(5)]
    full = untimed("a", "out_of_memory", staged.at(512), computes="softmax")
    assert "out of memory" in said(draw([exact("a", 256, 1.0), *never, full]))


def test_a_length_of_another_regime_was_not_run_here():
    decode = exact("a", 512, 1.0, staged.at(512).with_(phase="decode", q_len=1))
    drawn = draw([exact("a", 256, 1.0), decode])
    assert said(drawn).count("not run") == 2
    assert {"forward", "decode"} <= set(said(drawn))


def test_where_only_others_have_a_time_that_is_said():
    drawn = draw([exact("a", 256, 1.0), other("b", 512, 1.0)])
    assert {"nothing exact", "others timed"} <= set(said(drawn))


def test_another_operator_never_wins():
    drawn = draw([exact("a", 256, 1.0), other("b", 256, 0.1)])
    assert [row["winner"] for row in rows(drawn)] == ["a"]


def test_rows_say_only_what_tells_them_apart():
    records = []
    for mask in ("causal", "none"):
        for name in ("a", "b"):
            problem = staged.at(256, mask=Mask.parse(mask))
            records.append(exact(name, 256, 1.0 + (name == "b"), problem))
    words = said(draw(records))
    assert {"causal", "no mask"} <= set(words)
    (under,) = (word for word in words if "float32" in word)
    assert "forward" in under
    assert "causal" not in under


def test_the_colour_is_deeper_the_further_ahead_and_never_too_deep():
    depths = [winner_map.depth(lead) for lead in (None, 1.0, 1.05, 1.31, 2.0, 3.0, 100.0)]
    assert depths == sorted(depths)
    assert depths[2] < depths[3] < depths[4] < depths[5] == depths[6] == pytest.approx(DEEPEST)
    assert winner_map.depth(math.nan) == winner_map.depth(None)


def test_of_very_many_regimes_forty_are_drawn_and_the_rest_said():
    heads = range(1, 46)
    records = [exact("a", 256, 1.0, staged.at(256, heads=n, kv_heads=n)) for n in heads]
    drawn = draw(records)
    assert len(rows(drawn)) == 40
    assert "Not drawn: 5 more regimes; the table has all." in said(drawn)
    assert staged.untidy(drawn) == []


def test_of_very_many_lengths_the_longest_are_drawn_and_the_rest_said():
    drawn = draw([exact("a", 64 * k, 1.0) for k in range(1, 20)])
    assert any("7 shorter lengths" in word for word in said(drawn))
    assert staged.untidy(drawn) == []


def test_only_the_runs_own_regimes_are_drawn():
    _, some, looks = staged.staged([exact("a", 256, 1.0)])
    two, more, _ = staged.staged([exact("b", 512, 1.0)], number=1)
    drawn = winner_map.draw(two, [*some, *more], {**looks, **staged.looks([exact("b", 512, 1.0)])})
    assert {row["winner"] for row in rows(drawn)} == {"b"}
    assert drawn.name == "map-1"


def test_a_winner_whose_family_nobody_knows_is_drawn():
    assert draw([exact("a", 256, 1.0, family="")]) is not None


def test_nothing_exact_draws_nothing():
    assert draw([other("a", 256, 1.0)]) is None
    assert draw([untimed("a", "failed", staged.at(256))]) is None


@pytest.mark.parametrize("lengths", [(256,), staged.LENGTHS, tuple(2**k for k in range(7, 17))])
def test_no_word_lies_on_another_or_is_cut_off(lengths):
    drawn = draw(staged.crowd(45, lengths))
    assert staged.untidy(drawn) == []
    assert {row["length"] for row in rows(drawn)} == {str(n) for n in lengths}


def test_long_names_and_markup_stay_text():
    name = "<b>&" + "y" * 90
    drawn = draw([exact(name, n, 1.0) for n in (256, 512)], machine="m" * 300)
    assert staged.untidy(drawn) == []
    assert any(word.startswith("<b>&yy") for word in said(drawn))
    assert rows(drawn)[0]["winner"] == name


def test_each_cell_has_the_whole_sentence_for_a_pointer():
    drawn = draw([exact("a", 256, 0.010), exact("b", 256, 0.0131)])
    (title,) = (t.text for t in staged.tree(drawn).iter(f"{staged.SVG}title"))
    assert title.startswith("256 tokens: a is the fastest exact variant, at 10 [9.8, 10.2] ms")
