"""Dense rows that the cells of test_gate_cells leave out."""

import pytest
import torch

from impls.problem import Problem
from tests.impls.small import made, problem, verdict


@pytest.mark.parametrize(
    ("dtype", "right", "over"), [("float32", 88, 89), ("bfloat16", 88, 89), ("float16", 11, 12)]
)
def test_naive_exponentials_overflow_just_where_they_say(dtype, right, over):
    given = Problem(heads=1, kv_heads=1, q_len=1, kv_len=1, head_dim=1, v_head_dim=1, dtype=dtype)
    attend, _ = made("exp.naive", given)
    one = torch.ones(1, 1, 1, 1, dtype=getattr(torch, dtype))
    assert attend(one * right, one, one).item() == 1.0
    assert not attend(one * over, one, one).isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mask", ["causal+alibi", "padding:0,11"])
def test_compiled_is_exact_forward_and_backward(mask):
    asked = problem(mask, 17, dtype="float32", phase="train")
    verdict("compiled", asked)  # the compiler starts a thread, as in a cell before its gate
    assert verdict("compiled", asked).reason is None
