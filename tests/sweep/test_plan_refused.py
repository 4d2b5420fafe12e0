"""What can't be planned is a sentence; captured inputs that fit, and those that don't."""

import gc
import warnings

import numpy as np
import pytest

from impls import UnknownVariant
from impls.problem import InvalidProblem
from impls.spec import InvalidRow
from tests.sweep.build import plan, row

# ---- what can't be planned -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"heads": (4,), "kv_heads": (3,)}, ["heads=4", "kv_heads=3", "1, 2, 4"]),
        ({"head_dim": (0,)}, ["head_dim is 0"]),
        ({"batch": (0,)}, ["batch is 0"]),
        ({"v_head_dim": (-1,)}, ["v_head_dim is -1"]),
        ({"dtype": ("int8",)}, ["int8", "float32, bfloat16"]),
        ({"phase": ("sideways",)}, ["sideways", "forward, train"]),
        ({"inputs": ("odd",)}, ["odd", "normal, peaky"]),
        ({"device": "tpu"}, ["tpu", "cpu, cuda"]),
        ({"device": "cuda"}, ["device cuda is not here", "--device cpu", "there is no GPU"]),
        ({"mask": ("document:4,4",)}, ["add up to 8", "16"]),
        ({"mask": ("padding:99",)}, ["kv_len=16"]),
        ({"mask": ("padding:1,2,3",)}, ["batch of 1"]),
        ({"inputs": ("captured:/no/such.npz",)}, ["/no/such.npz"]),
    ],
)
def test_a_grid_that_can_not_be_is_a_sentence(grid, words):
    with pytest.raises(InvalidProblem) as caught:
        plan(row("a"), **grid)
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_variant_or_option_is_a_sentence():
    with pytest.raises(UnknownVariant, match="did you mean chunked"):
        plan(row("chunked"), names=["chunkd"])
    with pytest.raises(InvalidRow, match="has no option 'blok'"):
        plan(row("chunked", options={"block": 4}), names=["chunked?blok=3"])
    with pytest.raises(InvalidRow, match="'many' is not int"):
        plan(row("chunked", options={"block": 4}), names=["chunked?block=many"])


# ---- captured inputs -----------------------------------------------------------------------------

SHAPES = {"q": (1, 4, 16, 8), "k": (1, 2, 16, 8), "v": (1, 2, 16, 24)}
FITTING = {"heads": (4,), "kv_heads": (2,), "head_dim": (8,), "v_head_dim": (24,)}


def captured(file, **shapes):
    np.savez(file, **{name: np.zeros(shape) for name, shape in {**SHAPES, **shapes}.items()})
    return {"inputs": (f"captured:{file}",), **FITTING}


def test_captured_inputs_that_fit_are_planned(tmp_path):
    (only,) = plan(row("a"), **captured(tmp_path / "x.npz")).to_run
    assert only.problem.inputs == f"captured:{tmp_path / 'x.npz'}"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("q", (1, 4, 17, 8)), ("k", (1, 4, 16, 8)), ("v", (1, 2, 16, 8)), ("q", (4, 16, 8))],
)
def test_captured_inputs_of_another_shape_are_a_sentence(tmp_path, name, shape):
    with pytest.raises(InvalidProblem) as caught:
        plan(row("a"), **captured(tmp_path / "x.npz", **{name: shape}))
    said = str(caught.value)
    assert f"{name} has the shape {shape}" in said
    assert f"needs {SHAPES[name]}" in said
    assert "x.npz" in said


def broken_files(folder):
    whole = folder / "whole.npz"
    captured(whole)
    np.savez(folder / "no_q.npz", k=np.zeros(3))
    np.save(folder / "array.npy", np.zeros(SHAPES["q"]))
    (folder / "cut.npz").write_bytes(whole.read_bytes()[:200])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("no arrays here")
    (folder / "folder.npz").mkdir()


@pytest.mark.parametrize(
    "name", ["no_q.npz", "array.npy", "cut.npz", "empty.npz", "text.npz", "folder.npz"]
)
def test_captured_inputs_that_can_not_be_read_are_a_sentence(tmp_path, name):
    broken_files(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # NumPy leaves a broken .npz open
        with pytest.raises(InvalidProblem, match=r"can't be read as an \.npz of q, k and v"):
            plan(row("a"), inputs=(f"captured:{tmp_path / name}",), **FITTING)
        gc.collect()
