"""Cells of a report: numbers, order and commands, the cards, and what the page holds packed."""

import base64
import json
import re
import shlex
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

import impls
from attnbench.command import arguments
from attnbench.core.record import Ranks
from attnbench.features.report import page as html
from attnbench.features.report.cells import (
    NAMED,
    PageCell,
    cards,
    cells_of,
    packed,
    repeats,
    summarize,
)
from attnbench.report.figures.style import looks
from attnbench.report.scenes import ReportRun, scenes
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import PRESETS
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import Problem

runs = load_file(Path(__file__).with_name("runs.py"))
timed, at = runs.timed, runs.at

PROBLEMS = [
    Problem(),
    Problem(batch=3, heads=8, kv_heads=2, q_len=100, kv_len=512, head_dim=48, v_head_dim=32),
    Problem(q_len=1, kv_len=4096, phase="decode", mask=Mask.parse("causal")),
    Problem(q_len=4, kv_len=4096, phase="decode"),
    Problem(q_len=64, kv_len=64, phase="decode"),
    Problem(q_len=1, kv_len=1),
    Problem(dtype="bfloat16", mask=Mask.parse("causal+document:100,156"), phase="train",
            inputs="outliers", device="cuda:1"),
    Problem(level="layer", mask=Mask.parse("window:31,0"), phase="backward"),
]  # fmt: skip


def asked(command):
    """The variants, the problems and the rest that a command line asks for."""
    words = shlex.split(command)
    assert words[0] == "attnbench"
    given = arguments.parser().parse_args(words[1:])
    grid = PRESETS["cpu"].with_(**arguments.grid_changes(given))
    levels = grid.level or tuple(impls.table().find(name).level for name in given.variants)
    return given, list(problems(grid, levels))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_command_asks_for_the_same_problem_again(problem):
    variant = "mha" if problem.level == "layer" else "performer?features=128"
    given, found = asked(repeats(runs.timed(variant, 1e-3, problem), {}))
    assert found == [problem]
    assert given.verb == "run" and given.variants == [variant]


def test_the_command_says_what_else_the_run_was_told():
    header = {
        "settings": {"threads": 3},
        "budget_s": 0.25,
        "energy": True,
        "tables": ["my rows.py"],
    }
    ranks = Ranks(world=2, time_s=[1.0, 1.0], peak_bytes=[1, 1], sent_bytes=[1, 1], backend="gloo")
    given, _ = asked(repeats(runs.timed("ring", 1e-3, ranks=ranks, seed=5), header))
    assert (given.threads, given.budget, given.energy, given.seed) == (3, 0.25, True, 5)
    assert given.table == ["my rows.py"] and given.world == 2


def test_a_budget_that_the_device_has_anyway_is_left_out():
    record = runs.timed("sdpa", 1e-3)
    assert "--budget" not in repeats(record, {"budget_s": PRESETS["cpu"].budget})


def test_each_cell_knows_its_line_its_ratios_and_its_units(small_contents):
    cells = cells_of(small_contents)
    assert [cell.number for cell in cells] == list(range(len(cells)))
    assert [cell.line for cell in cells[:3]] == [1, 2, 3]
    matmul = next(c for c in cells if c.record.variant == "matmul" and c.length == 128)
    assert matmul.to_best == pytest.approx(1.6) == matmul.to_baseline
    assert matmul.units == {
        "ms": "3.20",
        "tflops": "0.00262",
        "share": "42\u00a0%",
        "baseline": "1.60×",
    }
    assert matmul.kept == "100\u00a0%"


def test_what_is_exact_is_listed_before_what_is_not_and_the_untimed_last(small_contents):
    first = sorted(cells_of(small_contents), key=lambda cell: cell.order)[:6]
    assert {c.length for c in first} == {256} and {c.record.problem.phase for c in first} == {
        "train"
    }
    names = [c.record.variant for c in first]
    assert names == ["sdpa", "matmul", "window?size=8", runs.MARKUP, "sdpa.efficient", "einsum"]


def test_a_cell_without_a_time_has_no_numbers_to_show(small_contents):
    cell = next(c for c in cells_of(small_contents) if c.record.variant == "einsum")
    assert set(cell.units.values()) == {"–"}
    assert (cell.to_best, cell.error, cell.kept, cell.status) == (None, None, "–", "out of memory")


