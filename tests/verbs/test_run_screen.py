"""What a run ends with on a terminal: the screen of its answers, or every record."""

import re
from pathlib import Path

import pytest

from attnbench.core.record import FINDINGS, Status
from attnbench.features.run import view as results
from attnbench.report.tables import BAD, FAINT
from impls.masks import Mask
from tests.report.page import runs
from tests.report.page.runs import at, timed, untimed

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


def test_results_give_the_median_and_its_interval_by_length(shown):
    times = (("a", 4e-3, 128), ("b", 2e-3, 128), ("a", 1e-3, 64), ("b", 8e-3, 64))
    text = shown(results.show_results, [timed(*each) for each in times])
    assert grid(text)[:3] == [
        ["variant", "64", "128"],
        ["a", "1.00 ±2.0", "4.00 ±2.0"],
        ["b", "8.00 ±2.0", "2.00 ±2.0"],
    ]
    assert "forward, no mask, float32, batch 1, 2 heads of 64, on cpu" in text


def test_a_status_stands_where_there_is_no_time_and_its_reason_below(shown):
    for status in (s for s in Status if s is not Status.MEASURED):
        bad = untimed("b", status, MARKUP, remedy="do this")
        text = shown(results.show_results, [timed("a"), bad])
        assert grid(text)[2][:2] == ["b", str(status)]
        where = "b on b1 h2/2 n64 d64 f32 none forward"
        assert f"{status}: {where}: {MARKUP} → do this" in text
        style = BAD if status in FINDINGS else FAINT
        assert results._time_cell(bad, None).style == style


def screen(shown, records):
    """The screen that a run of these records ends with, line by line."""
    page = Path("/box/index.html")
    return shown(results.show_answer, runs.ran(list(records)), "3 min", page).splitlines()


REASON = "so it is"
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
        *(untimed(f"v{n}", Status.WRONG, f"{REASON} " * 99) for n in range(9)),
    ],
}


@pytest.mark.parametrize("records", SIZES.values(), ids=SIZES)
def test_the_screen_is_25_lines_of_100_columns_whatever_the_run(shown, records):
    lines = [line for line in screen(shown, records) if REASON not in line]
    assert 2 <= len(lines) <= 25
    names = [str(r.variant) for r in records if len(str(r.variant)) > 80]
    free = ("Next:", "Report:", "  attend =", *names)  # which are never cut
    assert max(len(line) for line in lines if not line.startswith(free)) <= 100


@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_is_to_be_copied_is_never_cut_and_a_long_name_of_a_machine_makes_room(shown, width):
    cpu, page = (
        "x86 processor " * 5 + "of a long name",
        Path(f"/{'deep and spaced/' * 12}index.html"),
    )
    machine = {"cpu": cpu, "cores": 1, "memory_bytes": 1 << 33, "versions": {"torch": "2.13.0+cpu"}}
    faulty = "matmul?" + "&".join(f"option{n}={n}" for n in range(9))
    reason = " ".join(f"w{n}" for n in range(99)) + " /path" * 30
    fast = "sdpa?" + "&".join(f"option{n}={n}" for n in range(9))
    records = [timed(fast), timed("matmul", 2e-3), untimed(faulty, Status.WRONG, reason)]
    text = shown(
        results.show_answer, runs.ran(records, machine=machine), "3 min", page, width=width
    )
    lines, words = text.splitlines(), " ".join(text.split())
    assert f"Report: {page}" in lines and f'attend = attnbench.attention("{fast}")' in text
    assert any(
        line.startswith(f"Next:   attnbench compare '{fast}' matmul --seq") for line in lines
    )
    assert f"{faulty} is wrong on b1 h2/2 n64 d64 f32 none forward: {reason}" in words
    end = (
        ", 1 core · 3 min · torch 2.13.0+cpu · forward · no mask · float32 · batch 1, 2 heads of 64"
    )
    heading = words[: words.index(" The fastest")]
    assert heading.startswith("x86 pr") and heading.endswith(f"{end} · on cpu")
    assert len(heading) <= 120 and heading.count("…") == 1
    assert text.count("…") == 2  # and in the first table, where many names stand beside each other
