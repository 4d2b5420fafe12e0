"""The plan: which cells there are, which are left out and why, and what can't be planned."""

import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest

import impls
from attnbench.core import machine
from attnbench.core.record import Status
from attnbench.sweep.plan import make_plan, problems
from attnbench.sweep.presets import PRESETS, Preset
from impls.problem import InvalidProblem
from tests.machines import BOX, WITH_GPU
from tests.sweep.build import PLAIN, plan, row

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


def test_torchs_own_come_first_but_among_variants_that_are_named():
    grid = Preset("a grid", seq=("32",), phase=("forward",))
    first = [c.variant.origin for c in make_plan(impls.table(), (), grid, BOX).cells]
    assert first == sorted(first, key=lambda origin: origin != "torch") and len(set(first)) > 1
    named = make_plan(impls.table(), ("matmul", "sdpa"), grid, BOX).cells
    assert [c.variant.name for c in named] == ["matmul", "sdpa"]


@pytest.mark.parametrize(("name", "minutes"), [("h200", 20), ("h200-quick", 5.5)])
def test_by_the_plans_guesses_a_visit_fits_on_a_made_up_h200(monkeypatch, name, minutes):
    there = {"torch": "2.11.0", "triton": "3.6.0", "transformers": "5.17.0"}
    monkeypatch.setattr(machine, "version_of", there.get)
    monkeypatch.setenv("CC", "cc")
    cells = make_plan(impls.table(), (), PRESETS[name], H200).to_run
    assert 0.5 * 60 * minutes < sum(c.guess_s for c in cells) < 60 * minutes
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