def test_what_knows_less_than_nothing_keeps_less_than_nothing():
    record = runs.timed("gla", 1e-3, computes="its own operator", distance=runs.far(-143.0))
    cell = PageCell(0, record, None, 1, None, None, None, None)
    assert cell.kept == "< 0"


def unpacked(word):
    return json.loads(zlib.decompress(base64.b64decode(word)))


def test_every_record_is_there_without_its_samples(small_contents):
    cells = cells_of(small_contents)
    held = unpacked(packed(small_contents, cells))["cells"]
    assert len(held) == len(cells)
    for cell in cells:
        told = held[str(cell.number)]
        assert told["line"] == cell.line
        assert told["file"] == "../records.jsonl"
        assert told["repeat"].startswith("attnbench run ")
        assert told["record"]["variant"] == cell.record.variant
        assert "samples_s" not in (told["record"]["time"] or {})
    assert held["0"]["record"]["time"]["median_s"] == cells[0].record.time.median_s
    error = replace(cells[0], record=cells[0].record.with_(share_of_ceiling=1 / 3))
    assert '"share_of_ceiling":0.3333333,' in json.dumps(
        unpacked(packed(small_contents, [error])), separators=(",", ":")
    )


def test_a_record_is_told_in_a_line_for_people(small_contents):
    cells = {(c.record.variant, c.length): c for c in cells_of(small_contents)}
    assert summarize(cells["sdpa", 64]).replace("\N{NON-BREAKING HYPHEN}", "-") == (
        "3.00 ms [2.94, 3.06] · 9 samples, stopped by its budget · peak 256 KiB · worst error 2e-7"
    )
    told = summarize(cells["einsum", 256])
    assert told.startswith("out of memory: ") and "samples" not in told


def test_doubts_about_a_record_are_told(small_contents):
    cell = cells_of(small_contents)[0]
    time = cell.record.time.with_(flags=["drifted: much", "contended"], n=1, stop="plateau")
    told = summarize(replace(cell, record=cell.record.with_(time=time)))
    assert "1 sample, stopped when its interval narrowed no more" in told
    assert told.endswith("in doubt: drifted: much; contended")


def test_every_figures_numbers_are_there(small_contents):
    held = unpacked(packed(small_contents, []))["csv"]
    assert held == {figure.name: figure.csv for figure in small_contents.figures}
    assert held


def test_figures_in_other_units_are_packed_and_the_first_of_each_is_on_the_page(small_contents):
    held = unpacked(packed(small_contents, []))["svg"]
    by_unit = {
        unit: {f.name: f.inline for f in small_contents.figures if f.unit == unit}
        for unit in ("", "ms", "tflops", "share", "baseline")
    }
    assert all(by_unit.values())
    assert held == by_unit["tflops"] | by_unit["share"] | by_unit["baseline"]
    page = html.render(small_contents)
    assert all(svg in page for svg in (by_unit[""] | by_unit["ms"]).values())


def test_of_very_many_cells_only_those_that_the_page_shows_are_held(small_contents, monkeypatch):
    monkeypatch.setattr(html, "MOST", 1)
    page = html.render(small_contents)
    held = unpacked(page.split('id="blob">')[1].split("<")[0])["cells"]
    linked = set(re.findall(r'href="#cell=(\d+)"', page))
    assert linked == set(held)
    assert 1 < len(held) < len(cells_of(small_contents))


@pytest.fixture
def rows():
    """The rows of the one card of these records."""

    def made(*records):
        run = ReportRun(0, Path("box/run"), runs.HEADER, records, range(1, len(records) + 1))
        found, look = scenes([run]), looks(records)
        cells = [
            PageCell(n, r, run, n + 1, None, look[r.variant], None, None)
            for n, r in enumerate(records)
        ]
        (card,) = cards(found, look, cells)
        return card.rows

    return made


def inexact(variant, median, skill, **more):
    distance = None if skill is None else runs.far(skill)
    return timed(variant, median, computes="approximates softmax", distance=distance, **more)


