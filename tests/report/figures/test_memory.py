"""Memory taken apart: bars by hand, and which are left out."""

from attnbench.report.figures import memory
from tests.report.page import runs
from tests.report.page.runs import words

MIB = 2**20


def timed(name, peak, saved=None, expected=None, **more):
    return runs.timed(name, memory=runs.memory(peak, saved, expected), **more)


def draw(*records):
    (scene,), looks = runs.staged(*records)
    return memory.draw(scene, looks)


def test_a_dot_is_the_peak_and_a_line_begins_at_what_is_saved(kept):
    drawn = draw(timed("a", MIB, MIB // 2), timed("b", 50 * MIB, MIB * 99, expected=60 * MIB))
    axes = kept[0].axes[0]
    assert axes.get_xscale() == "log"
    lines = [(list(line.get_xdata()), line.get_gid()) for line in axes.lines]
    assert ([MIB // 2, MIB], "v0") in lines
    assert [xs for xs, gid in lines if "peak" in str(gid)] == [[MIB], [50 * MIB]]
    key = "dot: the peak, line: from what is saved for backward; |: expected by its formula"
    assert key in words(drawn) and "logarithmic scale" in words(drawn)
    (tick,) = [x for x in axes.lines if list(x.get_xdata()) == [60 * MIB] * 2]
    assert tick.get_ydata()[0] < 1 < tick.get_ydata()[1]  # in its row: the least is first
