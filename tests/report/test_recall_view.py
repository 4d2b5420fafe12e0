"""The scan of what models recall, and the picture, from evidence that is made up."""

from dataclasses import asdict, replace

from attnbench.features.quality.recall_view import recall_conclusions
from attnbench.features.quality.verb import draw, show
from tests.models.quality.made_up import SETTING, recall_evidence, trainings


def test_a_scan_says_where_softmax_recalls_and_another_does_not(shown):
    tried = ((16, 0.01, 1.0, 0.5), (16, 0.1, 0.5, 0.6), (64, 0.01, 1.0, 0.995))
    rows = [
        {**each, "setting": asdict(replace(SETTING, width=width, rate=rate))}
        for width, rate, own, other in tried
        for each in [*trainings("sdpa", (1.0, own)), *trainings("linear.elu", (1.0, other))]
    ]
    found = replace(recall_evidence(scan=True, seeds=1, budgets={}), rows=rows)
    text = shown(show, found)
    (line,) = (x for x in text.splitlines() if x.startswith("    40     16  0.01"))
    assert line.split() == ["40", "16", "0.01", "100.0", "50.0", "2"]
    cheapest = "or more and linear.elu is not, the cheapest first: n40 w16 h1 d16 l1 lr0.01 cpu."
    assert cheapest in text and "is a hint, no verdict" in text
    assert list(recall_conclusions(found)) == ["scan"]


def test_the_picture_shows_every_variant():
    kind = {"computes": "its own operator", "family": "linear"}
    elu = trainings("linear.elu", *[(1.0, 0.5)] * 3, **kind)
    text = draw(recall_evidence(*elu)).svg
    for words in ("sdpa", "linear.elu", "0.9 s for all"):
        assert words in text
