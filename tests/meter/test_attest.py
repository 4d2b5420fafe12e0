"""A backend that was forced is the backend that ran, or the record says otherwise."""

from dataclasses import replace

import pytest
import torch

import impls
from attnbench.gate.inputs import make
from attnbench.meter.audit import chosen, unattested
from attnbench.meter.memory import observe
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import COMPILED, Variant

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
ENTRY = "aten::scaled_dot_product_attention"
TABLE = impls.table()


def observed(row, **changes):
    """One call of a row, as the memory meter sees it."""
    some = {"heads": 2, "kv_heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 8, "v_head_dim": 8}
    problem = Problem(level=row.level, **{**some, **changes})
    attend = load_function(row.build)(problem, **row.chosen)
    dout = torch.ones(problem.output_shape, dtype=getattr(torch, problem.dtype))
    return observe(problem, attend, make(problem, 0), dout, None)


PLAIN = Variant(name="a", title="", family="dense", computes="softmax", build="a:b")


def forced(operator):
    return replace(PLAIN, runs={"cpu": operator, "cuda": "aten::on_a_gpu"})


MANY = {f"aten::op{n}" for n in range(6)}


@pytest.mark.parametrize(
    ("row", "device", "ran", "said"),
    [
        (forced(FLASH), "cpu", {ENTRY, MATH, "aten::bmm"}, f"it should run {FLASH} and ran {MATH}"),
        (forced(FLASH), "cpu", {ENTRY, FLASH, "aten::empty"}, None),
        (forced(FLASH), "cpu", {f"{FLASH}_backward"}, f"and ran {FLASH}_backward"),
        (forced(FLASH[:-8]), "cpu", {FLASH}, f"it should run {FLASH[:-8]} and ran {FLASH}"),
        (forced(COMPILED), "cpu", {f"{COMPILED}: 3/1"}, None),
        (forced(COMPILED), "cpu", {"aten::bmm"}, "and ran aten::bmm"),
        (forced(FLASH), "cuda:1", {"aten::on_a_gpu"}, None),
        (forced(FLASH), "cuda:1", {FLASH}, "it should run aten::on_a_gpu and ran"),
        (PLAIN, "cpu", (), None),
        (forced(FLASH), "cpu", (), "and ran no operator of torch's"),
        (forced(FLASH), "cpu", MANY, "aten::op0, aten::op1, aten::op2, aten::op3 and 2 others"),
    ],
)
def test_another_operator_than_the_one_forced_is_named_beside_it(row, device, ran, said):
    found = unattested(row, device, ran)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("name", "device", "ran", "said"),
    [
        ("sdpa", "cuda", "cudnn_attention", "torch chose cuDNN ("),
        ("sdpa", "cuda", "flash_attention", "torch chose FlashAttention-2 ("),
        ("sdpa", "cuda", "flash_attention_backward", ""),
        ("sdpa", "cpu", "flash_attention_for_cpu", ""),
        ("sdpa.cudnn", "cuda", "cudnn_attention", ""),
    ],
)
def test_a_record_says_what_torch_chose_where_nothing_was_forced(name, device, ran, said):
    operator = f"aten::_scaled_dot_product_{ran}"
    found = chosen(TABLE.find(name), device, {ENTRY, operator, "aten::mul"})
    assert found == (f"{said}{operator})" if said else "")


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("sdpa.flash", FLASH),
        ("mha?core=sdpa.math", MATH),
        ("mha.native?fastpath=true", "aten::_native_multi_head_attention"),
        ("block.native?fastpath=true", "aten::_transformer_encoder_layer_fwd"),
        pytest.param("flex", COMPILED, marks=pytest.mark.slow),
        pytest.param("mha?core=compiled", COMPILED, marks=pytest.mark.slow),
    ],
)
def test_the_operator_that_a_row_names_is_seen_on_the_cpu(text, operator):
    row = TABLE.find(text)
    assert row.attested_by("cpu") == operator
    assert unattested(row, "cpu", observed(row).ran) is None
    if text == "sdpa.flash":  # a row whose code lets another backend run is found out
        lying = replace(row, build="impls.dense.sdpa:build_math")
        said = unattested(lying, "cpu", observed(lying).ran)
        assert said == f"it should run {FLASH} and ran {MATH}"


def test_every_row_that_says_it_forces_a_backend_says_which_and_that_exists():
    for name, row in TABLE.rows.items():
        assert " forced" not in row.title or all(row.attested_by(d) for d in row.devices), name
        for operator in row.runs.values():
            space, _, call = operator.partition("::")
            assert space != "aten" or hasattr(torch.ops.aten, call), name
