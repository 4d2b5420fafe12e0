"""The page: its cells' numbers, order and commands, its cards, and what it holds packed."""

import base64
import json
import re
import shlex
import zlib
from dataclasses import replace

import pytest

import impls
from attnbench.answer.paste import repeats
from attnbench.command import arguments
from attnbench.core.record import Ranks
from attnbench.features.report import page as html
from attnbench.features.report.contents import cells_of, pack, place
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import PRESETS
from impls.masks import Mask
from impls.problem import Problem
from tests.report.page import runs
from tests.report.page.runs import ran, timed


def asked(command):
    """The problems and the rest that a command line asks for."""
    given = arguments.parser().parse_args(shlex.split(command)[1:])
    grid = PRESETS["cpu"].products[0].with_(**arguments.grid_changes(given))
    levels = grid.level or tuple(impls.table().find(name).level for name in given.variants)
    return given, list(problems(grid, levels))


DOCUMENTS = {"mask": Mask.parse("causal+document:100,156"), "inputs": "outliers"}


@pytest.mark.parametrize(
    "problem",
    [
        Problem(batch=3, heads=8, kv_heads=2, q_len=100, kv_len=512, head_dim=48, v_head_dim=32),
        Problem(q_len=4, kv_len=4096, phase="decode", mask=Mask.parse("causal")),
        Problem(dtype="bfloat16", phase="train", device="cuda:1", **DOCUMENTS),
        Problem(level="layer", mask=Mask.parse("window:31,0"), phase="backward"),
    ],
)
def test_the_command_asks_for_the_same_problem_again(problem):
    variant = "mha" if problem.level == "layer" else "performer?features=128"
    given, found = asked(repeats(timed(variant, 1e-3, problem), {}))
    assert found == [problem] and (given.verb, given.variants) == ("run", [variant])


def test_the_command_says_what_else_the_run_was_told():
    header = {"settings": {"threads": 3}, "budget_s": 0.25, "energy": True, "tables": ["my rows"]}
    ranks = Ranks(world=2, time_s=[1.0, 1.0], peak_bytes=[1, 1], sent_bytes=[1, 1], backend="gloo")
    given, _ = asked(repeats(timed("ring", ranks=ranks, seed=5), header))
    assert (given.threads, given.budget, given.energy, given.seed) == (3, 0.25, True, 5)
    assert given.table == ["my rows"] and given.world == 2
    assert "--budget" not in repeats(timed("sdpa"), {"budget_s": PRESETS["cpu"].budget})


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, False), ({"allocator": "plain"}, False), ({"allocator": "kept"}, True)],
)
def test_a_run_with_freed_pages_kept_says_so_and_is_repeated_so(settings, kept):
    assert ("--allocator kept" in repeats(timed("sdpa"), {"settings": settings})) == kept
    assert ("freed pages kept" in ran([], settings=settings).machine_line) == kept


def test_each_cell_knows_its_line_its_ratios_its_units_and_its_place(filled):
    cells = cells_of(filled(runs.small()))
    assert [(cell.number, cell.line) for cell in cells[:3]] == [(0, 1), (1, 2), (2, 3)]
    matmul = [cell for cell in cells if cell.record.variant == "matmul"][1]  # at 128 tokens
    assert matmul.to_best == pytest.approx(1.6)
    units = {"ms": "3.20", "tflops": "0.00262", "share": "42\u00a0%"}
    assert (matmul.units, matmul.fidelity) == (units, "100\u00a0%")
    first = sorted(cells, key=place)[:6]
    problems = {(c.record.problem.kv_len, c.record.problem.phase) for c in first}
    assert problems == {(256, "train")}
    names = [c.record.variant for c in first]
    assert names == ["sdpa", "matmul", "window?size=8", runs.MARKUP, "sdpa.efficient", "einsum"]
    none = first[-1]
    assert set(none.units.values()) == {none.fidelity} == {"–"}
    assert (none.to_best, none.record.worst_error) == (None, None)
    less = replace(matmul, record=matmul.record.with_(distance=runs.far(-143.0)))
    assert less.fidelity == "< 0"


def test_what_its_host_alone_makes_slower_is_not_marked_as_noisy(filled):
    flags = {"a": ["launch-bound: 2.0x from end to end"], "b": ["drifting: much"], "c": []}
    page = html.render(filled([timed(name, 1e-3, flags=some) for name, some in flags.items()]))
    assert re.findall(r"<td>\[0\.980, 1\.02\](.*?)</td>", page) == ["", " ?", ""]


def unpacked(word):
    return json.loads(zlib.decompress(base64.b64decode(word)))


def test_every_record_is_there_without_its_samples_and_every_figures_numbers(filled, monkeypatch):
    contents = filled(runs.small())
    cells = cells_of(contents)
    held = unpacked(pack(contents, cells))
    assert len(held["cells"]) == len(cells)
    for cell in cells:
        told = held["cells"][str(cell.number)]
        assert (told["line"], told["file"]) == (cell.line, "../records.jsonl")
        assert told["record"]["variant"] == cell.record.variant
        assert "samples_s" not in (told["record"]["time"] or {})
    third = replace(cells[0], record=cells[0].record.with_(share_of_ceiling=1 / 3))
    (short,) = unpacked(pack(contents, [third]))["cells"].values()
    assert short["record"]["share_of_ceiling"] == 0.3333333
    looks = contents.looks
    about = held["panels"][str(looks["matmul"].number)]
    assert "softmax" in about["mathematics"]
    assert ["Needs", "torch alone"] in about["facts"]
    assert about["code"]["0"].splitlines()[1] == 'attend = attnbench.attention("matmul")'
    assert "mathematics" not in held["panels"][str(looks[runs.MARKUP].number)]
    monkeypatch.setattr(html, "MOST", 1)
    page = html.render(contents)
    held = unpacked(page.split('id="blob">')[1].split("<")[0])["cells"]
    assert set(re.findall(r'href="#cell=(\d+)"', page)) == set(held)
    assert 1 < len(held) < len(cells)
