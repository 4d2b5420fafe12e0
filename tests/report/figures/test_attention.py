"""Small maps side by side: cells by hand, damaged files, and that they can be read."""

import json
import math
from pathlib import Path

import pytest

from attnbench.report.figures import attention
from impls.loading import load_file

made = load_file(Path(__file__).with_name("drawn.py"))
table = made.table
WORDS = ["i", "must", "go", "back", "to", "my", "ship", "and", "to", "my", "crew"]


def causal(many):
    return [[1 / (r + 1) if c <= r else 0.0 for c in range(many)] for r in range(many)]


def one(variant="a", computes="softmax", weights=None, mask="causal", alike=()):
    weights = causal(len(WORDS)) if weights is None else weights
    return {
        "variant": variant,
        "computes": computes,
        "mask": mask,
        "alike": list(alike),
        "weights": weights,
    }


def maps(*some, words=WORDS):
    return {"schema": 1, "sentence": "s", "words": list(words), "maps": list(some), "failed": []}


def test_cells_of_a_shade_next_to_each_other_are_one_run():
    runs = attention._runs([[1.0, 0.0], [0.5, 0.5]])
    assert runs == {(False, 7): [(0, 0, 1)], (False, 5): [(1, 0, 2)]}
    assert attention._runs([[0.5, 0.0, 0.5]]) == {(False, 5): [(0, 0, 1), (0, 2, 3)]}
    assert attention._runs([[-0.3, None, math.nan, 1e-9]]) == {(True, 4): [(0, 0, 1)]}


@pytest.mark.parametrize(("weight", "shade"), [(1.0, 7), (7.0, 7), (0.25, 3), (1e-3, 0)])
def test_the_shade_is_the_root_of_the_weight(weight, shade):
    assert attention._shade(weight) == attention._shade(-weight) == shade


def test_the_exact_one_is_first_and_says_for_how_many_it_stands():
    looks = made.shown(made.timed("x", computes="its own operator"), made.timed("a"))[1]
    drawn = attention.draw(maps(one("x", "its own operator"), one("a", alike=["b", "c"])), looks)
    words = made.words_of(drawn)
    assert words.index("a") < words.index("x")
    assert "exact, as are 2 more" in words and "own operator" in words
    assert drawn.description.startswith(
        "The sentence: i must go back to my ship and to my crew. a: crew"
    )


def test_the_table_has_every_weight():
    (first, *rest) = table(attention.draw(maps(one()), {}))
    assert len(rest) == len(WORDS) ** 2 - 1
    assert (first["word"], first["looks_at"], float(first["weight"])) == ("i", "i", 1.0)
    assert float(rest[-1]["weight"]) == pytest.approx(1 / 11)


def test_what_is_below_zero_or_not_finite_is_explained():
    weights = causal(len(WORDS))
    assert not any("below zero" in w or "not finite" in w for w in words_with(weights))
    weights[3][1] = -0.4
    weights[5][2] = None
    assert any("below zero" in w and "×: not finite" in w for w in words_with(weights))


def words_with(weights):
    return made.words_of(attention.draw(maps(one(weights=weights)), {}))


def test_a_row_of_nothing_finite_is_no_trouble():
    weights = [[None] * len(WORDS) for _ in WORDS]
    assert attention.draw(maps(one(weights=weights)), {})


@pytest.mark.parametrize("count", [1, 2, 6, 25, 40])
def test_its_words_can_be_read(monkeypatch, count):
    kept = made.watch(monkeypatch, attention)
    names = [made.NASTY if n == 1 else f"variant {n}" for n in range(count)]
    looks = made.shown(*(made.timed(name) for name in names))[1]
    some = [
        one(n, made.COMPUTES[i % 4], mask=("causal", "none")[i % 2]) for i, n in enumerate(names)
    ]
    drawn = attention.draw(maps(*some), looks)
    made.assert_words_are_readable(kept[0])
    assert "<script" not in drawn.svg and 'class="v v0"' in drawn.svg
    assert len(drawn.inline) < 100_000
    assert any("15 more" in w for w in made.words_of(drawn)) == (count == 40)


def test_of_no_map_there_is_no_figure():
    assert attention.draw(maps(), {}) is None


def test_maps_are_read_as_they_were_kept(tmp_path):
    file = tmp_path / "maps.json"
    assert attention.read(file) == (None, "this run kept no attention maps")
    file.write_text(json.dumps(maps(one())))
    assert attention.read(file) == (maps(one()), "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"words": ["a"], "maps": [{}]}',
        '{"words": ["a"], "maps": 3}',
        '{"words": [3], "maps": []}',
        json.dumps(maps(one(weights=[[1.0]]))),
        json.dumps(maps(one(weights=[["1"]]), words="a")),
        "[" * 100_000,
    ],
)
def test_damaged_ones_are_a_sentence(tmp_path, text):
    file = tmp_path / "maps.json"
    file.write_text(text)
    assert attention.read(file) == (None, "maps.json is damaged, so no map is shown")
