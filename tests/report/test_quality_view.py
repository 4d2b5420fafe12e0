"""What variants cost the trained model and what small models recall, in words and in pictures."""

from dataclasses import asdict, replace

from attnbench.features.quality.recall_view import recall_conclusions
from attnbench.features.quality.verb import draw, show
from tests.models.quality import made_up
from tests.models.quality.made_up import evidence, flat, recall_evidence, row, step, trainings
from tests.report.page.runs import PATTERN


def test_what_went_amiss_is_said_below_the_tables_and_is_no_point_of_the_picture(shown):
    learnt = {"before": flat(0.5), "after": flat(0.7), "losses": [0.4, 0.2], "texts": [4, 5, 6]}
    more = {"layers": [flat(0.995), flat(0.9)], "distilled": learnt}
    found = evidence(
        row("einsum", flat(1.0), "softmax", 1.1),
        row("broken", flat(0.3), "softmax", status="wrong", reason="it is off the original's"),
        row("topk[x]", flat(0.98, 0.001), PATTERN, 0.9, together=False, **more),
        row("nystrom", flat(0.5, 0.01), ratio=0.8, distilled={"why": "it has no backward"}),
        row("bigbird", flat(1.0), PATTERN, equal=True),
        row("cosine", flat(0.6), "its own operator", 0.95, amiss=["crashed: it died"]),
        row("retention", [], "its own operator", status="refused", reason="it takes causal"),
        row("x", flat(0.4), steps=[{"seq": 256, "why": "x: not that"}, step(1, 128)]),
    )
    text = shown(show, found)
    amiss = ("broken: wrong: it is off", "cosine: crashed: it died", "nystrom: it has no backward")
    assert all(f"! {words}" in text for words in (*amiss, "x: step at 256: x: not that"))
    assert "need not be: bigbird" in text
    drawn = draw(found)
    assert "Beaten by none both ways: " in drawn.svg and "topk[x] (cosine 0.9800" in drawn.svg
    assert "none is faster than the original; next to it: einsum, in 1.100" in drawn.svg
    assert ">einsum<" in drawn.svg and ">broken<" not in drawn.svg
    assert draw(evidence(row("x", flat(0.5)))) is None


def test_a_scan_says_where_softmax_recalls_and_another_does_not(shown):
    tried = ((16, 0.01, 1.0, 0.5), (16, 0.1, 0.5, 0.6), (64, 0.01, 1.0, 0.995))
    rows = [
        {**each, "setting": asdict(replace(made_up.SETTING, width=width, rate=rate))}
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
