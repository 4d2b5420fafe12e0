"""A page shows what was found beside its runs of what a variant costs a model, if anything was."""

import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from attnbench.core.evidence import KINDS, Evidence
from attnbench.features.report import page as html
from attnbench.features.report.evidence import model_cost
from attnbench.features.report.files import summary
from tests.models.quality import made_up
from tests.models.quality.made_up import evidence, flat, real_row, recall_evidence, row

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "results" / "amd-epyc-2c" / "evidence"


def kept(kind):
    """The newest committed evidence of a kind, read as what it is: JSON."""
    return json.loads(max(KEPT.glob(f"*-{kind}.json")).read_text())


@pytest.fixture(scope="module")
def committed(small_contents):
    """What the page has of the committed evidence, by its file's ending."""
    found = model_cost([KEPT.parent / "a-run"], small_contents.looks)
    return {each.file.rpartition("-")[2]: each for each in found}


@pytest.fixture
def page_beside(small_contents, tmp_path):
    """The small run's page, beside evidence: by stamp, what was found then."""

    def made(**kept):
        folder = tmp_path / "evidence"
        folder.mkdir()
        for stamp, one in kept.items():
            sent = {"kind": one.kind, "made": dict(one.made), "rows": list(one.rows), "schema": 1}
            (folder / f"{stamp[1:]}-{one.kind}.json").write_text(json.dumps(sent))
        found = model_cost([tmp_path / "a-run"], small_contents.looks)
        return html.render(replace(small_contents, model_cost=found))

    return made


def test_without_such_evidence_there_is_no_such_section(small_contents, page_beside):
    said = page_beside()
    assert said == html.render(small_contents) and "What it costs a model" not in said


def test_the_newest_of_each_kind_is_shown(page_beside):
    topk = row("topk[x]", flat(0.98), "softmax on its own pattern", 0.9)
    found = evidence(row("einsum", flat(1.0), "softmax", 1.1), topk)
    real = Evidence(
        "real",
        {**found.made, "wanted": {"seq": 256, "batch": 4}},
        [real_row("betterone", "layer 0", 0.7)],
    )
    said = page_beside(_1=evidence(row("olderone", flat(0.5))), _2=found, _3=real)
    assert "What it costs a model" in said and 'href="#model"' in said
    assert "topk[x]" in said and "betterone" in said and "olderone" not in said
    assert 'id="model-256' in said


def test_a_part_stands_behind_what_is_whole_and_says_that_it_is_one(page_beside, tmp_path):
    whole, part = recall_evidence(), recall_evidence(stopped=True, seeds=3)
    said = page_beside(_1=whole, _2=part)
    assert "1-recall.json" in said and "stopped before its end" not in said
    (tmp_path / "evidence" / "1-recall.json").unlink()
    (tmp_path / "evidence" / "2-recall.json").unlink()
    (tmp_path / "evidence").rmdir()
    alone = page_beside(_2=part)
    assert "2-recall.json" in alone and "stopped before its end: a part of what was" in alone


def test_what_a_name_holds_is_text_on_the_page(page_beside):
    said = page_beside(_1=evidence(row("<b>x</b>", flat(0.98), ratio=0.9)))
    assert "<b>x</b>" not in said and "&lt;b&gt;x&lt;/b&gt;" in said


def test_damaged_evidence_costs_its_own_part(page_beside):
    damaged = Evidence("model", {"machine": {"name": "m"}}, [])
    assert "something in it is not what it should be" in page_beside(_1=damaged)


def test_recall_opens_with_what_follows_then_its_picture_and_its_tables(page_beside):
    elu = made_up.trainings(
        "linear.elu", *[(1.0, 0.5)] * 3, computes="its own operator", family="linear", step_s=0.02
    )
    said = page_beside(_1=recall_evidence(*elu)).replace("&#39;", "'")
    section = said[said.index('id="model"') : said.index('id="table"')]
    places = [
        section.index(words)
        for words in (
            "What small models recall",
            'class="follows">After the same',
            "falls short of it: linear.elu (50.0 ± 0.0 %)",
            "<figure id=",
            "steps each",
            "2.00 [2.00, 2.00]",
            "0.9 s each",
            "by chance, knowing",
        )
    ]
    assert places == sorted(places)


def test_of_several_settings_each_sentence_says_which_it_is_of(page_beside):
    wider = replace(made_up.SETTING, width=128)
    more = [{**each, "setting": asdict(wider)} for each in made_up.trainings("sdpa", (1.0, 0.9))]
    said = page_beside(_1=recall_evidence(*more))
    assert f'class="follows">In {made_up.SETTING.slug}: ' in said
    assert f'class="lead">In {wider.slug}: one seed gives no interval' in said


def test_a_scan_is_a_table_and_its_sentences(page_beside):
    said = page_beside(_1=recall_evidence(scan=True, budgets={}, seeds=1))
    assert "settings that were tried" in said.lower() and "is a hint, no verdict" in said
    assert 'class="in-model recall' not in said


