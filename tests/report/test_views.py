"""Tables on a terminal: a run, its screen, the machine, a map, variants, a check; plain texts."""

import re
from functools import partial
from pathlib import Path

import pytest

from attnbench.core.record import FINDINGS, Determinism, Status
from attnbench.features.run import view as results
from attnbench.features.selfcheck import view as selfcheck
from attnbench.features.show import view
from attnbench.report.tables import BAD, FAINT, PIPED
from impls import BrokenRow
from impls.masks import Mask
from impls.spec import Variant
from tests.report.page import runs
from tests.report.page.runs import at, error, timed, untimed

MARKUP = "[red]x[/] and [/nope] and [batch, heads]"
CPU = {"mhz": 2600.0, "governor": "performance", "load_1min": 1.5, "load_5min": 0.25}
FACTS = {
    "machine": {**runs.MACHINE, "compiler": None},
    "settings": {"threads": 1, "environment": {"A": "1"}},
    "observed": {"cpu": CPU, "gpus": []},
    "ceilings": {"flops": {"float32": 1e11}, "copy": {str(2 << 20): 5e10}},
    "noise": [{"call_s": 0.002, "floor": 0.004, "apart": 0.011, "trials": 20, "pairs": 160.0}],
}


def test_each_fact_of_a_machine_has_its_line(shown):
    gpu = {"uuid": "GPU-1", "sm_mhz": 1980, "power_w": "the driver doesn't say its power: MIG"}
    gpu |= {"mig": False, "held_down_by": []}
    text = shown(view.show_env, {**FACTS, "observed": {"cpu": CPU, "gpus": [gpu]}})
    noise = "0.4\u00a0% (20 comparisons of a variant with itself, of 160 pairs"
    told = "uuid GPU-1, sm mhz 1980, power w the driver doesn't say its power: MIG, mig no, "
    told += "held down by nothing"
    text = re.sub(r"\n +", " ", text)
    for said in ("2 cores, 25 GiB", "100 GFLOP/s", "50.0 GB/s", "2600 MHz", noise, told):
        assert said in text


def test_a_map_has_a_row_and_a_column_for_each_word_and_keeps_every_weight(shown):
    words = ["the", "[", "cat", "the"]
    weights = [[0.1 * r + 0.01 * c for c in range(4)] for r in range(4)]
    head, *lines = shown(view.show, words, weights).splitlines()
    assert head.split() == words
    for line, word, row_of in zip(lines, words, weights, strict=False):
        assert line.split() == [word, *(f"{w:.2f}" for w in row_of)]
    assert "nan" in shown(view.show, ["a"], [[None]])


def test_variants_show_their_texts_as_they_are(shown):
    plain = {"name": "x", "title": MARKUP, "family": MARKUP, "operator": "softmax", "build": "a:b"}
    marked = Variant(**plain, paper=MARKUP, origin=MARKUP, options={"way": MARKUP})
    broken = BrokenRow("y[0]", MARKUP, "mend it")
    listed = shown(partial(view.table, why=True), [(marked, MARKUP, MARKUP)], [broken])
    assert listed.count(MARKUP) == 4
    text = shown(view.show_variant, marked, f"out = {MARKUP}", MARKUP, "pip 'a[b]'")
    assert text.count(MARKUP) >= 7 and f"no: {MARKUP} → pip 'a[b]'" in text


def test_a_check_counts_what_was_right_and_shows_what_was_not_with_its_reason(shown):
    bits = Determinism(repeats=False, batch=None, place=None, mode_repeats=None, mode_cost=None)
    right = [timed("a"), timed("a", 1e-3, 128, error=error(1.0, ratio=3.5))]
    (line,) = (x for x in shown(selfcheck.show_check, right).splitlines() if x.startswith("a "))
    assert line.split() == ["a", "2", "of", "2", "3.50×", "plain"]
    wrong = untimed("a", Status.WRONG, MARKUP, at(128))
    text = shown(selfcheck.show_check, [timed("a"), wrong, untimed("b", "unavailable", MARKUP)])
    assert "1 of 2" in text and "none forward float32" in text and text.count(MARKUP) == 2
    text = shown(selfcheck.show_check, [timed("a", determinism=bits)])
    assert "not over repeats, across batches not tried" in text


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


def test_nothing_is_cut_off_where_there_is_no_terminal(shown):
    lengths = [2**n for n in range(4, 20)]
    records = [timed("a.long.name", 1.2345 * n, at(n)) for n in lengths]
    text = shown(results.show_results, records, width=PIPED)
    assert "…" not in text and all(f"{1234.5 * n:,.0f} ±2.0" in text for n in lengths)
    reason = " ".join(f"[word {n}]" for n in range(60))
    bad = untimed("b", Status.FAILED, reason, remedy=reason)
    lines = shown(results.show_results, [timed("a"), bad], width=PIPED).splitlines()
    assert max(map(len, lines)) <= 120
    assert f"{reason} → {reason}" in " ".join(" ".join(lines).split())


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


def test_the_one_to_use_has_a_row_though_many_that_tie_are_faster(shown):
    ties = [timed(f"v{n}", (1 + n / 4000) * 1e-3) for n in range(40)]
    rows = [line for line in screen(shown, [*ties, timed("sdpa", 1.02e-3)]) if "×" in line]
    assert [line.split()[0] for line in rows if line.rstrip().endswith("use this")] == ["sdpa"]


def test_what_ties_by_its_interval_though_its_median_is_far_is_said_truly(shown):
    far = [timed("sdpa", 1e-3, spread=0.2), timed("matmul", 1.34e-3, spread=0.2)]
    text = "\n".join(screen(shown, far))
    assert "1.34×" in text and "tied" in text
    assert "intervals less than 5\u00a0% apart count as ties" in text and "differences" not in text


@pytest.mark.parametrize(("cells", "said"), [(2, 0), (5, 2)])
def test_of_a_run_that_did_not_come_to_its_end_all_is_so_far(shown, cells, said):
    run = runs.ran([timed("sdpa"), timed("matmul", 2e-3)], cells=cells)
    assert shown(results.show_answer, run, "3 min", None).count(" so far") == said


def test_a_slow_host_is_said_and_is_no_noise(shown):
    slow = "launch-bound: 35 µs by events, 78 µs from end to end"
    records = [timed("sdpa", flags=[slow]), timed("matmul", 2e-3)]
    lines = screen(shown, records)
    assert any(line.startswith("0 of 2 timings were noisy") for line in lines)
    (row,) = (line for line in lines if line.startswith("forward") and "sdpa" in line)
    assert row.split()[-1] == "1.00"
    said = shown(results.show_results, records)
    assert "launch-bound: sdpa on" in said and "! launch-bound" not in said
