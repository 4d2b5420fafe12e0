"""What variants cost the trained model and what small models recall, in words and in pictures."""

from attnbench.features.quality.model_view import draw
from attnbench.features.quality.verb import show
from tests.models.quality.made_up import evidence, flat, row, step
from tests.report.page.runs import PATTERN


def test_what_went_amiss_is_said_below_the_tables_and_is_no_point_of_the_picture(shown):
    layers = [flat(0.995), flat(0.9)]
    found = evidence(
        row("einsum", flat(1.0), "softmax", 1.1),
        row("broken", flat(0.3), "softmax", status="wrong", reason="it is off the original's"),
        row("topk[x]", flat(0.98, 0.001), PATTERN, 0.9, layers=layers),
        row("nystrom", flat(0.5, 0.01), ratio=0.8),
        row("cosine", flat(0.6), "its own operator", 0.95, amiss=["crashed: it died"]),
        row("retention", [], "its own operator", status="refused", reason="it takes causal"),
        row("x", flat(0.4), steps=[{"seq": 256, "why": "x: not that"}, step(1, 128)]),
    )
    text = shown(show, found)
    amiss = ("broken: wrong: it is off", "cosine: crashed: it died")
    assert all(f"! {words}" in text for words in (*amiss, "x: step at 256: x: not that"))
    drawn = draw(found)
    assert "Beaten by none both ways: " in drawn.description
    assert "topk[x] (cosine 0.9800" in drawn.description
    assert "none is faster than the original; next to it: einsum, in 1.100" in drawn.svg
    assert ">einsum<" in drawn.svg and ">broken<" not in drawn.svg
    assert draw(evidence(row("x", flat(0.5)))) is None
