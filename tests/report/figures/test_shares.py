"""Where the time goes: parts by hand, damaged files, and that it can be read."""

import json

import msgspec
import pytest

from attnbench.report.figures import shares
from tests.report import profiles
from tests.report.page import runs
from tests.report.page.runs import rows


def write(folder, *found):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.json").write_text(json.dumps({"profiles": found, "why": []}))
    return folder / "profile.json"


def draw(*found, number=0):
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
    assert [msgspec.structs.astuple(part) for part in parts] == [
        ("bmm", 0.03, 1),
        ("x", 0.006, 1),
        ("1 other", 0.0001, None),
        ("outside operators", 0.0039, None),
    ]
    (drawn,) = draw(profiles.dense() | {"phases": [phase]})
    found = {row["operator"]: float(row["share"]) for row in rows(drawn)}
    assert found["aten::bmm"] == pytest.approx(0.75)
    assert sum(found.values()) == pytest.approx(1.0)
    assert "dense forward: bmm 75\u00a0%" in drawn.description
    later = profiles.dense() | {"phases": [phase], "slug": "another"}
    some = draw(profiles.dense() | {"slug": "another"}, profiles.fused(), later, number=3)
    assert [d.name for d in some] == ["shares-3-0", "shares-3-1"]
    assert "aten::x" in {row["operator"] for row in rows(some[0])}  # the last profile counts


def test_its_words_can_be_read(kept):
    (drawn,) = draw(profiles.dense(), profiles.fused() | {"variant": runs.MARKUP})
    runs.assert_words_are_readable(kept[0])
    assert "<img" not in drawn.svg