def test_the_longest_lengths_come_first_and_alike_ones_are_one_row(rows):
    found = rows(
        timed("sdpa", 1e-3, at(64)),
        timed("matmul", 2e-3, at(64)),
        timed("sdpa", 2e-3, at(128)),
        timed("matmul", 4e-3, at(128)),
        timed("sdpa", 9e-3, at(256)),
        timed("matmul", 4e-3, at(256)),
    )
    assert [row.stretch.span for row in found] == ["256", "64 to 128"]
    assert [row.winner.variant for row in found] == ["matmul", "sdpa"]
    assert [row.badges for row in found] == [[("clear", "clear")]] * 2
    assert found[0].lead == "2.25× [2.16, 2.34] faster than sdpa"


def test_of_many_that_tie_some_are_named_and_the_rest_is_counted(rows):
    (row,) = rows(*(timed(f"v{n}", 1e-3) for n in range(NAMED + 3)))
    assert row.winner.variant == "v0"
    assert [cell.record.variant for cell in row.tied] == [f"v{n + 1}" for n in range(NAMED)]
    assert row.more == 2
    assert row.badges == [("tie", f"a tie of {NAMED + 3}")]
    assert row.lead == "none that is exact is slower for sure"


def test_one_doubtful_length_makes_its_stretch_doubtful(rows):
    busy = ["contended"]
    (row,) = rows(
        timed("sdpa", 1e-3, at(64), flags=busy),
        timed("matmul", 2e-3, at(64), flags=busy),
        timed("sdpa", 2e-3, at(128)),
        timed("matmul", 4e-3, at(128)),
    )
    assert row.badges == [("doubt", "in doubt")]
    assert "sdpa" in row.doubts


def test_a_tie_that_is_in_doubt_is_called_both(rows):
    (row,) = rows(timed("sdpa", 1e-3, flags=["drifted: much"]), timed("matmul", 1e-3))
    assert row.badges == [("tie", "a tie of 2"), ("doubt", "in doubt")]


def test_doubts_beyond_a_few_are_counted(rows):
    (row,) = rows(*(timed(f"v{n}", 1e-3, flags=["contended"]) for n in range(5)))
    assert row.doubts.count("; ") == 3 and row.doubts.endswith("; 2 more")


@pytest.mark.parametrize(
    ("others", "before", "name", "after"),
    [
        ({"near": (2e-3, 0.7), "poor": (1e-3, 0.1)}, "Faster, but not exact:", "near",
         "2.00× as fast, keeps 70\u00a0% (approximates softmax)"),
        ({"poor": (1e-3, 0.1), "worse": (1e-3, -9.0)}, "keeps half", "poor",
         "4.00× as fast, keeps 10\u00a0%"),
        ({"unknown": (1e-3, None)}, "not measured", "unknown", "4.00× as fast"),
    ],
)  # fmt: skip
def test_what_is_faster_is_named_with_what_it_keeps(rows, others, before, name, after):
    (row,) = rows(timed("sdpa", 4e-3), *(inexact(v, *values) for v, values in others.items()))
    assert before in row.beside.before and row.other.variant == name
    assert row.beside.after.startswith(after)


def test_where_nothing_is_faster_that_is_said(rows):
    (row,) = rows(timed("sdpa", 1e-3), inexact("slow", 2e-3, 0.9))
    assert row.other is None and "is faster" in row.beside.before
    assert row.badges == [("only", "the only one")]
    assert row.lead == "nothing exact beside it"


def test_without_anything_exact_nothing_is_ranked(rows):
    (row,) = rows(inexact("near", 2e-3, 0.7))
    assert (row.winner, row.badges, row.lead, row.memory) == (None, (), "", "")
    assert row.beside is None


def test_what_needs_far_less_memory_is_named(rows):
    large = timed("matmul", 1e-3).memory
    small = type(large)(peak_bytes=1 << 20, saved_bytes=0, expected_bytes=None, method="m")
    large = type(large)(peak_bytes=8 << 20, saved_bytes=0, expected_bytes=None, method="m")
    (row,) = rows(timed("matmul", 1e-3, memory=large), timed("sdpa", 2e-3, memory=small))
    assert row.memory == "8 MiB (sdpa: 1 MiB at 2.00× the time)"
