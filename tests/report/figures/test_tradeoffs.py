"""Trade-offs: what nothing of its kind beats, and points that are pale but there."""

import random
from itertools import pairwise

import pytest

from attnbench.report.figures import sheet, tradeoffs
from tests.report.page import runs
from tests.report.page.runs import error, memory, other, rows, timed, words


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


def heights(figure):
    return {text.get_text(): text.get_position()[1] for text in figure.texts}


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


def test_what_is_exact_lies_below_and_apart_from_what_is_not(kept):
    drawn = draw(*some())["error"]
    assert {"exact: error of the output", "distance from softmax attention"} <= set(words(drawn))
    up = heights(kept[0])
    assert min(up[n] for n in ("near", "rough")) > max(up[n] for n in ("fast", "lean"))
    alone = draw(*some()[:3])["error"]
    assert "distance from softmax attention" not in words(alone)


def test_where_nothing_has_both_there_is_no_figure():
    assert list(draw(timed("a", memory=None))) == ["error"]
    assert draw(timed("a", memory=None, error=None)) == {}


def test_the_frontier_is_named_and_names_are_beside_their_points(kept):
    draw(*(timed(f"v{k}", 4.0**k, memory=memory(4 ** (9 - k))) for k in range(6)))
    places = {text.get_text(): text.get_position() for text in kept[-1].texts}
    for one, after in pairwise(f"v{k}" for k in range(6)):
        assert places[one][0] < places[after][0]
        assert places[one][1] > places[after][1]  # less memory is lower down


@pytest.mark.parametrize("seed", range(2))
def test_a_name_without_a_line_is_nearest_to_its_own_mark(monkeypatch, seed):
    chance = random.Random(seed)
    named, place = [], sheet.place

    def watched(spots, taken, frame, size, far, points):
        boxes = place(spots, taken, frame, size, far, points)
        named.extend((spot, box, points) for spot, box in zip(spots, boxes, strict=True) if box)
        return boxes

    monkeypatch.setattr(sheet, "place", watched)
    kinds = [timed, other] * 15
    sizes = [memory(chance.randint(1, 3) * 2**20) for _ in kinds]
    times = [chance.lognormvariate(0, 1) for _ in kinds]
    draw(*(kinds[n](f"v{n}", times[n], memory=sizes[n]) for n in range(30)))
    loose = [each for each in named if not sheet.threaded(*each[:2])]
    assert len(loose) > 5
    for spot, box, points in loose:
        own = sheet.away(spot.x, spot.y, box)
        others = [at for at in points if at != (spot.x, spot.y)]
        assert len(others) >= 29
        assert all(sheet.away(*at, box) > own for at in others)


def test_what_the_figure_shows_is_said_below_its_title():
    found = draw(*some())
    assert "Exact: fast is the fastest, lean needs the least memory" in words(found["memory"])
    nearest = "Of what is faster than exact, near (2×) is nearest to it: 0.1"
    assert nearest in words(found["error"])
    alone = "Of what is exact, a is the fastest and needs the least memory"
    assert alone in words(draw(timed("a"))["memory"])
