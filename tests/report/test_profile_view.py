"""A profile on one screen: what is largest is there, on one scale, and the rest is counted."""

from pathlib import Path

import pytest

from attnbench.features.profile import view
from attnbench.features.profile.view import curve, rows_of, show
from impls.loading import load_file

profiles = load_file(Path(__file__).with_name("profiles.py"))
MIB = 2**20


@pytest.fixture
def screen(monkeypatch, capsys):
    """What is shown on a screen of 80 columns."""

    def shown(*some, why=()):
        monkeypatch.setenv("COLUMNS", "80")
        show(some, why)
        return capsys.readouterr().out.splitlines()

    return shown


def line_with(lines, *words):
    found = [x for x in lines if all(w in x for w in words)]
    assert found, (words, "\n".join(lines))
    return found[0]


def test_two_fit_on_one_screen(screen):
    lines = screen(profiles.dense(), profiles.fused(), why=["One is slower."] * 4)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_two_have_a_column_each_and_one_scale(screen):
    lines = screen(profiles.dense(), profiles.fused(), why=["dense is slower."])
    assert lines[1] == "dense is slower."
    product, flash = line_with(lines, "bmm", "20.0"), line_with(lines, "_scaled", "10.0")
    assert "–" in product and "–" in flash
    assert product.index("20.0") < product.index("–") and flash.index("–") < flash.index("10.0")
    assert product.count("█") == 3  # 20 of the 72 ms of the slower, in 14 columns
    assert product.count("█") == pytest.approx(2 * flash.count("█"), abs=1)


def test_one_has_calls_rates_and_a_dash_where_no_work_is_known(screen):
    lines = screen(profiles.dense())
    assert line_with(lines, "bmm", "20.0").split()[-2:] == ["2", "60"]
    assert line_with(lines, "_softmax", "10.0").split()[-1] == "–"
    assert "profiled 72.0 ms" in line_with(lines, "unwatched 70 ms").replace("72 ms", "72.0 ms")
    assert line_with(lines, "as written")


def test_what_is_small_is_counted_and_what_is_outside_is_said():
    rows = rows_of(profiles.dense()["phases"][1], 8)
    assert [r.name for r in rows] == ["aten::bmm", "12 others", "outside operators"]
    assert rows[1].seconds == pytest.approx(12e-6)
    few = rows_of(profiles.dense()["phases"][0], 1)
    assert [r.name for r in few] == ["aten::bmm", "1 other", "outside operators"]
    assert few[1].seconds == pytest.approx(0.01)


def test_the_peak_is_told_by_line(screen):
    lines = screen(profiles.dense())
    assert line_with(lines, "peak 96 MiB above the inputs, in backward; 32 MiB between the phases")
    biggest = line_with(lines, "64 MiB", "dense.py:23", "in its gradient")
    assert lines.index(biggest) < lines.index(line_with(lines, "32 MiB", "dense.py:23 _softmax "))
    assert not any("dense.py:22 bmm" in x for x in lines)  # nothing of it is alive at the peak


def test_the_lines_that_take_time_are_told(screen):
    lines = screen(profiles.dense())
    assert line_with(lines, "70%", "dense.py:22", "scores = q @ k")


def test_caveats_are_shown(screen):
    p = profiles.dense() | {"caveats": ["the process grew"]}
    assert line_with(screen(p), "! dense: the process grew")


def test_brackets_in_code_are_no_markup(screen):
    p = profiles.dense()
    p["memory"]["sources"][1]["code"] = "x[bold]"
    assert line_with(screen(p), "x[bold]")


def test_the_curve_is_as_high_as_what_is_alive():
    (text,) = curve(profiles.dense()["memory"], 16, 1, 96 * MIB, 80.0)
    # ms 0, 5, 10, … of 80: 32, 64 from 15, 32 from 25, 96 from 60, 4 from 70
    heights = [view.BLOCKS.index(x) for x in text.plain]
    assert heights[0] == 0 and max(heights) == 8
    assert heights[1:3] == [3, 3] and heights[3:5] == [5, 5] and heights[7:12] == [3] * 5
    assert heights[12] == 8 and heights[15] == 1


def test_of_two_curves_the_shorter_call_ends_sooner(screen):
    lines = screen(profiles.dense(), profiles.fused())
    longer, shorter = (
        lines[next(n for n, x in enumerate(lines) if x.startswith(f"{name}: peak")) + 1 :]
        for name in ("dense", "fused")
    )
    ends = [max(len(x.rstrip()) for x in some[:1]) for some in (longer, shorter)]
    assert ends[0] == 80 * 70 // 80 + 1  # nearly all is gone at 70 of 80 ms
    assert ends[1] == pytest.approx(80 * 30 / 80, abs=1)


def test_a_small_curve_beside_a_large_one_is_not_invisible():
    lines = curve(profiles.fused()["memory"], 20, 2, 9600 * MIB, 30.0)
    assert len(lines) == 1 and "▁" in lines[0].plain
