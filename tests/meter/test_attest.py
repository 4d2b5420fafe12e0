"""A backend that was forced is the backend that ran, or the record says otherwise."""

import json
import re

import pytest
import torch

import impls
from attnbench.gate.inputs import make
from attnbench.meter import memory
from attnbench.meter.audit import chosen, unattested
from attnbench.meter.memory import observe
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import COMPILED, Variant

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
ENTRY = "aten::scaled_dot_product_attention"
FORCED = [
    ("sdpa.flash", FLASH), ("sdpa.math", MATH),
    ("mha?core=sdpa.flash", FLASH), ("mha?core=sdpa.math", MATH),
    ("mha.native?fastpath=true", "aten::_native_multi_head_attention"),
    ("block.native?fastpath=true", "aten::_transformer_encoder_layer_fwd"),
]  # fmt: skip
TABLE = impls.table()


def observed(row, **changes):
    """One call of a row, as the memory meter sees it."""
    some = {"heads": 2, "kv_heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 8, "v_head_dim": 8}
    problem = Problem(level=row.level, **{**some, **changes})
    attend = load_function(row.build)(problem, **row.chosen)
    dout = torch.ones(problem.output_shape, dtype=getattr(torch, problem.dtype))
    return observe(problem, attend, make(problem, 0), dout, None)


def forced(operator, name="some.row", **more):
    return Variant(
        name=name,
        title="a row",
        family="dense",
        computes="softmax",
        build="impls.dense.sdpa:build",
        runs={"cpu": operator, "cuda": "aten::on_a_gpu"},
        **more,
    )


# ---- what is said --------------------------------------------------------------------------------


def test_another_backend_than_the_one_forced_is_named_beside_it():
    said = unattested(forced(FLASH), "cpu", {ENTRY, MATH, "aten::bmm", "aten::softmax"})
    assert said == f"it should run {FLASH} and ran {MATH}"


def test_the_backend_forced_among_others_is_enough():
    assert unattested(forced(FLASH), "cpu", {ENTRY, FLASH, "aten::empty"}) is None


def test_the_gradient_of_a_backend_does_not_stand_for_it():
    said = unattested(forced(FLASH), "cpu", {f"{FLASH}_backward", MATH})
    assert said == f"it should run {FLASH} and ran {MATH}"


def test_a_name_that_only_begins_alike_is_another_operator():
    row = forced("aten::_scaled_dot_product_flash_attention")
    assert unattested(row, "cpu", {FLASH}) == f"it should run {FLASH[:-8]} and ran {FLASH}"


def test_the_number_of_a_compiled_region_does_not_matter():
    assert unattested(forced(COMPILED), "cpu", {f"{COMPILED}: 3/1"}) is None
    assert unattested(forced(COMPILED), "cpu", {"aten::bmm"}) is not None


def test_each_device_has_its_own_operator():
    row = forced(FLASH)
    assert unattested(row, "cuda:1", {"aten::on_a_gpu"}) is None
    assert unattested(row, "cuda:1", {FLASH}) == f"it should run aten::on_a_gpu and ran {FLASH}"


def test_a_row_that_forces_nothing_may_run_anything():
    plain = Variant(name="a", title="", family="dense", computes="softmax", build="a:b")
    assert unattested(plain, "cpu", ()) is None


def test_where_nothing_ran_or_nothing_of_attention_that_is_said():
    assert unattested(forced(FLASH), "cpu", ()).endswith("and ran no operator of torch's")
    many = {f"aten::op{n}" for n in range(6)}
    said = unattested(forced(FLASH), "cpu", many)
    assert said.endswith("and ran aten::op0, aten::op1, aten::op2, aten::op3 and 2 others")


# ---- what is seen --------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "operator"), FORCED)
def test_the_operator_that_a_row_names_is_seen_on_the_cpu(text, operator):
    row = TABLE.find(text)
    assert row.attested_by("cpu") == operator
    ran = observed(row).ran
    assert operator in ran
    assert unattested(row, "cpu", ran) is None


@pytest.mark.parametrize("name", ["sdpa.flash", "sdpa.math"])
@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "train"},
        {"phase": "backward"},
        {"dtype": "bfloat16"},
        {"dtype": "float64"},
        {"kv_heads": 1},
        {"phase": "decode", "q_len": 1},
        {"mask": Mask.parse("causal+alibi")},
        {"mask": Mask.parse("window:3,0")},
    ],
    ids=str,
)
def test_it_is_seen_in_every_phase_dtype_and_mask(name, changes):
    row = TABLE.find(name)
    assert unattested(row, "cpu", observed(row, **changes).ran) is None


