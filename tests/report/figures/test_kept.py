"""Maps and shares of time, kept beside a run: by hand, damaged, and that they can be read."""

import json

import msgspec
import pytest

from attnbench.report.figures import attention, shares
from attnbench.report.figures.attention import Map, Maps
from tests.report import profiles
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


def write(folder, *found):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.json").write_text(json.dumps({"profiles": found, "why": []}))
    return folder / "profile.json"


def shares_of(*found, number=0):
    return shares.draw([msgspec.convert(p, shares.Profile) for p in found], {}, number)


def test_profiles_are_read_from_all_files_and_of_what_can_not_be_there_is_a_sentence(tmp_path):
    bad = profiles.dense()
    bad["phases"][0]["operators"][0]["self_s"] = -1.0
    damaged = ["{", "[]", "[" * 100_000, json.dumps({"profiles": [bad]})]
    files = [tmp_path / "none" / "profile.json"]
    for number, text in enumerate(damaged):
        files.append(write(tmp_path / f"bad{number}"))
        files[-1].write_text(text)
    files += [write(tmp_path / "x", profiles.dense()), write(tmp_path / "y", profiles.fused())]
    found, (gone, *amiss) = shares.read(files)
    assert [p.variant for p in found] == ["dense", "fused"]
    assert gone == "none/profile.json can't be read: No such file or directory"
    said = "/profile.json is damaged, so its profile is not shown"
    assert amiss == [f"bad{n}{said}" for n in range(len(damaged))]


def test_parts_are_shares_of_their_phase():
    spent = {"bmm": 0.03, "x": 0.006, "tiny": 0.0001}
    operators = [profiles.operator(name, seconds) for name, seconds in spent.items()]
    phase = profiles.phase("forward", operators, outside=0.0039)
    parts = shares._parts(msgspec.convert(phase, shares.Phase))
    known, rest = [("bmm", 0.03, 1), ("x", 0.006, 1)], [("1 other", 0.0001, None)]
    rest.append(("outside operators", 0.0039, None))
    assert [msgspec.structs.astuple(part) for part in parts] == known + rest
    (drawn,) = shares_of(profiles.dense() | {"phases": [phase]})
    found = {row["operator"]: float(row["share"]) for row in rows(drawn)}
    assert found["aten::bmm"] == pytest.approx(0.75)
    assert sum(found.values()) == pytest.approx(1.0)
    assert "dense forward: bmm 75\u00a0%" in drawn.description
    later = profiles.dense() | {"phases": [phase], "slug": "another"}
    some = shares_of(profiles.dense() | {"slug": "another"}, profiles.fused(), later, number=3)
    assert [d.name for d in some] == ["shares-3-0", "shares-3-1"]
    assert "aten::x" in {row["operator"] for row in rows(some[0])}  # the last profile counts


def test_the_words_of_shares_can_be_read(kept):
    (drawn,) = shares_of(profiles.dense(), profiles.fused() | {"variant": runs.MARKUP})
    runs.assert_words_are_readable(kept[0])
    assert "<img" not in drawn.svg
