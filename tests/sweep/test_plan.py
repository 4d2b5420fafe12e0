"""The plan: which cells there are, which are left out and why, and what can't be planned."""

import gc
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import impls
from attnbench.core import machine
from attnbench.core.record import Status
from attnbench.core.wire import convert, plain
from attnbench.sweep.plan import CPU_FLOPS, STARTING_S, call_s, checks_s, make_plan, problems
from attnbench.sweep.presets import PRESETS, Preset
from impls.problem import InvalidProblem
from tests.machines import BOX, WITH_GPU
from tests.sweep.build import PLAIN, plan, row, table

H200 = replace(WITH_GPU, name="nvidia-h200", cores=16, compiler="/usr/bin/g++")
TWO_GPUS = replace(WITH_GPU, gpus=WITH_GPU.gpus * 2)
GRID = Preset("a grid", seq=("32",), heads=(4,), phase=("forward",))


def test_every_combination_is_there_once():
    axes = {
        "seq": ("16", "32"),
        "batch": (1, 2),
        "kv_heads": (1, 2, 4),
        "head_dim": (8, 16),
        "dtype": ("float32", "float64"),
        "mask": ("none", "causal"),
        "phase": ("forward", "train"),
        "inputs": ("normal", "peaky"),
    }
    made = list(problems(PLAIN.with_(heads=(4,), **axes)))
    assert len(made) == len(set(made)) == 3 * 2**7
    for name, values in axes.items():
        own = "q_len" if name == "seq" else name
        assert {str(getattr(p, own)) for p in made} == {str(value) for value in values}
    assert len(plan(row("a"), seq=("16", "16", "16x16"), heads=(2, 2)).cells) == 1


@pytest.mark.parametrize(("seq", "lengths"), [("64", [(1, 64), (64, 64)]), ("4X64", [(4, 64)] * 2)])
def test_a_length_is_one_query_where_it_decodes_but_queries_x_keys_says_both(seq, lengths):
    made = problems(PLAIN.with_(seq=(seq,), phase=("decode", "forward"), mask=("none",)))
    assert [(p.q_len, p.kv_len) for p in made] == lengths


def test_what_a_row_does_not_take_is_left_out_as_unsupported():
    (cell,) = plan(row("a", phases=("forward",)), phase=("train",)).cells
    assert (cell.left_out.status, cell.left_out.key) == (Status.UNSUPPORTED, cell.key)
    assert cell.left_out.reason.startswith("a is for forward only")
    assert cell.guess_s == 0


def test_the_levels_are_those_of_the_variants_named_and_else_core():
    rows = row("deep", level="layer", definition="some.module:definition"), row("a")

    def levels(**more):
        return {(c.variant.name, c.problem.level) for c in plan(*rows, **more).to_run}

    assert levels(names=["deep", "a"]) == {("deep", "layer"), ("a", "core")}
    assert levels() == {("a", "core")}
    assert levels(level=("core", "layer", "block")) == {("deep", "layer"), ("a", "core")}
    deep, _ = plan(*rows, names=["deep", "a"], level=("core",)).cells
    assert deep.left_out.status is Status.UNSUPPORTED  # and not dropped in silence


