"""Where the time goes: parts by hand, damaged files, and that it can be read."""

import json
from pathlib import Path

import pytest

from attnbench.report.figures import shares
from impls.loading import load_file

made = load_file(Path(__file__).with_name("drawn.py"))
profiles = load_file(Path(__file__).parents[1] / "profiles.py")
table = made.table


def write(folder, *found):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "profile.json"
    file.write_text(json.dumps({"profiles": found, "why": []}))
    return file


def test_profiles_are_read_from_all_files(tmp_path):
    files = [write(tmp_path / "x", profiles.dense()), write(tmp_path / "y", profiles.fused())]
    found, amiss = shares.read(files)
    assert [p["variant"] for p in found] == ["dense", "fused"]
    assert amiss == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"profiles": 3}',
        '{"profiles": [{}]}',
        '{"profiles": [null]}',
        '{"profiles": [{"variant": "a", "slug": "s", "phases": [{"name": 1}]}]}',
        "[" * 100_000,
    ],
)
def test_of_a_damaged_file_there_is_a_sentence_and_the_others_are_shown(tmp_path, text):
    bad = tmp_path / "bad" / "profile.json"
    bad.parent.mkdir()
    bad.write_text(text)
    found, amiss = shares.read([bad, write(tmp_path / "x", profiles.dense())])
    assert [p["variant"] for p in found] == ["dense"]
    assert amiss == ["bad/profile.json is damaged, so its profile is not shown"]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, None, "1"])
def test_a_time_that_is_no_number_damages_a_file(tmp_path, seconds):
    profile = profiles.dense()
    profile["phases"][0]["operators"][0]["self_s"] = seconds
    found, amiss = shares.read([write(tmp_path / "x", profile)])
    assert (found, len(amiss)) == ([], 1)


def test_what_can_not_be_read_or_is_no_text_is_a_sentence(tmp_path):
    (tmp_path / "profile.json").write_bytes(b"\xff\xfe")
    found, amiss = shares.read([tmp_path / "none" / "profile.json", tmp_path / "profile.json"])
    assert found == []
    assert "can't be read: No such file" in amiss[0]
    assert "is damaged" in amiss[1]


def test_parts_are_shares_of_their_phase():
    spent = {"bmm": 0.03, "x": 0.006, "tiny": 0.0001}
    operators = [profiles.operator(name, seconds) for name, seconds in spent.items()]
    phase = profiles.phase("forward", operators, outside=0.0039)
    assert shares._parts(phase) == [
        ("bmm", 0.03, 1),
        ("x", 0.006, 1),
        ("1 other", 0.0001, None),
        ("outside operators", 0.0039, None),
    ]
    (drawn,) = shares.draw([profiles.dense() | {"phases": [phase]}], {})
    rows = {row["operator"]: float(row["share"]) for row in table(drawn)}
    assert rows["aten::bmm"] == pytest.approx(0.75)
    assert sum(rows.values()) == pytest.approx(1.0)
    assert "dense forward: bmm 75%" in drawn.description


def test_each_problem_has_a_figure_and_of_a_variant_the_last_profile_counts():
    later = profiles.dense() | {
        "phases": [profiles.phase("forward", [profiles.operator("mm", 1.0)])]
    }
    other = profiles.fused() | {"slug": "another problem"}
    drawn = shares.draw([profiles.dense(), other, later], {}, 3)
    assert [d.name for d in drawn] == ["shares-3-0", "shares-3-1"]
    assert {row["variant"] for row in table(drawn[0])} == {"fused"}
    assert {row["operator"] for row in table(drawn[1])} == {"aten::mm", "outside operators"}


def test_there_are_no_more_figures_and_variants_than_can_be_read(monkeypatch):
    kept = made.watch(monkeypatch, shares)
    some = [
        profiles.dense() | {"slug": f"s{n}", "variant": f"v{k}"}
        for n in range(9)
        for k in range(12)
    ]
    assert len(shares.draw(some, {})) == len(kept) == shares.FIGURES
    names = [t.get_text() for t in kept[0].axes[0].texts if t.get_text().startswith("v")]
    assert len(names) == shares.VARIANTS


def test_of_nothing_there_is_no_figure():
    assert shares.draw([], {}) == []
    assert shares.draw([profiles.dense() | {"phases": []}], {}) == []


def test_its_words_can_be_read_and_variants_have_their_class(monkeypatch):
    kept = made.watch(monkeypatch, shares)
    looks = made.shown(made.timed("dense"), made.timed(made.NASTY))[1]
    nasty = profiles.fused() | {"variant": made.NASTY}
    (drawn,) = shares.draw([profiles.dense(), nasty, profiles.fused()], looks)
    made.assert_words_are_readable(kept[0])
    assert "<script" not in drawn.svg
    assert f'class="v {looks["dense"].name}"' in drawn.svg
