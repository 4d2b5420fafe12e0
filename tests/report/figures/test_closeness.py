"""The performance profile: its stairs by hand, one run alone, and what it says."""

import pytest

from attnbench.answer.ranking import Closeness
from attnbench.report.figures import closeness
from tests.report.page import runs
from tests.report.page.runs import rows, timed


def draw(*records):
    found, look = runs.staged(*records)
    return closeness.draw(found[0].run, found, look)


def test_the_stairs_rise_where_a_problem_is_reached():
    xs, ys = closeness._steps(Closeness("a", (1.0, 1.5, 3.0, 9.0), 5), 8.0)
    assert xs == [1.0, 1.5, 1.5, 3.0, 3.0, 8.0]
    assert ys == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6, 0.6])


def test_the_table_beside_it_counts_the_same():
    drawn = draw(timed("a", 1.0), timed("b", 1.2), timed("a", 8.0, 256), timed("b", 2.0, 256))
    found = {row["variant"]: row for row in rows(drawn)}
    assert [float(found["a"][f"within_{f}"]) for f in ("1", "2", "4", "8")] == [0.5, 0.5, 1, 1]
    assert [float(found["b"][f"within_{f}"]) for f in ("1", "1.1", "1.25")] == [0.5, 0.5, 1]
    assert float(found["a"]["geometric_mean_ratio"]) == pytest.approx(2.0)
    start = "b takes no more than 1.1 times the best on 50% of the problems"
    assert drawn.description.startswith(start)
