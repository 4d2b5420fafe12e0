"""A page shows what was found beside its runs of what a variant costs a model, if anything was."""

import json
from dataclasses import replace

import pytest

from attnbench.report.page import html
from attnbench.report.page.model_cost import model_cost
from attnbench.store.evidence import Evidence
from tests.models.quality.made_up import evidence, flat, real_row, row


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
    real = Evidence("real", {**found.made, "wanted": {"seq": 256, "batch": 4}},
                    [real_row("betterone", "layer 0", 0.7)])  # fmt: skip
    said = page_beside(_1=evidence(row("olderone", flat(0.5))), _2=found, _3=real)
    assert "What it costs a model" in said and 'href="#model"' in said
    assert "topk[x]" in said and "betterone" in said and "olderone" not in said
    assert 'id="model-256' in said


def test_what_a_name_holds_is_text_on_the_page(page_beside):
    said = page_beside(_1=evidence(row("<b>x</b>", flat(0.98), ratio=0.9)))
    assert "<b>x</b>" not in said and "&lt;b&gt;x&lt;/b&gt;" in said


def test_damaged_evidence_costs_its_own_part(page_beside):
    damaged = Evidence("model", {"machine": {"name": "m"}}, [])
    assert "something in it is not what it should be" in page_beside(_1=damaged)
