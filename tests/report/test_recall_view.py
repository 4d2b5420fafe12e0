"""The tables of what models recall, and the picture, from evidence that is made up."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.core.evidence import Evidence
from attnbench.features.quality import pictures, recall_view
from impls.loading import load_file

made_up = load_file(Path(__file__).parents[1] / "models" / "quality" / "made_up_recall.py")
rows, SETTING = made_up.rows, made_up.SETTING


def evidence(*more, scan=False, seeds=3, budgets=None):
    made = {
        "machine": {"name": "a-machine"},
        "started": "2026-01-01T00:00:00+00:00",
        "baseline": "sdpa",
        "scan": scan,
        "seeds": list(range(seeds)),
        "threads": 1,
        "budgets": {SETTING.slug: 0.9} if budgets is None else budgets,
        "stopped": False,
    }
    own = rows("sdpa", *[(1.0, 0.998)] * seeds)
    return Evidence("recall", made, [*own, *more])


def elu(*accuracies, **more):
    return rows("linear.elu", *accuracies, computes="its own operator", family="linear", **more)


def line(text, start):
    (found,) = (x for x in text.splitlines() if x.startswith(start))
    return " ".join(found.split())


def test_a_line_has_each_number_of_pairs_with_its_interval_and_what_a_step_costs(shown):
    text = shown(recall_view.show, evidence(*elu((1.0, 0.5), (1.0, 0.5), (1.0, 0.5), step_s=0.02)))
    first, second = text.split("0.9 s each")
    assert line(first, "linear.elu ") == (
        "linear.elu its own operator 100.0 ± 0.0 ✓ 50.0 ± 0.0 20 ms 2.00 [2.00, 2.00] 640"
    )
    assert line(second, "linear.elu ") == (
        "linear.elu its own operator 100.0 ± 0.0 ✓ 50.0 ± 0.0 80"
    )


def test_who_cannot_be_told_is_marked_and_said(shown):
    text = shown(recall_view.show, evidence(*elu((1.0, 0.98), (1.0, 1.0), (1.0, 0.99))))
    assert " ?" in line(text.split("0.9 s each")[0], "linear.elu ")
    assert "can't be told: linear.elu (99.0 ± 2.5 %)" in text


def test_the_sentences_stand_under_the_tables_and_in_json(shown):
    found = evidence(*elu((1.0, 0.5), (1.0, 0.52), (1.0, 0.48)))
    text = shown(recall_view.show, found)
    (lines,) = recall_view.said(found).values()
    for sentence in lines:
        assert sentence[1:] in text
    assert "falls short of it: linear.elu (50.0 ± 5.0 %)" in text


def test_what_did_not_train_says_why_once(shown):
    missing = made_up.refused("flash_attn2", "it needs cuda", "run it on a GPU")
    text = shown(recall_view.show, evidence(missing, missing))
    assert text.count("! flash_attn2: unavailable: it needs cuda; run it on a GPU") == 1


def in_a_scan(width, rate, own, other):
    setting = SETTING.with_(width=width, rate=rate)
    return [
        {**each, "setting": setting.to_dict(), "variant": name}
        for name, share in (("sdpa", own), ("linear.elu", other))
        for each in rows(name, (1.0, share))
    ]


def test_a_scan_says_where_softmax_recalls_and_another_does_not(shown):
    tried = [
        in_a_scan(16, 0.01, 1.0, 0.5),
        in_a_scan(16, 0.1, 0.5, 0.6),
        in_a_scan(64, 0.01, 1.0, 0.995),
    ]
    found = evidence(scan=True, seeds=1, budgets={})
    found = replace(found, rows=[row for some in tried for row in some])
    text = shown(recall_view.show, found)
    assert line(text, "    40     16  0.01") == "40 16 0.01 100.0 50.0 2"
    assert (
        "or more and linear.elu is not, the cheapest first: n40 w16 h1 d16 l1 lr0.01 cpu." in text
    )
    assert "all rates linear.elu is right: width 16 (40 tokens) 60.0 %; width 64 (40" in text
    assert "is a hint, no verdict" in text
    assert list(recall_view.said(found)) == ["scan"]


def test_a_table_fits_a_pipe(in_a_pipe):
    wide = [
        {**each, "variant": "dilated?dilation=1&width=32", "computes": "softmax on its own pattern"}
        for each in rows("x", *[(1.0, 0.97)] * 3)
    ]
    text = in_a_pipe(recall_view.show, evidence(*wide))
    assert "dilated?dilation=1&width=32" in text


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_picture_shows_every_variant(tmp_path, seeds):
    files = [tmp_path / "x.svg", tmp_path / "x.png"]
    found = evidence(*elu(*[(1.0, 0.5)] * seeds), seeds=seeds)
    assert pictures.draw_recall(found, files)
    text = files[0].read_text()
    for words in (
        "sdpa",
        "linear.elu",
        "a-machine",
        "pairs in a sequence",
        "0.9 s for all",
        "seconds of training",
        "numbers that a decoder keeps",
    ):
        assert words in text
    assert files[1].stat().st_size > 10_000


def test_where_nothing_was_trained_there_is_no_picture(tmp_path):
    none = replace(evidence(), rows=[made_up.refused("sdpa", "no")])
    assert not pictures.draw_recall(none, [tmp_path / "x.png"])
    assert not list(tmp_path.iterdir())
