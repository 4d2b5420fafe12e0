"""The tables of what models recall, and the picture, from evidence that is made up."""

from dataclasses import asdict, replace

import pytest

from attnbench.features.quality import pictures
from attnbench.features.quality.recall_results import recall_conclusions
from attnbench.features.quality.view import show
from tests.models.quality.made_up import SETTING, recall_evidence, trainings


def elu(*accuracies, **more):
    kind = {"computes": "its own operator", "family": "linear"}
    return trainings("linear.elu", *accuracies, **kind, **more)


def line(text, start):
    (found,) = (x for x in text.splitlines() if x.startswith(start))
    return " ".join(found.split())


def test_a_line_has_each_number_of_pairs_with_its_interval_and_what_a_step_costs(shown):
    text = shown(show, recall_evidence(*elu(*[(1.0, 0.5)] * 3, step_s=0.02)))
    first, second = text.split("0.9 s each")
    shares = "linear.elu its own operator 100.0 ± 0.0 ✓ 50.0 ± 0.0"
    assert line(first, "linear.elu ") == f"{shares} 20 ms 2.00 [2.00, 2.00] 640"
    assert line(second, "linear.elu ") == f"{shares} 80"


def test_a_scan_says_where_softmax_recalls_and_another_does_not(shown):
    tried = ((16, 0.01, 1.0, 0.5), (16, 0.1, 0.5, 0.6), (64, 0.01, 1.0, 0.995))
    rows = [
        {**each, "setting": asdict(replace(SETTING, width=width, rate=rate))}
        for width, rate, own, other in tried
        for each in [*trainings("sdpa", (1.0, own)), *trainings("linear.elu", (1.0, other))]
    ]
    found = replace(recall_evidence(scan=True, seeds=1, budgets={}), rows=rows)
    text = shown(show, found)
    assert line(text, "    40     16  0.01") == "40 16 0.01 100.0 50.0 2"
    cheapest = "or more and linear.elu is not, the cheapest first: n40 w16 h1 d16 l1 lr0.01 cpu."
    assert cheapest in text and "is a hint, no verdict" in text
    assert list(recall_conclusions(found)) == ["scan"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_picture_shows_every_variant(tmp_path, seeds):
    found = recall_evidence(*elu(*[(1.0, 0.5)] * seeds), seeds=seeds)
    picture = pictures.draw_beside(found, tmp_path / "x.json")
    text = picture.with_suffix(".svg").read_text()
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
    assert picture.stat().st_size > 10_000
