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


def ran_by(row):
    """The operators of one call of a row, as the memory meter sees it."""
    sizes = {"heads": 2, "kv_heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 8, "v_head_dim": 8}
    problem = Problem(level=row.level, **sizes)
    attend = load_function(row.build)(problem, **row.chosen)
    return observe(problem, attend, make(problem, 0), torch.ones(problem.output_shape), None).ran


PLAIN = Variant(name="a", title="", family="dense", computes="softmax", build="a:b")


def forced(operator):
    return replace(PLAIN, runs={"cpu": operator, "cuda": "aten::on_a_gpu"})


@pytest.mark.parametrize(
    ("row", "device", "ran", "said"),
    [
        (forced(FLASH), "cpu", {ENTRY, MATH, "aten::bmm"}, f"it should run {FLASH} and ran {MATH}"),
        (forced(FLASH), "cpu", {ENTRY, FLASH, "aten::empty"}, None),
        (forced(FLASH[:-8]), "cpu", {FLASH}, f"it should run {FLASH[:-8]} and ran {FLASH}"),
        (forced(COMPILED), "cpu", {f"{COMPILED}: 3/1"}, None),
        (forced(COMPILED), "cpu", {"aten::bmm"}, "and ran aten::bmm"),
        (forced(FLASH), "cuda:1", {"aten::on_a_gpu"}, None),
        (PLAIN, "cpu", (), None),
        (forced(FLASH), "cpu", (), "and ran no operator of torch's"),
    ],
)
def test_another_operator_than_the_one_forced_is_named_beside_it(row, device, ran, said):
    found = unattested(row, device, ran)
    assert found is None if said is None else said in found


def test_a_record_says_what_torch_chose_on_a_gpu_where_nothing_was_forced():
    ran = {ENTRY, cudnn := "aten::_scaled_dot_product_cudnn_attention", "aten::mul"}
    assert chosen(TABLE.find("sdpa"), "cuda", ran) == f"torch chose cuDNN ({cudnn})"
    assert chosen(TABLE.find("sdpa.cudnn"), "cuda", ran) == ""
    assert chosen(TABLE.find("sdpa"), "cpu", ran) == ""


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("sdpa.flash", FLASH),
        ("mha?core=sdpa.math", MATH),
        ("mha.native?fastpath=true", "aten::_native_multi_head_attention"),
        ("block.native?fastpath=true", "aten::_transformer_encoder_layer_fwd"),
        pytest.param("flex", COMPILED, marks=pytest.mark.slow),
    ],
)
def test_the_operator_that_a_row_names_is_seen_on_the_cpu(text, operator):
    row = TABLE.find(text)
    assert row.attested_by("cpu") == operator
    assert unattested(row, "cpu", ran_by(row)) is None
    if text == "sdpa.flash":  # a row whose code lets another backend run is found out
        lying = replace(row, build="impls.dense.sdpa:build_math")
        said = unattested(lying, "cpu", ran_by(lying))
        assert said == f"it should run {FLASH} and ran {MATH}"
