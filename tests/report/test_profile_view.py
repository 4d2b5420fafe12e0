"""A profile on one screen, and the picture of its memory: what is largest, on one scale."""

import re

import pytest

from attnbench.features.profile import view
from attnbench.features.profile.view import curve, show
from tests.report.profiles import MIB, dense, fused


@pytest.fixture
def screen(shown):
    """What is shown on a screen of 80 columns."""
    return lambda *some, why=(), width=80: shown(show, some, why, width=width).splitlines()


def line_with(lines, *words):
    found = [x for x in lines if all(w in x for w in words)]
    assert found, (words, "\n".join(lines))
    return found[0]


def test_two_have_a_column_each_and_one_scale_and_fit_on_one_screen(screen):
    lines = screen(dense(), fused(), why=["dense is slower."] * 4)
    assert len(lines) <= 40 and max(map(len, lines)) <= 80 and lines[1] == "dense is slower."
    product, flash = line_with(lines, "bmm", "20.0"), line_with(lines, "_scaled", "10.0")
    assert product.index("20.0") < product.index("–") and flash.index("–") < flash.index("10.0")
    assert product.count("█") == 3  # 20 of the 72 ms of the slower, in 14 columns
    assert product.count("█") == pytest.approx(2 * flash.count("█"), abs=1)


def test_rates_of_a_gpu_are_in_teraflops(screen):
    p = dense()
    p["phases"][0]["operators"][0]["flop_rate"] = 3.44e14
    lines = screen(p)
    assert line_with(lines, "self ms").split()[-1] == "TFLOP/s"
    assert line_with(lines, "bmm", "20.0").split()[-2:] == ["2", "344"]


def test_one_has_calls_rates_the_peak_by_line_the_slow_lines_and_caveats(screen):
    p = dense() | {"caveats": ["the process grew"]}
    p["memory"]["sources"][1]["code"] = "x[bold]"
    lines = screen(p)
    assert line_with(lines, "bmm", "20.0").split()[-2:] == ["2", "60"]
    assert line_with(lines, "_softmax", "10.0").split()[-1] == "–"
    assert line_with(lines, "unwatched 70 ms", "profiled 72") and line_with(lines, "as written")
    assert line_with(lines, "peak 96 MiB above the inputs, in backward; 32 MiB between the phases")
    biggest = line_with(lines, "64 MiB", "dense.py:23", "in its gradient")
    assert lines.index(biggest) < lines.index(line_with(lines, "32 MiB", "dense.py:23 _softmax "))
    assert not any("dense.py:22 bmm" in x for x in lines)  # nothing of it is alive at the peak
    assert line_with(lines, "70\u00a0%", "dense.py:22", "scores = q @ k")
    assert line_with(lines, "x[bold]") and line_with(lines, "! dense: the process grew")


@pytest.mark.parametrize("profiles", [[dense()], [dense(), fused()]])
def test_on_a_narrow_screen_no_number_and_no_line_of_code_is_cut(screen, profiles):
    wide, narrow = (" ".join(screen(*profiles, width=width)) for width in (200, 40))
    numbers = [re.findall(r"(?<!\S)[\d.,]+(?!\S)", text) for text in (wide, narrow)]
    assert numbers[0] == numbers[1] and len(numbers[0]) > 9
    codes = [source["code"] for profile in profiles for source in profile["memory"]["sources"]]
    shown = "".join(narrow.split())
    assert len(profiles) > 1 or any(code in wide for code in codes)
    assert all(("".join(code.split()) in shown) == (code in wide) for code in codes)
    assert wide.count("…") == narrow.count("…")  # in names of operators


def test_the_curve_is_as_high_as_what_is_alive():
    (text,) = curve(dense()["memory"], 16, 1, 96 * MIB, 80.0)
    # ms 0, 5, 10, … of 80: 32, 64 from 15, 32 from 25, 96 from 60, 4 from 70
    heights = [view.BLOCKS.index(x) for x in text.plain]
    assert heights[:5] + heights[7:13] == [0, 3, 3, 5, 5, *[3] * 5, 8] and heights[15] == 1
    (small,) = curve(fused()["memory"], 20, 2, 9600 * MIB, 30.0)
    assert "▁" in small.plain  # beside a large one it is not invisible
