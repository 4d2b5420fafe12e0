"""Trade-offs: what nothing of its kind beats, and points that are pale but there."""

from attnbench.report.figures import tradeoffs
from tests.report.page import runs
from tests.report.page.runs import error, memory, other, rows, timed


def draw(*records):
    (scene, *_), looks = runs.staged(*records)
    return {drawn.name.rpartition("-")[2]: drawn for drawn in tradeoffs.draw(scene, looks)}


def best(drawn):
    return {row["variant"] for row in rows(drawn) if row["frontier"] == "yes"}


def some():
    return [
        timed("fast", 1.0, memory=memory(100), error=error(3e-7)),
        timed("lean", 2.0, memory=memory(10), error=error(3e-7)),
        timed("poor", 3.0, memory=memory(200), error=error(4e-7)),
        other("near", 0.5, memory=memory(50), distance=0.1),
        other("rough", 0.1, memory=memory(40), distance=0.9),
        other("worse", 0.6, memory=memory(60), distance=0.95),
    ]


def test_each_kind_has_a_frontier_of_its_own_and_what_is_beaten_is_pale(kept):
    found = draw(*some())
    assert best(found["memory"]) == {"fast", "lean", "rough"}
    assert best(found["error"]) == {"fast", "near", "rough"}
    assert len(rows(found["memory"])) == 6
    marks = {str(line.get_gid()).partition("|")[2]: line for line in kept[-1].axes[0].lines}
    pale = {name.split(":")[0] for name, line in marks.items() if name and line.get_alpha() < 1}
    assert pale == {"poor", "near", "worse"}
    twins = [timed(name, 1.0, memory=memory(100)) for name in ("one", "two")]
    assert best(draw(*twins)["memory"]) == {"one", "two"}
