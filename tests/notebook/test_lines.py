"""Lines for a notebook: what is drawn, read off matplotlib's own figure; words can be read."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnbench.core.record import Energy
from attnbench.notebook import lines
from attnbench.notebook.lines import MEASURES
from tests.report.page import runs
from tests.report.page.runs import other, timed, untimed

LENGTHS = (256, 512, 1024, 2048)


@pytest.fixture
def kept(monkeypatch):
    """The matplotlib figures that are drawn from now on, since an SVG says no width of words."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (figures.append(f), save(f, *a, **k)))
    return figures


def draw(measure, *records, **header):
    (scene, *_), looks = runs.staged(*records, **header)
    return lines.draw(scene, looks, measure)


def line(name="sdpa", scale=1.0, make=timed, **more):
    return [make(name, scale * 1e-8 * n**2, n, **more) for n in LENGTHS]


@pytest.mark.parametrize("measure", ["time", "memory"])
def test_no_word_is_beyond_the_sheet_and_markup_is_text(measure, kept):
    drawn = draw(
        measure, *runs.crowd(30, (512, 1024, 4096)), machine={"name": "box of a lab " * 30}
    )
    assert "<img" not in drawn.svg
    FigureCanvasAgg(kept[0]).draw()
    sheet = kept[0].bbox.expanded(1.005, 1.005)
    texts = [*kept[0].texts, *kept[0].legends[0].findobj(Text)]
    boxes = {t.get_text(): t.get_window_extent() for t in texts if t.get_text()}
    assert len(boxes) > 8
    for words, box in boxes.items():
        assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1, (words, box, sheet)
        assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1, (words, box, sheet)


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("time", [1e-8 * n**2 for n in LENGTHS]),
        ("memory", [n << 12 for n in LENGTHS]),
        ("energy", [0.5] * len(LENGTHS)),
    ],
)
def test_a_line_is_what_was_measured_and_a_band_its_interval(measure, values, kept):
    energy = Energy(joules=0.5, method="rapl counter")
    assert draw(measure, *line(spread=0.2, energy=energy)) is not None
    (axes,) = kept[0].axes
    (points,) = (curve.get_xydata() for curve in axes.lines)
    assert [x for x, _ in points] == list(LENGTHS)
    assert [y for _, y in points] == pytest.approx(values)
    heights = {y for x, y in axes.collections[0].get_paths()[0].vertices if x == LENGTHS[0]}
    share = 0.2 if measure == "time" else 0.0
    ends = sorted({values[0] * (1 - share), values[0] * (1 + share)})
    assert sorted(heights) == pytest.approx(ends, rel=0.01)


def test_the_names_stand_as_the_lines_end_the_winner_among_them_and_few_that_are_not_exact(kept):
    exact = [each for n in range(9) for each in line(f"v{n}", 1 + n)]
    others = [each for n in range(6) for each in line(f"o{n}", 0.1 + n / 100, make=other)]
    short = timed("sdpa", 1e-9, LENGTHS[0])  # it wins at one length, and has no other
    draw("time", *exact, *others, short)
    names = [text.get_text() for text in kept[0].legends[0].get_texts()]
    assert " ".join(names[:10]) == "v4 v3 v2 v1 v0 o3 o2 o1 o0 sdpa"
    assert names[10] == "exactly softmax" and len(kept[0].axes[0].lines) == 10


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_measured_draws_nothing_and_one_length_is_points(measure):
    assert draw(measure, untimed("a", "failed")) is None
    assert bool(draw(measure, timed("only", 1e-3, 4096))) == (measure != "energy")
