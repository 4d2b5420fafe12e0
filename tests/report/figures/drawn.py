"""What figures are drawn of, and what is looked at in them: words within the sheet, none on others.

``watch`` keeps the matplotlib figure that a module finishes, since an SVG doesn't say how wide its
words are.
"""

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

from attnbench.core.record import Memory, Ranks, Record, Status, Time, Work
from attnbench.report.figures.style import looks
from attnbench.report.scenes import ReportRun, scenes
from impls.problem import Problem

FAMILIES = ("dense", "sparse", "lowrank", "linear", "layers", "parallel", "external")
COMPUTES = ("softmax", "softmax on its own pattern", "approximates softmax", "its own operator")
NASTY = "<script>alert('&')</script>" + "x" * 60
CEILINGS = {"flops": {"float32": 1e11}, "copy": {"1024": 4e10, "4096": 8e10, "65536": 2e10}}


def timed(
    variant="a",
    length=128,
    median=1e-3,
    *,
    computes="softmax",
    family="dense",
    flops=10**8,
    nbytes=10**6,
    peak=2**20,
    saved=None,
    expected=None,
    world=None,
    node="",
    **problem,
):
    low, high = (None, None) if median is None else (median * 0.99, median * 1.01)
    time = Time(
        median_s=median,
        low_s=low,
        high_s=high,
        q25_s=low,
        q75_s=high,
        min_s=low,
        n=9,
        clock="host",
        stop="converged",
        samples_s=[],
    )
    memory = Memory(peak_bytes=peak, saved_bytes=saved, expected_bytes=expected, method="m")
    ranks = Ranks(world=world, time_s=[], peak_bytes=[], sent_bytes=[], backend="gloo")
    problem = Problem(**{"q_len": length, "kv_len": length, **problem})
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=problem,
        time=time,
        computes=computes,
        family=family,
        memory=memory if peak is not None else None,
        node=node,
        cost=Work(flops=flops, bytes=nbytes) if flops else None,
        ranks=ranks if world else None,
    )


def many(count, lengths=(128, 1024, 4096)):
    """As many variants, of all families and kinds, with names of all sorts."""
    found = []
    for n in range(count):
        name = (
            NASTY if n == 3 else f"family{n % 7}.a rather long name {n}" if n % 5 == 4 else f"v{n}"
        )
        for length in lengths:
            found.append(
                timed(
                    name,
                    length,
                    1e-6 * length * (1 + n % 13),
                    computes=COMPUTES[n % 4],
                    family=FAMILIES[n % 7],
                    flops=length**2 * 100 // (1 + n % 3),
                    nbytes=length * 500,
                    peak=length * 2000 * (1 + n * n),
                    saved=length * 900 * (n % 3),
                    expected=length * 2100 * (1 + n * n) if n % 2 else None,
                    phase="train",
                )
            )
    return found


def ran(records, number=0, **header):
    header = {"machine": {"name": "box"}, "run": f"run{number}", "ceilings": CEILINGS, **header}
    return ReportRun(number, Path("results/box/run"), header, records, range(1, len(records) + 1))


def shown(*records, **header):
    """The scenes of a run of these records, and their looks."""
    return scenes([ran(records, **header)]), looks(records)


def watch(monkeypatch, module):
    """The figures that a module finishes from now on."""
    kept, finish = [], module.finish

    def keep(figure, *given, **more):
        kept.append(figure)
        return finish(figure, *given, **more)

    monkeypatch.setattr(module, "finish", keep)
    return kept


def assert_words_are_readable(figure):
    """No word on another, none beyond the sheet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet = figure.bbox.expanded(1.005, 1.005)
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip()
    ]
    for words, box in boxes:
        assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1, (words, box, sheet)
        assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1, (words, box, sheet)
    for (one, a), (other, b) in combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 1 or down < 2.5, (
            one,
            other,
        )  # the box of a word is higher than its letters


def words_of(drawn):
    """All words of a figure, after its markup was read."""
    return [e.text for e in ElementTree.fromstring(drawn.svg).iter() if e.text and e.text.strip()]


def table(drawn):
    """Its CSV: a dict a row."""
    import csv
    import io

    return list(csv.DictReader(io.StringIO(drawn.csv)))