def test_captured_inputs_that_can_not_be_read_are_a_sentence(tmp_path):
    file = tmp_path / "x.npz"
    shape = {"heads": (4,), "kv_heads": (2,), "head_dim": (8,), "v_head_dim": (24,)}
    grid = {"inputs": (f"captured:{file}",), **shape}
    np.savez(file, q=np.ones((1, 4, 16, 8)), k=np.ones((1, 2, 16, 8)), v=np.ones((1, 2, 16, 24)))
    assert len(plan(row("a"), **grid).to_run) == 1
    whole = file.read_bytes()
    np.savez(file, k=np.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # NumPy leaves a broken .npz open
        for data in (file.read_bytes(), b"", b"no arrays here", whole[:200]):
            file.write_bytes(data)
            with pytest.raises(InvalidProblem, match=r"can't be read as an \.npz of q, k and v"):
                plan(row("a"), **grid)
        gc.collect()


A = Preset("a", seq=("64", "128"), tokens=256, phase=("forward",), heads=(2,), head_dim=(8,))
BOTH = Preset("both", parts=(A, A.with_(seq=("128",), phase=("forward", "train"))), budget=0.1)


def shapes(grid):
    return [(p.phase, p.batch, p.kv_len) for p in problems(grid)]


def test_as_many_tokens_a_batch_is_a_batch_for_each_length():
    assert shapes(A) == [("forward", 4, 64), ("forward", 2, 128)]
    assert shapes(A.with_(seq=("100", "512"))) == [("forward", 2, 100), ("forward", 1, 512)]


def test_the_variants_of_a_problem_that_two_parts_have_are_side_by_side_and_measured_once():
    few = A.with_(seq=("128",), variants=("a",))
    cells = make_plan(table(row("a"), row("b")), (), Preset("g", parts=(few, A)), BOX).cells
    assert [f"{c.variant.name}{c.problem.kv_len}" for c in cells] == ["a128", "b128", "a64", "b64"]


def test_what_the_command_line_changes_is_changed_in_every_part():
    changed = BOTH.with_(seq=("32",))
    assert shapes(changed) == [("forward", 8, 32), ("forward", 8, 32), ("train", 8, 32)]
    assert {p.batch for p in problems(BOTH.with_(batch=(3,)))} == {3}
    assert PRESETS["check"].with_(heads=(1,)).kv_heads == ()  # as many as heads, whatever it had
    assert {p.device for p in problems(BOTH.with_(device="cuda"))} == {"cuda"}
    assert BOTH.with_(seq=None, budget=None) == BOTH


@pytest.mark.parametrize("grid", PRESETS.values(), ids=PRESETS)
def test_a_grid_comes_back_from_a_header_as_it_was(grid):
    assert convert(json.loads(json.dumps(plain(grid))), Preset) == grid


def test_torchs_own_come_first_but_among_variants_that_are_named():
    grid = Preset("a grid", seq=("32",), phase=("forward",))
    first = [c.variant.origin for c in make_plan(impls.table(), (), grid, BOX).cells]
    assert first == sorted(first, key=lambda origin: origin != "torch") and len(set(first)) > 1
    named = make_plan(impls.table(), ("matmul", "sdpa"), grid, BOX).cells
    assert [c.variant.name for c in named] == ["matmul", "sdpa"]


def test_what_takes_as_long_as_many_others_to_compile_comes_last_and_is_guessed_so(monkeypatch):
    monkeypatch.setattr("attnbench.sweep.plan.why_not", lambda row, machine: None)  # all is there
    cells = make_plan(impls.table(), [], PRESETS["h200"], H200).to_run
    slow = [bool({"c++", "fla-core>=0.6"} & set(c.variant.requires)) for c in cells]
    assert slow == sorted(slow)
    headline = {c.variant.name: c.guess_s for c in cells if c.problem == cells[0].problem}
    assert headline["sdpa"] < headline["matmul"] < headline["flex"] < headline["fla.gla"]
    assert headline["flash_attn2"] == headline["sdpa"]


def test_a_guess_is_the_work_at_a_threads_speed_and_what_is_compiled_takes_longer(monkeypatch):
    monkeypatch.setattr("attnbench.sweep.plan.pace", lambda: 2.0)  # a slow machine
    two = replace(BOX, cores=3)  # all but one measure
    grid = Preset("", seq=("64",), heads=(2,), phase=("forward", "train"))
    forward, train = problems(grid)
    flops = 2 * 64 * 64 * 2 * (forward.head_dim + forward.v_head_dim)
    assert call_s(forward, two) == pytest.approx(flops / CPU_FLOPS)
    assert call_s(train, two) == pytest.approx(3 * call_s(forward, two))
    rows = [impls.table().find(name) for name in ("sdpa", "compiled")]
    plain, compiled = (checks_s(row, train, two) for row in rows)
    assert plain == pytest.approx(2 * STARTING_S["cpu"] + 30 * call_s(train, two))
    assert compiled > 2 + plain
    unbudgeted = grid.with_(phase=("train",), budget=0.0)
    (cell,) = make_plan(impls.table(), ("sdpa",), unbudgeted, two).cells
    assert cell.guess_s < 0.5 * plain  # it is checked, and not timed


@pytest.mark.parametrize(("name", "minutes"), [("h200", 20), ("h200-quick", 5.5)])
def test_by_the_plans_guesses_a_visit_fits_on_a_made_up_h200(monkeypatch, name, minutes):
    there = {"torch": "2.11.0", "triton": "3.6.0", "transformers": "5.17.0"}
    monkeypatch.setattr(machine, "version_of", there.get)
    monkeypatch.setenv("CC", "cc")
    plan = make_plan(impls.table(), (), PRESETS[name], H200)
    assert 0.5 * 60 * minutes < sum(c.guess_s for c in plan.to_run) < 60 * minutes
    assert len({c.variant.family for c in plan.to_run}) >= 5


@pytest.mark.parametrize("name", ["h200", "h200-quick"])
def test_a_visit_asks_flex_attention_under_a_window(name):
    cells = make_plan(impls.table(), (), PRESETS[name], H200).cells
    asked = {(c.variant.name, str(c.problem.mask)) for c in cells}
    window = "window:1023,0"
    assert {("flex", "causal"), ("flex", window), ("window.flex", window)} <= asked


def test_without_a_world_those_rows_are_left_out_with_a_sentence():
    ring, sdpa = make_plan(impls.table(), ["ring", "sdpa"], GRID, TWO_GPUS).cells
    assert ring.left_out.status is Status.UNSUPPORTED
    assert ring.left_out.reason == "ring runs over several processes: ask for --world 2"
    assert (ring.guess_s, sdpa.left_out) == (0.0, None)


@pytest.mark.parametrize(
    ("names", "grid", "says"),
    [
        (["ring"], {"world": 5}, "has 4: use --world 4 at the most"),
        (["ring"], {"world": 3, "device": "cuda"}, "has 2: use --world 2 at the most"),
        (["sdpa", "einsum"], {"world": 2}, "says nothing of sdpa, einsum: each runs in one"),
    ],
)
def test_what_cannot_be_or_says_nothing_is_refused(names, grid, says):
    with pytest.raises(InvalidProblem, match=says):
        make_plan(impls.table(), names, GRID.with_(**grid), TWO_GPUS)


def test_the_pace_is_the_best_of_some_times_over_that_of_a_slow_machine(monkeypatch):
    ticks = iter([0, 9, 0, 2 * machine.SOURCE_S, 0, 7, 0, 8, 0, 9])
    monkeypatch.setattr(machine, "perf_counter", lambda: next(ticks))
    assert machine.pace.__wrapped__() == 2.0
