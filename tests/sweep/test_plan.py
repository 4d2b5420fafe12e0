"""The plan: which cells there are, which are left out and why, and what can't be planned."""

from dataclasses import replace

import pytest

import impls
from attnbench.core.machine import Gpu
from attnbench.core.record import Status
from attnbench.sweep.plan import make_plan, problems
from attnbench.sweep.presets import PRESETS
from impls.problem import InvalidProblem
from tests.sweep.build import BOX, PLAIN, plan, row

GPU = Gpu(name="g", uuid="u", capability=9.0, memory_bytes=1 << 37, driver="1")


# ---- the combinations ----------------------------------------------------------------------------


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


def test_a_length_is_one_query_where_it_decodes():
    made = list(problems(PLAIN.with_(seq=("64",), phase=("decode", "forward"))))
    assert [(p.phase, p.q_len, p.kv_len) for p in made] == [
        ("decode", 1, 64),
        ("forward", 64, 64),
    ]


@pytest.mark.parametrize("text", ["4x64", "4X64"])
def test_queries_x_keys_says_both_in_every_phase(text):
    made = problems(PLAIN.with_(seq=(text,), phase=("decode", "forward"), mask=("none",)))
    assert [(p.q_len, p.kv_len) for p in made] == [(4, 64), (4, 64)]


@pytest.mark.parametrize("text", ["", "4x", "1x2x3", "four", "-4", "²", "0", "4x0"])
def test_a_length_that_is_none_is_refused(text):
    with pytest.raises(InvalidProblem) as caught:
        list(problems(PLAIN.with_(seq=(text,))))
    assert "--seq" in str(caught.value) or "_len is 0" in str(caught.value)


# ---- the cells -----------------------------------------------------------------------------------


def test_a_problem_asked_for_twice_is_measured_once():
    made = plan(row("a"), seq=("16", "16", "16x16"), heads=(2, 2))
    assert len(made.cells) == 1


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"phases": ("forward",)}, "train"),
        ({"dtypes": ("float64",)}, "float32"),
        ({"masks": ("none",)}, "causal"),
        ({"gqa": False}, "grouped-query"),
        ({"value_dim": False}, "v_head_dim"),
        ({"head_dims": (128, 256)}, "head_dim 128 to 256"),
        ({"cross": False}, "q_len equal to kv_len"),
    ],
)
def test_what_a_row_does_not_take_is_left_out_as_unsupported(limits, word):
    (cell,) = plan(
        row("a", **limits),
        seq=("8x16",),
        heads=(4,),
        kv_heads=(2,),
        v_head_dim=(32,),
        phase=("train",),
    ).cells
    assert cell.left_out.status is Status.UNSUPPORTED
    assert "a " in cell.left_out.reason
    assert word in cell.left_out.reason
    assert cell.left_out.key == cell.key
    assert cell.guess_s == 0


@pytest.mark.parametrize(
    "needs", [{"devices": ("cuda",)}, {"requires": ("no-such-thing>=1",)}, {"requires": ("c++",)}]
)
def test_what_the_machine_lacks_is_left_out_as_unavailable_with_a_remedy(needs):
    (cell,) = plan(row("a", **needs)).cells
    assert cell.left_out.status is Status.UNAVAILABLE
    assert cell.left_out.reason
    assert cell.left_out.remedy


def test_a_row_of_another_level_that_was_asked_for_is_not_dropped_in_silence():
    deep = row("deep", level="layer", definition="some.module:definition")
    made = plan(deep, row("a"), names=["deep", "a"], level=("core",))
    (left,) = [c.left_out for c in made.cells if c.variant.name == "deep"]
    assert left.status is Status.UNSUPPORTED
    assert "level layer" in left.reason


def test_the_levels_are_those_of_the_variants_named_and_else_core():
    deep = row("deep", level="layer", definition="some.module:definition")
    both = plan(deep, row("a"), names=["deep", "a"])
    assert {(c.variant.name, c.problem.level) for c in both.to_run} == {
        ("deep", "layer"),
        ("a", "core"),
    }
    assert {c.variant.name for c in plan(deep, row("a")).cells} == {"a"}
    everything = plan(deep, row("a"), level=("core", "layer", "block"))
    assert {c.variant.name for c in everything.to_run} == {"deep", "a"}


# ---- the sentence --------------------------------------------------------------------------------


def test_the_sentence_says_what_is_left_out_and_why():
    rows = [
        row("a"),
        *(row(f"c{n}", devices=("cuda",)) for n in range(2)),
        *(row(f"d{n}", phases=("train",)) for n in range(3)),
    ]
    text = plan(*rows, seq=("16", "32")).sentence()
    assert text.startswith("2 cells: 1 variant on 2 problems; 10 left out (")
    assert "2 × " in text
    assert "; 4 more)" in text  # five reasons twice, three of them told
    assert " more)" not in plan(*rows[:3]).sentence()


# ---- presets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "cuda", "check", "h200", "million"])
def test_a_preset_can_be_planned_where_its_device_is(name):
    here = replace(BOX, gpus=(GPU,), torch_cuda="13.0", compiler="/usr/bin/g++")
    made = make_plan(impls.table(), [], PRESETS[name], here)
    assert made.to_run
