"""What was found beside a run: claims of others, and what a variant costs a model."""

import json
from dataclasses import replace

import pytest

from attnbench.core.evidence import Evidence
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimOutcome, ClaimVerdict
from attnbench.features.report import page as html
from attnbench.features.report.contents import claims_of, model_cost
from attnbench.features.report.page import summary
from tests.claims.made import claim, point
from tests.machines import BOX
from tests.models.quality.made_up import evidence, flat, real_row, recall_evidence, row
from tests.report.page import runs


@pytest.fixture
def beside(filled, tmp_path):
    """The small run's contents, beside evidence: by ``kind_stamp`` the text of a file."""
    contents = filled(runs.small())

    def made(**found):
        folder = tmp_path / "evidence"
        folder.mkdir(exist_ok=True)
        for name, text in found.items():
            kind, stamp = name.split("_")
            (folder / f"{stamp}-{kind}.json").write_text(text)
        claims, cost = ([*read(tmp_path)] for read in (claims_of, model_cost))
        return replace(contents, claims=claims, model_cost=cost)

    return made


GOOD = ClaimFindings({"one": ClaimFigure(0.5, 0.4, 0.6)})
BAD = ClaimFindings({"two": ClaimFigure(0.1)})
FAR = ClaimVerdict.NEEDS_OTHER_HARDWARE
ROWS = [
    ClaimOutcome.of(claim(point("one", ours=True)), GOOD).to_dict(),
    ClaimOutcome.of(claim(point("two", "at least"), name="bad"), BAD).to_dict(),
    ClaimOutcome(claim(name="far"), FAR, f"it needs {runs.MARKUP}").to_dict(),
]


def claims_file(rows=ROWS):
    started = "2026-03-04T05:06:07+00:00"
    made = {"machine": BOX.facts(), "started": started, "command": "attnbench reproduce"}
    return json.dumps({"kind": "reproduce", "made": made, "rows": rows, "schema": 1})


def test_the_newest_claims_are_told_on_the_page_and_in_the_summary(beside):
    found = beside(reproduce_20200101=claims_file(ROWS[2:]), reproduce_20260304=claims_file())
    page, said = html.render(found), summary(found)
    counts = "1 reproduced, 1 not reproduced, 1 needs other hardware"
    for words in ('<a href="#claims">Claims</a>', counts, "[0.4, 0.6]", "the limit is ours"):
        assert words in page
    assert runs.MARKUP not in page and "made-up" not in said
    assert "## Claims of others" in said and "- not reproduced: bad" in said
    theirs = beside(reproduce_20260305=claims_file(ROWS[1:]))  # no limit that is ours has a figure
    assert "the limit is ours" not in html.render(theirs)
    without = replace(found, claims=())
    assert "#claims" not in html.render(without) and "Claims of" not in summary(without)


def text(found):
    made = {"kind": found.kind, "made": dict(found.made), "rows": list(found.rows), "schema": 1}
    return json.dumps(made)


def test_the_newest_of_each_kind_is_shown_and_a_name_is_text(beside):
    topk = row("topk[x]<b>", flat(0.98), runs.PATTERN, 0.9)
    found = evidence(row("einsum", flat(1.0), "softmax", 1.1), topk)
    made = {**found.made, "wanted": {"seq": 256, "batch": 4}}
    real = text(Evidence("real", made, [real_row("betterone", "layer 0", 0.7)]))
    older = text(evidence(row("olderone", flat(0.5))))
    said = html.render(contents := beside(model_1=older, model_2=text(found), real_3=real))
    assert "topk[x]&lt;b&gt;" in said and "topk[x]<b>" not in said
    assert "betterone" in said and "olderone" not in said
    (model, _) = contents.model_cost
    written = summary(contents).replace("\\", "").replace("&lt;", "<")
    assert model["conclusions"] and all(line in written for line in model["conclusions"])


@pytest.mark.slow
def test_a_whole_one_comes_before_one_that_was_stopped(beside, tmp_path):
    part = text(recall_evidence(stopped=True, seeds=3))
    (whole,) = beside(recall_1=text(recall_evidence()), recall_2=part).model_cost
    (tmp_path / "evidence" / "1-recall.json").unlink()
    (cut,) = beside().model_cost
    assert (whole["file"], cut["file"]) == ("1-recall.json", "2-recall.json")
    assert "stopped before its end" in cut["source"] and "stopped" not in whole["source"]


def test_whatever_a_file_holds_the_page_and_the_summary_say_so(beside):
    odd = '{"kind": "recall", "made": {"machine": {}}, "rows": [{"variant": 3}]}'
    claims = claims_file([{"name": "x"}])
    contents = beside(model_1="{", real_1="[]", recall_1=odd, reproduce_20260304=claims)
    note = contents.claims[0]["note"]
    assert "can't be shown" in note and note in html.render(contents).replace("&#39;", "'")
    page, names = html.render(contents), [found["file"] for found in contents.model_cost]
    assert sorted(names) == ["1-model.json", "1-real.json", "1-recall.json"]
    for found in contents.model_cost:
        assert "is not an evidence" in found["source"] or "can't" in found["source"]
        assert found["file"] in page
    assert "## What a variant costs a model" in summary(contents)
