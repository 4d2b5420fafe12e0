"""Trade-offs: what nothing of its kind beats, and points that are pale but there."""

import math
import random
from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.report.figures import sheet, tradeoffs
from impls.loading import load_file

staged = load_file(Path(__file__).with_name("staged.py"))
exact, other, rows, said = staged.exact, staged.other, staged.rows, staged.said


def draw(records, **more):
    _, (scene, *_), looks = staged.staged(records, **more)
    return {drawn.name.rpartition("-")[2]: drawn for drawn in tradeoffs.draw(scene, looks)}


def best(drawn):
    return {row["variant"] for row in rows(drawn) if row["frontier"] == "yes"}


def some():
    return [
        exact("fast", 64, 1.0, memory=staged.memory(100), error=staged.error(3e-7)),
        exact("lean", 64, 2.0, memory=staged.memory(10), error=staged.error(3e-7)),
        exact("poor", 64, 3.0, memory=staged.memory(200), error=staged.error(4e-7)),
        other("near", 64, 0.5, memory=staged.memory(50), distance=0.1),
        other("rough", 64, 0.1, memory=staged.memory(40), distance=0.9),
        other("worse", 64, 0.6, memory=staged.memory(60), distance=0.95),
    ]


def test_each_kind_has_a_frontier_of_its_own():
    found = draw(some())
    assert best(found["memory"]) == {"fast", "lean", "rough"}
    assert best(found["error"]) == {"fast", "near", "rough"}
    assert len(rows(found["memory"])) == 6


def test_points_on_each_other_are_both_kept():
    twins = [exact(name, 64, 1.0, memory=staged.memory(100)) for name in ("one", "two")]
    assert best(draw(twins)["memory"]) == {"one", "two"}


def test_it_is_of_the_longest_length_that_most_reached():
    more = [exact("fast", 128, 5.0), exact("lean", 128, 6.0), exact("poor", 128, 7.0)]
    drawn = draw([*some(), *more, exact("fast", 256, 9.0)])["memory"]
    assert "128 tokens" in drawn.title
    assert {row["variant"] for row in rows(drawn)} == {"fast", "lean", "poor"}


def test_what_is_exact_lies_below_and_apart_from_what_is_not():
    drawn = draw(some())["error"]
    assert "exact: error of the output" in said(drawn)
    assert "distance from softmax attention" in said(drawn)
    heights = {text: box[1] for text, box in staged.boxes(drawn)}
    assert max(heights[n] for n in ("near", "rough")) < min(heights[n] for n in ("fast", "lean"))
    alone = draw([r for r in some() if r.computes == "softmax"])["error"]
    assert "distance from softmax attention" not in said(alone)


def test_what_is_beaten_is_pale_and_still_there():
    drawn = draw(some())["memory"]
    _, _, looks = staged.staged(some())
    pale = set()
    for group in staged.tree(drawn).iter(f"{staged.SVG}g"):
        if any(t.tag.endswith("title") for t in group):
            styles = " ".join(e.get("style", "") for e in group.iter())
            pale |= {group.get("class")} if "opacity:0." in styles else set()
    assert pale == {f"v {looks[name].name}" for name in ("poor", "near", "worse")}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, None])
def test_what_has_no_number_has_no_point(bad):
    records = [*some(), other("broken", 64, 1.0, distance=bad)]
    assert "broken" not in {row["variant"] for row in rows(draw(records)["error"])}


def test_where_nothing_has_both_there_is_no_figure():
    bare = [exact("a", 64, 1.0, memory=None)]
    assert list(draw(bare)) == ["error"]
    assert draw([exact("a", 64, 1.0, memory=None, error=None)]) == {}
    assert draw([staged.untimed("a", "failed", staged.at(64))]) == {}


def test_one_point_is_a_figure():
    for drawn in draw([exact("only", 64, 1.0)]).values():
        assert "only" in said(drawn)
        assert staged.untidy(drawn) == []


@pytest.mark.parametrize("count", [12, 45, 120])
def test_no_word_lies_on_another_or_is_cut_off(count):
    records = staged.crowd(count, (2048, 4096))
    for drawn in draw(records).values():
        assert staged.untidy(drawn) == []
        assert len(rows(drawn)) == sum(r.problem.kv_len == 4096 for r in records)


def test_the_frontier_is_named_where_there_is_a_crowd():
    records = [
        exact(f"v{k}", 64, 1.0 + k / 10, memory=staged.memory(2000 - 130 * k)) for k in range(12)
    ]
    assert {f"v{k}" for k in range(12)} <= set(said(draw(records)["memory"]))


def test_names_are_put_beside_their_points():
    records = [exact(f"v{k}", 64, 4.0**k, memory=staged.memory(4 ** (9 - k))) for k in range(6)]
    places = dict(staged.boxes(draw(records)["memory"]))
    for one, after in pairwise(f"v{k}" for k in range(6)):
        assert places[one][0] < places[after][0]
        assert places[one][1] < places[after][1]  # less memory is lower down


def test_long_names_and_markup_stay_text():
    drawn = draw([exact("<b>&" + "x" * 90, 64, 1.0, family="<i>" * 50)], machine="m" * 300)
    assert staged.untidy(drawn["memory"]) == []
    assert any(word.startswith("<b>&x") for word in said(drawn["memory"]))


@pytest.mark.parametrize("seed", range(5))
def test_a_name_without_a_line_is_nearest_to_its_own_mark(monkeypatch, seed):
    chance = random.Random(seed)
    named, place = [], sheet.place

    def watched(spots, taken, frame, size, far, points):
        boxes = place(spots, taken, frame, size, far, points)
        named.extend((spot, box, points) for spot, box in zip(spots, boxes, strict=True) if box)
        return boxes

    monkeypatch.setattr(sheet, "place", watched)
    draw(
        [
            make(
                f"v{n}",
                64,
                chance.lognormvariate(0, 1),
                memory=staged.memory(chance.randint(1, 3) * 2**20),
            )
            for n, make in enumerate([exact, other] * 15)
        ]
    )
    loose = [some for some in named if not sheet.threaded(*some[:2])]
    assert len(loose) > 5
    for spot, box, points in loose:
        own = sheet.away(spot.x, spot.y, box)
        others = [at for at in points if at != (spot.x, spot.y)]
        assert len(others) >= 29
        assert all(sheet.away(*at, box) > own for at in others)


def test_what_the_figure_shows_is_said_below_its_title():
    found = draw(some())
    assert "Exact: fast is the fastest, lean needs the least memory" in said(found["memory"])
    nearest = "Of what is faster than exact, near (2×) is nearest to it: 0.1"
    assert nearest in said(found["error"])
    (alone,) = (w for w in said(draw([exact("a", 64, 1.0)])["memory"]) if w.startswith("Of what"))
    assert alone == "Of what is exact, a is the fastest and needs the least memory"
