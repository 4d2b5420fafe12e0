"""The first screen of the page in a real browser; test_browser.py has the rest, as slow tests."""

import pytest

from tests.report.page.reading import seen


@pytest.mark.parametrize(
    ("width", "height"), [(1440, 900), pytest.param(390, 844, marks=pytest.mark.slow)]
)
def test_the_first_screen_answers_and_says_how_sure_it_is(small, width, height):
    tab = small(width=width, height=height)
    assert seen(tab, ".verdicts tr[data-n] .use .name") == ["sdpa", "sdpa"]
    assert seen(tab, ".sures") == ["clear", "clear"]
    assert seen(tab, ".headline")[0].startswith("To train at 256 tokens, use sdpa: 12.0 ms [11.8,")
    first = seen(tab, ".verdicts .rest")[0]
    assert "3.20× [3.07, 3.33] faster than the next, matmul" in first
    assert ("70\u00a0% fidelity to softmax" in first) == (width == 1440)
    confidence, only = tab.locator("#answer .how-sure").all_inner_texts()
    assert confidence.startswith("Confidence: of 6 answers 6 are clear; 9 samples a timing")
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on 6 of 6")
    for part in ("#controls", "#variants summary", ".verdicts tbody:last-child tr:not([hidden])"):
        box = tab.locator(part).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] < height, part
    links = tab.locator("nav a").all_inner_texts()
    assert links[1:] == tab.locator("section h2").all_text_contents()