def test_nothing_was_trained_and_nothing_was_timed(page_beside):
    none = recall_evidence()
    none = replace(none, rows=[made_up.untrained("sdpa", "it needs cuda")])
    said = page_beside(_1=none, _2=evidence(row("untimed", flat(0.5))))
    assert "it needs cuda" in said and "untimed" in said and '<figure id="recall' not in said


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reproduce"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "recall"}', "damaged"])
def test_whatever_a_file_holds_the_page_says_so(small_contents, tmp_path, kind, text):
    whole = {
        "kind": kind,
        "made": {"machine": {"name": "m"}},
        "rows": [{"variant": 3}],
        "schema": 1,
    }
    (tmp_path / "evidence").mkdir()
    file = tmp_path / "evidence" / f"1-{kind}.json"
    file.write_text(json.dumps(whole) if text == "damaged" else text)
    (found,) = model_cost([tmp_path / "a-run"], small_contents.looks)
    assert found.file == file.name and ("is no evidence" in found.source or "can't" in found.source)
    contents = replace(small_contents, model_cost=[found])
    assert file.name in html.render(contents) and "## What it costs a model" in summary(contents)


def test_the_ranking_at_each_level_is_that_of_the_file(committed):
    points = {
        r["variant"]: (r["cosine"]["long"], r["steps"][0]["comparison"])
        for r in kept("model")["rows"]
        if r["status"] == "measured" and r["steps"] and "why" not in r["steps"][0]
    }
    table = committed["model.json"].tables[0]
    assert [row[1] for row in table.rows] == ["≥ 0.999", "≥ 0.99", "≥ 0.95", "≥ 0.9"]
    for tokens, level, keep, who, step, tied in table.rows:
        some = {v: t for v, (c, t) in points.items() if c["low"] >= float(level[2:])}
        first = min(some, key=lambda v: some[v]["ratio"])
        time = some[first]
        assert (tokens, int(keep), who) == ("256", len(some), first)
        assert step.startswith(f"{time['ratio']:.3f} [{time['low']:.3f}, {time['high']:.3f}]")
        assert step.endswith("no gain") == (time["high"] >= 1)
        equal = {v for v, t in some.items() if v != first and t["low"] <= time["high"]}
        assert set(tied.partition("; may")[0].split(", ")) == equal


def test_the_picture_has_every_point_of_the_file(committed):
    figure = committed["model.json"].figure
    lines = [line.split(",") for line in figure.csv.splitlines()[1:]]
    steps = {
        r["variant"]: r["steps"][0]["comparison"]["ratio"]
        for r in kept("model")["rows"]
        if r["status"] == "measured" and r["steps"] and "why" not in r["steps"][0]
    }
    assert {name: float(each[5]) for name, *rest in lines for each in [[name, *rest]]} == (
        pytest.approx(steps, rel=1e-5)
    )
    assert all(f">{name}: cosine " in figure.inline for name in steps)


def test_the_recall_tables_are_those_of_the_file(committed):
    found = kept("recall")
    after, in_time = committed["recall.json"].tables
    right, steps = {}, {}
    for each in found["rows"]:
        last = next(x for x in each["curve"] if x["step"] == each["setting"]["steps"])
        timed = next(x for x in each["curve"] if x["in_time"])
        for table, look in ((after, last), (in_time, timed)):
            for pairs, share in look["accuracy"].items():
                right.setdefault((table.title, each["variant"], pairs), []).append(share)
        steps.setdefault(each["variant"], []).append((timed["step"], each["state_numbers"]))
    for table in (after, in_time):
        heads = [column.head for column in table.columns]
        assert {cells[0] for cells in table.rows} == set(steps)
        for cells in table.rows:
            for pairs in ("4", "8", "16", "32"):
                shares = right[table.title, cells[0], pairs]
                half = 4.302653 * statistics.stdev(shares) / 3**0.5  # Student's, two to spare
                mean = statistics.fmean(shares)
                ends = max(min(1, mean + half) - mean, mean - max(0, mean - half))
                cell = cells[heads.index(f"{pairs} pairs, %")].value
                assert cell.split(" ")[0] == f"{100 * mean:.1f}"
                assert cell.split(" ")[2] == f"{100 * ends:.1f}"
    for cells in after.rows:
        assert cells[-1] == f"{steps[cells[0]][0][1]:,}"
    for cells in in_time.rows:
        assert cells[-1] == f"{statistics.fmean(s for s, _ in steps[cells[0]]):,.0f}"


def test_the_summary_has_what_the_page_opens_with(small_contents, committed):
    said = summary(replace(small_contents, model_cost=list(committed.values())))
    said = said.replace("\\", "").replace("&lt;", "<")
    for found in committed.values():
        assert all(line in said for line in found.conclusions)
    assert "nothing is both faster" in said.lower() and "with 32 pairs" in said


def test_on_a_telephone_tables_and_pictures_move_in_their_own_boxes(
    small_contents, committed, reader, tmp_path
):
    path = tmp_path / "index.html"
    path.write_text(
        html.render(replace(small_contents, model_cost=list(committed.values()))), "utf-8"
    )
    read = reader(path, width=390)
    assert read.page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = read.page.locator("#model .scroll, #model .scroller").locator("visible=true")
    assert boxes.count() >= 8
    assert all(box["width"] <= 390 for each in boxes.all() if (box := each.bounding_box()))
