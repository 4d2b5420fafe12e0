"""The picture of memory: bands for what is alive when, and a key with their lines of code."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attnbench.features.profile.view import draw
from attnbench.features.show.view import BadPicture
from impls.loading import load_file

profiles = load_file(Path(__file__).with_name("profiles.py"))


def words(file):
    """The texts of an SVG, each whole."""
    texts = ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")
    return ["".join(t.itertext()) for t in texts]


@pytest.fixture
def drawn(tmp_path):
    def make(*some):
        files = [tmp_path / "memory.svg", tmp_path / "memory.png"]
        draw(some, files)
        assert files[1].read_bytes().startswith(b"\x89PNG")
        return words(files[0])

    return make


def test_every_band_has_a_line_of_the_key_with_its_code(drawn):
    texts = drawn(profiles.dense())
    keys = [t for t in texts if "dense.py:" in t and "MiB" in t]
    assert len(keys) == 3
    assert "softmax(-1)" in keys[0] and "in gradient" in keys[0]  # what comes last lies on top
    assert "scores = q @ k" in keys[2]


def test_the_peak_the_turn_and_the_size_of_all_scores_are_marked(drawn):
    texts = [t.strip() for t in drawn(profiles.dense())]
    assert {"peak 96 MiB", "backward", "all scores once: 32 MiB"} <= set(texts)


def test_two_stand_side_by_side_on_one_scale(drawn):
    texts = drawn(profiles.dense(), profiles.fused())
    assert any(t.startswith("dense against fused") for t in texts)
    assert any("dense: peak 96 MiB" in t for t in texts)
    assert any("fused: peak 8 MiB" in t for t in texts)
    assert texts.count("100") >= 2  # the small one has the ticks of the large one


def test_caveats_stand_in_the_picture(drawn):
    texts = drawn(profiles.dense() | {"caveats": ["operators are named instead"]})
    assert any("operators are named instead" in t for t in texts)


def test_what_never_held_much_has_no_band(drawn):
    p = profiles.dense()
    for row in p["memory"]["alive"]:
        row[0] = 8
    p["memory"]["sources"][0] |= {"most_bytes": 8}
    assert not any("scores = q @ k" in t for t in drawn(p))


def test_nothing_alive_is_still_a_picture(drawn):
    p = profiles.dense()
    p["memory"] |= {
        "sources": [],
        "alive": [],
        "at_ms": [],
        "peak_bytes": 0,
        "peak_ms": 0.0,
        "turn_ms": None,
        "turn_bytes": None,
        "end_ms": 1.0,
    }
    assert any("dense: peak 0 B" in t for t in drawn(p))


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(BadPicture, match="can't write"):
        draw([profiles.dense()], [tmp_path / "no" / "memory.svg"])


def test_bands_lie_on_each_other_and_reach_the_peak_when_it_is(monkeypatch, tmp_path):
    drawn_bands = []

    def noted(axes, at, below, above, **look):
        drawn_bands.append((list(at), list(below), list(above), look["step"], look["hatch"]))

    monkeypatch.setattr("matplotlib.axes.Axes.fill_between", noted)
    draw([profiles.dense()], [tmp_path / "memory.svg"])
    at = [0.0, 5.0, 15.0, 25.0, 60.0, 70.0, 80.0]
    assert [band[0] for band in drawn_bands] == [at] * 3
    assert drawn_bands[0][2] == [0, 32, 32, 0, 0, 0, 0]
    assert drawn_bands[1][1] == drawn_bands[0][2] and drawn_bands[2][1] == drawn_bands[1][2]
    assert drawn_bands[2][2] == [0, 32, 64, 32, 96, 4, 4]
    assert {band[3] for band in drawn_bands} == {"post"}
    assert [band[4] is not None for band in drawn_bands] == [False, False, True]


def dozen():
    """Twelve sources at once, more than there are colors; some lines of code have several."""
    p = profiles.dense()
    sources = [
        profiles.source(f"x.py:{n % 7}", "y", f"op{n}", backward=n % 5 == 4, there=4, most=4)
        for n in range(12)
    ]
    p["memory"] |= {
        "sources": sources,
        "at_ms": [5.0],
        "alive": [[4 * profiles.MIB] * 12],
        "peak_bytes": 48 * profiles.MIB,
    }
    return p


def test_no_two_bands_look_alike(monkeypatch, tmp_path):
    looks = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.fill_between", lambda axes, *sides, **look: looks.append(look)
    )
    draw([dozen()], [tmp_path / "memory.svg"])
    colors = [tuple(x["facecolor"]) for x in looks]
    assert len(set(colors[:10])) == 10
    assert len({(c, x["hatch"]) for c, x in zip(colors, looks, strict=True)}) == 12
    assert {x.get("alpha") for x in looks} == {None}
    striped = ["/" in (x["hatch"] or "") for x in looks]
    assert striped == [n % 5 == 4 for n in range(12)]


def test_two_share_the_axis_of_time(monkeypatch, tmp_path):
    limits = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.set_xlabel", lambda axes, text: limits.append(axes.get_xlim())
    )
    draw([profiles.fused(), profiles.dense()], [tmp_path / "memory.svg"])
    assert limits == [(0, 80), (0, 80)]
