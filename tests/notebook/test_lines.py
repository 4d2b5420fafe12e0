"""Lines for a notebook: what is drawn, read off matplotlib's own figure; words can be read."""

from itertools import combinations

import pytest

from attnbench.core.record import Energy
from attnbench.notebook import lines
from attnbench.notebook.lines import MEASURES
from tests.report.page import runs
from tests.report.page.runs import other, timed, untimed

LENGTHS = (256, 512, 1024, 2048)


@pytest.fixture
def kept(monkeypatch):
    """The matplotlib figures that are saved from now on, since an SVG says no width of words."""
    from matplotlib.figure import Figure

    found, save = [], Figure.savefig

    def keep(self, *given, **more):
        if self not in found:
            found.append(self)
        return save(self, *given, **more)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def draw(measure, *records, **header):
    (scene, *_), looks = runs.staged(*records, **header)
    return lines.draw(scene, looks, "sdpa", measure)


def line(name="sdpa", scale=1.0, make=timed, **more):
    return [make(name, scale * 1e-8 * n**2, n, **more) for n in LENGTHS]


def curves(figure):
    """By the marker and the line, the points of each that is in colour."""
    (axes,) = figure.axes
    return [line.get_xydata() for line in axes.lines if line.get_alpha() is None]


def assert_words_are_readable(figure):
    """No word on another, none beyond the sheet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet = figure.bbox.expanded(1.005, 1.005)
    outside = [  # ticks that are not drawn
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not axis.get_view_interval()[0] <= tick.get_loc() <= axis.get_view_interval()[1]
    ]
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    texts = [text for text in texts if text not in outside]
    boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts]
    for said, box in boxes:
        assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1, (said, box, sheet)
        assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1, (said, box, sheet)
    for (one, a), (two, b) in combinations(boxes, 2):
        across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 1 or down < 2.5, (one, two)  # the box of a word is higher than its letters


@pytest.mark.parametrize("measure", ["time", "memory"])
def test_no_word_lies_on_another_or_is_cut_off_and_markup_is_text(measure, kept):
    drawn = draw(measure, *runs.crowd(30, (512, 1024, 4096)), machine={"name": "m" * 300})
    assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
    assert "var(--ink)" in drawn.inline and "var(" not in drawn.svg
    assert_words_are_readable(kept[0])


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("time", [1e-8 * n**2 for n in LENGTHS]),
        ("memory", [n << 12 for n in LENGTHS]),
        ("energy", [0.5] * len(LENGTHS)),
    ],
)
def test_a_line_is_what_was_measured(measure, values, kept):
    assert draw(measure, *line(energy=Energy(joules=0.5, method="rapl counter"))) is not None
    (points,) = curves(kept[0])
    assert [x for x, _ in points] == list(LENGTHS)
    assert [y for _, y in points] == pytest.approx(values)


def test_a_band_is_the_interval(kept):
    draw("time", *line(spread=0.2))
    (band,) = kept[0].axes[0].collections
    heights = {y for x, y in band.get_paths()[0].vertices if x == 256}
    low, high = (1e-8 * 256**2 * share for share in (0.8, 1.2))
    assert sorted(heights) == pytest.approx([low, high], rel=0.01)


def test_the_names_stand_as_the_lines_end_with_the_baseline_and_few_that_are_not_exact(kept):
    exact = [each for n in range(9) for each in line(f"v{n}", 1 + n)]
    others = [each for n in range(6) for each in line(f"o{n}", 0.1 + n / 100, make=other)]
    drawn = draw("time", *exact, *others, *line("sdpa", 50.0))
    (legend,) = kept[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert " ".join(names[:10]) == "sdpa v4 v3 v2 v1 v0 o3 o2 o1 o0"
    assert names[10] == "exactly softmax"
    assert len(curves(kept[0])) == 10
    assert drawn.description == "Of what is exact, least at 2,048 tokens: v0, 41.9 ms"


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_measured_draws_nothing_and_one_length_is_points(measure):
    assert draw(measure, untimed("a", "failed")) is None
    assert bool(draw(measure, timed("only", 1e-3, 4096))) == (measure != "energy")
