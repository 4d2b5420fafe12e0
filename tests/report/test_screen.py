"""The screen that a run ends with: what it says, and that it is one screen whatever the run."""

import re
from pathlib import Path

import pytest

from attnbench.core.record import Status
from attnbench.features.run import view
from impls.masks import Mask
from tests.report.page import runs
from tests.report.page.runs import at, timed, untimed

MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def screen(shown, records):
    """The screen that a run of these records ends with, line by line."""
    page = Path("/box/index.html")
    return shown(view.show_answer, runs.ran(list(records)), "3 min", page).splitlines()


def test_the_screen_says_by_length_what_to_use_and_what_ties_and_what_to_type_next(shown):
    lines = screen(
        shown,
        [
            *(timed("sdpa", 1e-3, n) for n in (64, 128, 256)),
            timed("chunked", 3e-3, 64),
            timed("chunked", 0.99e-3, 128),  # a tie: torch's own is advised
            timed("chunked", 0.5e-3, 256, flags=["contended: 3 switches"]),
            timed("bmm", 0.505e-3, 256),
            timed("matmul", 4e-3, 256),
            runs.other("linear.elu", 0.1e-3, 256, skill=0.7),
            untimed("flash", Status.UNAVAILABLE, problem=at(256)),
            untimed("inverted", Status.WRONG, MARKUP, problem=at(64)),
        ],
    )
    assert lines[3].split() == ["64", "128", "256"]
    answers = re.split(r"\s{2,}", lines[4])
    assert answers == ["forward", "sdpa 1.00", "sdpa 1.00 =", "chunked 0.500 =?"]
    text = "\n".join(lines)
    near = "within 2.00× of the best on all 3 problems (worst: forward, 256 tokens)"
    assert f"→ If only one: sdpa, {near}" in lines
    assert "  out = F.scaled_dot_product_attention(q, k, v)" in lines
    places = [
        n for n, line in enumerate(lines) if re.match("(chunked|bmm|sdpa|matmul) +[0-9]", line)
    ]
    table = [re.split(r"\s{2,}", lines[n]) for n in places]
    assert table == [
        ["chunked", "0.500", "[0.490, 0.510]", "1.00×", "1.00", "use this"],
        ["bmm", "0.505", "[0.495, 0.515]", "1.01×", "1.00", "tied"],
        ["sdpa", "1.00", "[0.980, 1.02]", "2.00×", "1.00"],
        ["matmul", "4.00", "[3.92, 4.08]", "8.00×", "1.00"],
    ]
    assert "Faster, but not exact: linear.elu, 5.00× as fast, 70" in text
    assert f"inverted is wrong on b1 h2/2 n64 d64 f32 none forward: {MARKUP}" in lines
    assert any(line.startswith("1 of 9 timings were noisy · differences under 5") for line in lines)
    assert "Report: /box/index.html" in lines
    assert lines[-1] == "Next:   attnbench compare chunked bmm --seq 256 --heads 2 --mask none"


SIZES = {
    "one variant at one length": [timed("sdpa")],
    "nothing exact": [runs.other("linear.elu", 1e-4)],
    "nothing measured": [untimed("einsum", Status.OUT_OF_MEMORY)],
    "eight regimes": runs.many(40, (64, 128, 256, 512, 1024, 2048), ("forward", "train", "decode")),
    "long names and markup": runs.crowd(60),
    "windows": [
        timed(name, seconds, at(n, mask=Mask.parse(mask), phase=phase), flags=["drifted"])
        for name, seconds in (("window.blocked", 1.123e-2), ("sdpa", 3e-2))
        for n in (256, 512, 1024, 2048)
        for mask in ("causal", "window:127,0")
        for phase in ("forward", "train")
    ],
    "faults": [
        timed("sdpa"),
        *(untimed(f"v{n}", Status.WRONG, "so it is " * 99) for n in range(9)),
    ],
}


@pytest.mark.parametrize("records", SIZES.values(), ids=SIZES)
def test_the_screen_is_25_lines_of_100_columns_whatever_the_run(shown, records):
    lines = screen(shown, records)
    assert 2 <= len(lines) <= 25
    assert max(len(x) for x in lines if not x.startswith("Next:")) <= 100
    assert not any(line.strip() == "Traceback" for line in lines)