@pytest.mark.parametrize(("name", "other"), [("sdpa.flash", MATH), ("sdpa.math", FLASH)])
def test_a_row_whose_code_lets_another_backend_run_is_found_out(name, other):
    code = "build_math" if name == "sdpa.flash" else "build_flash"
    lying = Variant.from_dict({**TABLE.find(name).to_dict(), "build": f"impls.dense.sdpa:{code}"})
    said = unattested(lying, "cpu", observed(lying).ran)
    assert said == f"it should run {lying.attested_by('cpu')} and ran {other}"


def test_the_fast_path_is_asked_for_only_where_the_option_says_so():
    assert TABLE.find("mha.native").attested_by("cpu") is None
    assert TABLE.find("block.native?norm=post").attested_by("cuda") is None


@pytest.mark.slow
@pytest.mark.parametrize("text", ["compiled", "flex", "window.flex", "mha?core=compiled"])
def test_compiled_code_is_seen(text):
    row = TABLE.find(text)
    mask = Mask.parse("window:8,0")
    assert unattested(row, "cpu", observed(row, mask=mask).ran) is None


def test_all_operators_are_kept_though_few_are_shown(monkeypatch):
    monkeypatch.setattr(memory, "MOST_KERNELS", 1)
    seen = observed(TABLE.find("sdpa.flash"), phase="train")
    assert len(seen.kernels) == 1
    assert {FLASH, f"{FLASH}_backward", "aten::empty"} <= seen.ran


def test_what_the_profiler_says_besides_operators_is_no_operator():
    ran = observed(TABLE.find("sdpa.flash"), phase="train").ran
    assert all(re.fullmatch(r"\w+::\w+", name) for name in ran)


# ---- the table -----------------------------------------------------------------------------------


def test_every_row_that_says_it_forces_a_backend_says_which():
    silent = [
        name
        for name, row in TABLE.rows.items()
        if " forced" in row.title and not all(row.attested_by(d) for d in row.devices)
    ]
    assert silent == []


def test_every_operator_of_torchs_that_a_row_names_exists():
    for name, row in TABLE.rows.items():
        for operator in row.runs.values():
            space, _, call = operator.partition("::")
            assert space != "aten" or hasattr(torch.ops.aten, call), name


def test_what_a_row_names_travels():
    row = TABLE.find("mha.native?fastpath=true")
    read = Variant.from_dict(json.loads(json.dumps(row.to_dict())))
    assert read.attested_by("cpu") == "aten::_native_multi_head_attention"


@pytest.mark.parametrize(
    ("name", "device", "ran", "said"),
    [
        (
            "sdpa",
            "cuda",
            {ENTRY, "aten::_scaled_dot_product_cudnn_attention", "aten::mul"},
            "torch chose cuDNN (aten::_scaled_dot_product_cudnn_attention)",
        ),
        (
            "sdpa",
            "cuda",
            {
                "aten::_scaled_dot_product_flash_attention",
                "aten::_scaled_dot_product_flash_attention_backward",
            },
            "torch chose FlashAttention-2 (aten::_scaled_dot_product_flash_attention)",
        ),
        ("sdpa", "cuda", {"aten::bmm"}, ""),
        ("sdpa", "cpu", {FLASH}, ""),
        ("sdpa.cudnn", "cuda", {"aten::_scaled_dot_product_cudnn_attention"}, ""),
    ],
)
def test_a_record_says_what_torch_chose_where_nothing_was_forced(name, device, ran, said):
    assert chosen(TABLE.find(name), device, ran) == said
