"""A run's tables: a word wherever a number is missing, and texts shown as they are."""

import re
from pathlib import Path

import pytest

from attnbench.core.record import Status
from attnbench.features.run import view
from attnbench.report.tables import PIPED
from tests.report.page import runs
from tests.report.page.runs import at, memory, timed, untimed

MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def grid(text):
    """The cells of the first table in a text: rows of words that two spaces part."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("variant"))
    rows = []
    for line in lines[first:]:
        if not line.strip() or re.match(r"\w+: ", line):
            break
        rows.append(re.split(r"\s{2,}", line.strip()))
    return rows


def test_results_give_median_interval_memory_error_and_share(shown):
    peak = {"memory": memory(3 << 20)}
    times = (("a", 1e-3, 64), ("b", 2e-3, 128), ("a", 4e-3, 128), ("b", 8e-3, 64))
    text = shown(view.show_results, [timed(*each, **peak) for each in times])
    assert grid(text)[:3] == [
        ["variant", "64", "128", "peak MiB at 128", "worst error at 128", "of ceiling"],
        ["a", "1 ±2.0", "4 ±2.0", "3", "2.0e-07", "42%"],
        ["b", "8 ±2.0", "2 ±2.0", "3", "2.0e-07", "42%"],
    ]
    for word in ("forward", "mask none", "normal inputs", "b1 h2/2", "d64", "float32", "cpu"):
        assert word in text
    far = timed("a", computes=runs.OWN, distance=runs.far(0.1, 0.731))
    assert "(softmax: 0.73)" in shown(view.show_results, [far])


def test_a_status_stands_where_there_is_no_time_and_its_reason_below(shown):
    for status in (s for s in Status if s is not Status.MEASURED):
        bad = untimed("b", status, MARKUP, remedy="do this")
        text = shown(view.show_results, [timed("a"), bad])
        assert grid(text)[2][:2] == ["b", str(status)]
        where = "b on b1 h2/2 n64 d64 f32 none forward"
        assert f"{status}: {where}: {MARKUP} → do this" in text


def test_nothing_is_cut_off_where_there_is_no_terminal(shown):
    lengths = [2**n for n in range(4, 20)]
    records = [timed("a.long.name", 1.2345 * n, at(n)) for n in lengths]
    text = shown(view.show_results, records, width=PIPED)
    assert "…" not in text and all(f"{1234.5 * n:.4g} ±2.0" in text for n in lengths)
    reason = " ".join(f"[word {n}]" for n in range(60))
    bad = untimed("b", Status.FAILED, reason, remedy=reason)
    lines = shown(view.show_results, [timed("a"), bad], width=PIPED).splitlines()
    assert max(map(len, lines)) <= 120
    assert f"{reason} → {reason}" in " ".join(" ".join(lines).split())


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
            timed("matmul", 4e-3, 256),
            runs.other("linear.elu", 0.1e-3, 256, skill=0.7),
            untimed("flash", Status.UNAVAILABLE, problem=at(256)),
            untimed("inverted", Status.WRONG, MARKUP, problem=at(64)),
        ],
    )
    assert lines[3].split() == ["64", "128", "256"]
    answers = re.split(r"\s{2,}", lines[4])
    assert answers == ["forward", "sdpa 1.00", "sdpa 1.00 =", "chunked 0.500 ?"]
    text = "\n".join(lines)
    assert "→ Use sdpa: within 2× of the best on 3 of 3 problems" in text
    assert "  out = F.scaled_dot_product_attention(q, k, v)" in lines
    places = [n for n, line in enumerate(lines) if re.match("(chunked|sdpa|matmul) +[0-9]", line)]
    table = [re.split(r"\s{2,}", lines[n]) for n in places]
    assert table == [
        ["chunked", "0.500", "±2 %", "1.00×", "1.00", "use this"],
        ["sdpa", "1.00", "±2 %", "2.00×", "1.00"],
        ["matmul", "4.00", "±2 %", "8.00×", "1.00"],
    ]
    assert "Faster, but not exact: linear.elu, 5.00× as fast, 70" in text
    assert f"inverted is wrong on b1 h2/2 n64 d64 f32 none forward: {MARKUP}" in lines
    assert any(line.startswith("1 of 8 timings were noisy · differences under 5") for line in lines)
    assert "Report: /box/index.html" in lines
    assert lines[-1] == "Next:   attnbench compare chunked sdpa --seq 256 --heads 2 --mask none"


SIZES = {
    "one variant at one length": [timed("sdpa")],
    "nothing exact": [runs.other("linear.elu", 1e-4)],
    "nothing measured": [untimed("einsum", Status.OUT_OF_MEMORY)],
    "eight regimes": runs.many(40, (64, 128, 256, 512, 1024, 2048), ("forward", "train", "decode")),
    "long names and markup": runs.crowd(60),
    "faults": [
        timed("sdpa"),
        *(untimed(f"v{n}", Status.WRONG, "so it is " * 99) for n in range(9)),
    ],
}


@pytest.mark.parametrize("records", SIZES.values(), ids=SIZES)
def test_the_screen_is_25_lines_of_100_columns_whatever_the_run(shown, records):
    lines = screen(shown, records)
    assert 2 <= len(lines) <= view.LINES
    assert max(len(x) for x in lines if not x.startswith("Next:")) <= view.WIDTH
    assert not any(line.strip() == "Traceback" for line in lines)
