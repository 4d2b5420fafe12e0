"""Claims on the page: the newest evidence of the machine's folder, and nothing where none is."""

import json
from pathlib import Path

import pytest

from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimOutcome,
    ClaimRule,
    ClaimVerdict,
)
from attnbench.features.report import build
from attnbench.features.report import page as html
from attnbench.features.report.files import summary
from attnbench.report.scenes import gather
from impls.loading import load_file
from tests.claims.made import BOX, claim, point

runs = load_file(Path(__file__).with_name("runs.py"))
MARKUP = runs.MARKUP
ROWS = [
    ClaimOutcome.of(
        claim(point("one", ours=True)), ClaimFindings({"one": ClaimFigure(0.5, 0.4, 0.6)})
    ).to_dict(),
    ClaimOutcome.of(
        claim(point("two", ClaimRule.AT_LEAST), name="bad"),
        ClaimFindings({"two": ClaimFigure(0.1)}),
    ).to_dict(),
    ClaimOutcome(
        claim(name="far"), ClaimVerdict.NEEDS_OTHER_HARDWARE, f"it needs {MARKUP}"
    ).to_dict(),
]


@pytest.fixture
def contents(monkeypatch, tmp_path):
    """Of a small run without figures, with these files of evidence beside it."""

    def made(**files):
        monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))
        run = runs.written(tmp_path / "slow-box-2c" / "20260102-030405", runs.small())
        folder = run.parent / "evidence"
        folder.mkdir()
        for stamp, text in files.items():
            (folder / f"{stamp}-reproduce.json").write_text(text)
        return build.contents_of(gather([run]), tmp_path)

    return made


def evidence(rows=ROWS, started="2026-03-04T05:06:07+00:00"):
    made = {"machine": BOX.to_dict(), "started": started, "command": "attnbench reproduce"}
    return json.dumps({"kind": "reproduce", "made": made, "rows": rows, "schema": 1})


def test_without_evidence_there_is_no_section_and_no_link(contents):
    found = contents()
    page = html.render(found)
    assert 'id="claims"' not in page
    assert "#claims" not in page
    assert "others claim" not in summary(found)


def test_the_newest_evidence_is_told(contents):
    old = evidence([ROWS[2]], "2020-01-01T00:00:00+00:00")
    found = contents(s20200101=old, s20260304=evidence())
    page = html.render(found)
    assert 'id="claims"' in page
    assert '<a href="#claims">Claims</a>' in page
    assert "2026-03-04, attnbench reproduce" in page
    assert "1 reproduced, 1 not reproduced, 1 needs other hardware" in page
    assert "attnbench reproduce made-up" in page
    assert "0.4 to 0.6" in page
    assert "the limit is ours" in page


def test_markup_in_a_reason_is_only_text(contents):
    page = html.render(contents(s20260304=evidence()))
    assert MARKUP not in page


def test_the_summary_names_what_was_not_reproduced(contents):
    said = summary(contents(s20260304=evidence()))
    assert "## What others claim" in said
    assert "not reproduced: bad" in said
    assert "made-up" not in said


@pytest.mark.parametrize("text", ["", "[]", evidence([{"name": "x"}]), evidence([{}])])
def test_evidence_that_can_not_be_read_costs_a_sentence(contents, text):
    found = contents(s20260304=text)
    assert found.claims[0].note
    assert found.claims[0].note in html.render(found).replace("&#39;", "'")
    assert "## What others claim" in summary(found)


def test_damaged_evidence_gives_way_to_older(contents):
    found = contents(s20200101=evidence(), s20260304="{")
    assert len(found.claims[0].tried) + len(found.claims[0].left.rows) == 3
    assert "damaged" in found.claims[0].note


def test_the_section_reads_well_in_a_browser(contents, reader, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(html.render(contents(s20260304=evidence())), "utf-8")
    read = reader(path, width=360)
    first = read.page.locator("#claims details").first
    first.locator("summary").click()
    assert first.locator("table").is_visible()
    wide = read.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
