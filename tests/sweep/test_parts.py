"""Grids that are the union of several: their problems, one by one, and what a run keeps of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import impls
from attnbench.core import machine
from attnbench.core.machine import Gpu
from attnbench.core.record import Record, Status
from attnbench.sweep import start
from attnbench.sweep.plan import make_plan, problems
from attnbench.sweep.presets import PRESETS, Preset
from impls.loading import load_file
from tests.sweep.build import BOX, row, table

HERE = Path(__file__).parent
runs = load_file(HERE.parent / "report" / "page" / "runs.py")
H200 = replace(
    BOX,
    name="nvidia-h200",
    cores=16,
    torch_cuda="13.0",
    compiler="/usr/bin/g++",
    gpus=(Gpu("NVIDIA H200", "GPU-1", 9.0, 150_754_820_096, "580.159"),),
)
A = Preset("a", seq=("64", "128"), tokens=256, phase=("forward",), heads=(2,), head_dim=(8,))
BOTH = Preset("both", parts=(A, A.with_(seq=("128",), phase=("forward", "train"))), budget=0.1)


def shapes(grid):
    return [(p.phase, p.batch, p.kv_len) for p in problems(grid)]


def test_as_many_tokens_a_batch_is_a_batch_for_each_length():
    assert shapes(A) == [("forward", 4, 64), ("forward", 2, 128)]
    longer = A.with_(seq=("100", "512"))
    assert shapes(longer) == [("forward", 2, 100), ("forward", 1, 512)]


def test_the_variants_of_a_problem_that_two_parts_have_are_side_by_side_and_measured_once():
    few = A.with_(seq=("128",), variants=("a",))
    grid = Preset("g", parts=(few, A))
    cells = make_plan(table(row("a"), row("b")), (), grid, BOX).cells
    assert [(c.variant.name, c.problem.kv_len) for c in cells] == [
        ("a", 128),
        ("b", 128),
        ("a", 64),
        ("b", 64),
    ]


def test_on_a_gpu_what_torch_compiles_comes_after_all_else():
    cells = make_plan(impls.table(), (), PRESETS["h200-quick"], H200).to_run
    compiled = ["c++" in cell.variant.requires for cell in cells]
    assert compiled == sorted(compiled)
    assert 8 <= sum(compiled) < len(compiled) / 4
    assert all(cell.guess_s > 8 for cell in cells[-sum(compiled) :])
    on_cpu = make_plan(table(row("a", requires=("c++",)), row("b")), (), BOTH, BOX).cells
    assert [cell.variant.name for cell in on_cpu][:2] == ["a", "b"]


def test_what_the_command_line_changes_is_changed_in_every_part():
    assert shapes(BOTH.with_(seq=("32",))) == [
        ("forward", 8, 32),
        ("forward", 8, 32),
        ("train", 8, 32),
    ]
    assert {p.batch for p in problems(BOTH.with_(batch=(3,)))} == {3}
    assert {p.device for p in problems(BOTH.with_(device="cuda"))} == {"cuda"}
    assert {part.budget for part in BOTH.with_(budget=0.5).products} == {0.5}
    assert BOTH.with_(seq=None, budget=None) == BOTH


@pytest.mark.parametrize("name", PRESETS)
def test_a_grid_comes_back_from_a_header_as_it_was(name):
    grid = PRESETS[name]
    assert Preset.from_dict(json.loads(json.dumps(asdict(grid)))) == grid


def test_a_run_over_parts_is_resumed_with_the_cells_that_are_left(tmp_path):
    begun = start.begin(("einsum",), BOTH, (), tmp_path, seed=0, threads=1)
    first = begun.plan.cells[0]
    begun.folder.append(Record.of(first.variant, first.problem, Status.FAILED, "it has one"))
    begun.folder.close()
    again = start.resume(begun.folder.path)
    again.folder.close()
    assert [c.key for c in again.plan.cells] == [c.key for c in begun.plan.cells]
    assert [c.key in again.done for c in again.plan.cells] == [True, False, False]


# ---- in a report ---------------------------------------------------------------------------------


# ---- a visit -------------------------------------------------------------------------------------

HEAD = [("forward", 64, 512), ("forward", 16, 2048), ("forward", 4, 8192), ("forward", 1, 32768)]


def asked(name):
    return list(dict.fromkeys(problems(PRESETS[name])))


def test_a_visit_begins_with_what_is_asked_most():
    first = [(p.phase, p.batch, p.kv_len) for p in asked("h200")[:10]]
    train = [("train", batch, length) for _, batch, length in HEAD]
    assert first == [*HEAD, *train, ("decode", 1, 8192), ("decode", 1, 131072)]
    assert {(str(p.mask), p.head_dim, p.dtype) for p in asked("h200")[:10]} == {
        ("causal", 128, "bfloat16")
    }


@pytest.mark.parametrize(("name", "minutes"), [("h200", 15), ("h200-quick", 5)])
def test_by_the_plans_guesses_a_visit_fits_on_a_made_up_h200(monkeypatch, name, minutes):
    there = {"torch": "2.11.0", "triton": "3.6.0", "transformers": "5.17.0"}
    monkeypatch.setattr(machine, "version_of", there.get)
    monkeypatch.setenv("CC", "cc")
    plan = make_plan(impls.table(), (), PRESETS[name], H200)
    assert 0.5 * 60 * minutes < sum(c.guess_s for c in plan.to_run) < 60 * minutes
    assert len({c.variant.family for c in plan.to_run}) >= 5
