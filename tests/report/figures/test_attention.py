"""Small maps side by side: cells by hand, damaged files, and that they can be read."""

import json

from attnbench.report.figures import attention
from attnbench.report.figures.attention import Map, Maps
from tests.report.page import runs
from tests.report.page.runs import rows, words

WORDS = ["i", "must", "go", "back", "to", "my", "ship", "and", "to", "my", "crew"]
KINDS = tuple(attention.KINDS)


def causal():
    return [[1 / (r + 1) if c <= r else 0.0 for c in range(len(WORDS))] for r in range(len(WORDS))]


def one(variant="a", computes="softmax", weights=None, mask="causal", alike=()):
    return Map(variant, computes, mask, list(alike), weights or causal())


def draw(*maps, looks=None):
    return attention.draw(Maps(WORDS, list(maps), "s"), looks or {})


def test_the_exact_one_is_first_and_every_weight_is_in_the_table():
    near, exact, own = one("near", KINDS[2]), one("sdpa", alike=["b", "c"]), one("op", KINDS[3])
    drawn = draw(near, exact, own)
    said = words(drawn)
    assert said.index("sdpa") < said.index("near") and "exact, as are 2 more" in said
    (first, *rest) = rows(drawn)
    assert (first["variant"], first["looks_at"], float(first["weight"])) == ("sdpa", "i", 1.0)
    assert len(rest) == 3 * len(WORDS) ** 2 - 1


def test_its_words_can_be_read_and_what_is_left_out_is_counted(kept):
    names = [runs.MARKUP * 3 if n == 1 else f"variant {n}" for n in range(27)]
    some = [one(n, KINDS[i % 4], mask=("causal", "none")[i % 2]) for i, n in enumerate(names)]
    drawn = draw(*some, looks=runs.looks([runs.timed(name) for name in names]))
    runs.assert_words_are_readable(kept[0])
    assert "<img" not in drawn.svg and len(drawn.inline) < 100_000
    assert any("2 more" in word for word in words(drawn))


def test_maps_are_read_as_they_were_kept(tmp_path):
    file = tmp_path / "maps.json"
    assert attention.read(file) == (None, "this run kept no attention maps")
    weights = [[1.0, None], [0.5, 0.5]]
    each = {"variant": "a", "computes": "softmax", "mask": "none", "alike": [], "weights": weights}
    file.write_text(json.dumps({"schema": 1, "words": ["x", "y"], "maps": [each], "failed": []}))
    maps, said = attention.read(file)
    assert (maps.maps[0].weights, maps.words, said) == (weights, ["x", "y"], "")
    for damaged in ("", "[]", '{"words": [3], "maps": []}', "[" * 100_000):
        file.write_text(damaged)
        assert attention.read(file) == (None, "maps.json is damaged, so no map is shown")
    for wrong in ([[1.0]], [["1", 1.0], [1.0, 1.0]], [[1.0, 0.0]]):
        file.write_text(json.dumps({"words": ["x", "y"], "maps": [{**each, "weights": wrong}]}))
        assert attention.read(file)[0] is None
