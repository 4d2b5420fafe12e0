"""A profile in a terminal: each phase's operators, the largest first, two on one scale."""

import re

import pytest

from attnbench.features.profile.view import show
from tests.report.profiles import dense, fused


@pytest.fixture
def screen(shown):
    """The lines on a screen of 80 columns."""
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
    assert product.count("█") == 4  # 20 of the 72 ms of the slower, in 14 columns
    assert product.count("█") == 2 * flash.count("█")
    assert line_with(lines, "dense: unwatched 70 ms") and line_with(lines, "fused: peak 8 MiB")


def test_rates_of_a_gpu_are_in_teraflops(screen):
    p = dense()
    p["phases"][0]["operators"][0]["flop_rate"] = 3.44e14
    lines = screen(p)
    assert line_with(lines, "self ms").split()[-1] == "TFLOP/s"
    assert line_with(lines, "bmm", "20.0").split()[-2:] == ["2", "344"]


def test_one_has_shares_calls_rates_the_peak_and_flags(screen):
    p = dense()
    p["memory"]["flags"] = ["the process [bold]grew"]
    lines = screen(p, width=120)
    assert line_with(lines, "bmm", "20.0").split()[-4:] == ["28", "%", "2", "60"]
    assert line_with(lines, "_softmax", "10.0").split()[-1] == "–"
    assert line_with(lines, "12 others", "0.0120") and line_with(lines, "outside operators", "1.00")
    assert line_with(lines, "unwatched 70 ms", "profiled 72") and line_with(lines, "as written")
    assert line_with(lines, "peak 96 MiB above the inputs; 32 MiB saved for backward")
    assert line_with(lines, "! the process [bold]grew")


@pytest.mark.parametrize("profiles", [[dense()], [dense(), fused()]])
def test_on_a_narrow_screen_no_number_is_cut(screen, profiles):
    wide, narrow = (" ".join(screen(*profiles, width=width)) for width in (200, 40))
    numbers = [re.findall(r"(?<!\S)[\d.,]+(?!\S)", text) for text in (wide, narrow)]
    assert numbers[0] == numbers[1] and len(numbers[0]) > 9
    assert wide.count("…") == narrow.count("…")  # in names of operators
