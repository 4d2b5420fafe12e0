"""A run's tables: a word wherever a number is missing, and texts shown as they are."""

import re

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
