"""Rows of a report: numbers in words, their order, and the command that repeats a cell."""

import shlex
from pathlib import Path

import pytest

import impls
from attnbench.command import arguments
from attnbench.core.record import Ranks, Record
from attnbench.features.report import table
from attnbench.features.report.table import repeats
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import PRESETS
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import Problem

runs = load_file(Path(__file__).with_name("runs.py"))

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
    cells = table.cells(small_contents)
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
    first = table.in_order(table.cells(small_contents))[:6]
    assert {c.length for c in first} == {256} and {c.record.problem.phase for c in first} == {
        "train"
    }
    names = [c.record.variant for c in first]
    assert names == ["sdpa", "matmul", "window?size=8", runs.MARKUP, "sdpa.efficient", "einsum"]


def test_a_cell_without_a_time_has_no_numbers_to_show(small_contents):
    cell = next(c for c in table.cells(small_contents) if c.record.variant == "einsum")
    assert set(cell.units.values()) == {"–"}
    assert (cell.to_best, cell.error, cell.kept, cell.status) == (None, None, "–", "out of memory")


def test_what_knows_less_than_nothing_keeps_less_than_nothing():
    record = runs.timed("gla", 1e-3, computes="its own operator", distance=runs.far(-143.0))
    assert isinstance(record, Record)
    cell = table.PageCell(0, record, None, 1, None, None, None, None)
    assert cell.kept == "< 0"
