"""The dense variants and the mean, against softmax attention as a plain loop in float64."""

from functools import cache
from pathlib import Path

import pytest
import torch

from impls.loading import load_file, load_function
from impls.problem import Problem
from impls.spec import DTYPES, MASK_KINDS, Unsupported

cases = load_file(Path(__file__).with_name("dense_cases.py"))
TABLE, NAMES, EXACT, TRAINED, CASES, MASKS, built, problem_of, seen_and_bias, tensors = (
    getattr(cases, name)
    for name in (
        "TABLE",
        "NAMES",
        "EXACT",
        "TRAINED",
        "CASES",
        "MASKS",
        "built",
        "problem_of",
        "seen_and_bias",
        "tensors",
    )
)

ADDED = {"alibi", "bias"}
"""The kinds of mask that add numbers to scores: mean_v, which has none, doesn't take them."""
LOW = ("float32", "bfloat16", "float16")
FORWARD_ERROR = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}
GRADIENT_ERROR = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 4e-2, "float16": 4e-3}


# ---- the truth -----------------------------------------------------------------------------------


@cache
def truth(brute, case, dtype, exact, spread=1.0):
    """The output by the loops of conftest, from the rounded inputs."""
    q, k, v, _ = (x.double().numpy() for x in tensors(case, dtype, spread))
    seen, bias = seen_and_bias(brute, case)
    if not exact:
        return brute.mean(v, seen)
    return brute.attention(q, k, v, seen, bias, q.shape[-1] ** -0.5)


@cache
def true_gradients(brute, case, dtype, exact):
    """dq, dk, dv by autograd through the plain formula, all matrices written out."""
    *inputs, above = (x.double().clone() for x in tensors(case, dtype))
    q, k, v = (x.requires_grad_() for x in inputs)
    seen, bias = map(torch.from_numpy, seen_and_bias(brute, case))
    blind = ~seen.any(-1, keepdim=True)
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if exact:
        scores = torch.einsum("bhnd,bhmd->bhnm", q, keys) / q.shape[-1] ** 0.5
        scores = scores + bias.masked_fill(~seen, 0.0)
        weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
    else:
        weights = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)
    out = torch.einsum("bhnm,bhme->bhne", weights.masked_fill(blind, 0.0), values)
    return torch.autograd.grad(out, inputs, above, materialize_grads=True)


def error(ours, true, least=0.0):
    """Relative Frobenius error; what is truly zero is compared with ``least``."""
    ours, true = (torch.as_tensor(x).double() for x in (ours, true))
    assert ours.shape == true.shape
    size = max(float(true.norm()), least)
    away = float((ours - true).norm())
    return away / size if size else away


def taken(name, case, dtype="float64"):
    """The cases that this row is asked: all, but for what its own limits exclude."""
    row, changes = TABLE.find(name), CASES[case].changes
    if dtype not in row.on("cpu", "dtypes"):
        return False
    if not {kind for kind, _ in CASES[case].conditions} <= set(row.on("cpu", "masks")):
        return False
    same_width = changes.get("head_dim", 8) == changes.get("v_head_dim", 8)
    return row.value_dim or same_width


def asked(names, cases, dtypes=("float64",)):
    chosen = [
        (name, case, dtype)
        for dtype in dtypes
        for name in names
        for case in cases
        if taken(name, case, dtype)
    ]
    return pytest.mark.parametrize(
        ("name", "case", "dtype"), chosen, ids=["-".join(c) for c in chosen]
    )


# ---- outputs and gradients -----------------------------------------------------------------------


def test_every_row_takes_every_mask_on_the_cpu():
    for name in NAMES:
        taken = TABLE.find(name).on("cpu", "masks")
        assert taken == tuple(m for m in MASK_KINDS if name != "mean_v" or m not in ADDED)


def test_only_the_known_rows_refuse_a_dtype_a_width_or_gradients_on_the_cpu():
    rows = [TABLE.rows[name] for name in NAMES if "?" not in name]
    assert {r.name for r in rows if r.on("cpu", "dtypes") != DTYPES} == {"numpy"}
    assert {r.name for r in rows if not r.value_dim} == {"sdpa.flash"}
    assert {r.name for r in rows if "train" not in r.on("cpu", "phases")} == {"numpy", "inplace"}
    assert all(r.gqa and r.cross and r.head_dims is None for r in rows)


def check_forward(brute, name, case, dtype):
    exact = TABLE.find(name).exact
    attend = built(name, problem_of(brute, case, dtype))
    q, k, v, _ = tensors(case, dtype)
    out = attend(q, k, v)
    assert (out.dtype, out.device) == (q.dtype, q.device)
    assert error(out, truth(brute, case, dtype, exact)) <= FORWARD_ERROR[dtype]
    blind = torch.from_numpy(~seen_and_bias(brute, case)[0].any(-1))
    assert not out[blind].any(), "a row that sees nothing gives zeros"


@asked(NAMES, CASES)
def test_the_output_is_that_of_the_plain_loop(brute, name, case, dtype):
    check_forward(brute, name, case, dtype)


@asked(NAMES, MASKS, LOW)
def test_the_output_in_a_low_precision_is_near_that_of_the_plain_loop(brute, name, case, dtype):
    check_forward(brute, name, case, dtype)


def check_gradients(brute, name, case, dtype):
    exact = TABLE.find(name).exact
    attend = built(name, problem_of(brute, case, dtype, phase="train"))
    *inputs, above = (x.clone() for x in tensors(case, dtype))
    out = attend(*(x.requires_grad_() for x in inputs))
    gradients = torch.autograd.grad(out, inputs, above, materialize_grads=True)
    trues = true_gradients(brute, case, dtype, exact)
    least = 0.1 * float(above.double().norm())
    for which, ours, true in zip("qkv", gradients, trues, strict=True):
        assert ours.isfinite().all(), f"d{which} is not finite"
        assert error(ours, true, least) <= GRADIENT_ERROR[dtype], f"d{which}"


@asked(TRAINED, CASES)
def test_the_gradients_are_those_of_the_plain_formula(brute, name, case, dtype):
    check_gradients(brute, name, case, dtype)


@asked(TRAINED, MASKS, LOW)
def test_the_gradients_in_a_low_precision_are_near_those_of_the_plain_formula(
    brute, name, case, dtype
):
    check_gradients(brute, name, case, dtype)


@asked([n for n in EXACT if n != "exp.naive"], ["none", "causal", "padding", "causal+alibi"])
def test_logits_in_the_hundreds_are_exact_all_the_same(brute, name, case, dtype):
    q, k, v, _ = tensors(case, dtype, 12.0)
    assert (q @ k.mT * 8**-0.5).abs().max() > 300
    out = built(name, problem_of(brute, case, dtype))(q, k, v)
    assert error(out, truth(brute, case, dtype, True, 12.0)) <= FORWARD_ERROR[dtype]


@pytest.mark.parametrize("name", [n for n in TRAINED if TABLE.find(n).exact])
@pytest.mark.parametrize("case", ["padding", "causal-long-q", "bias", "dense", "every-row-blind"])
def test_what_flows_into_a_row_that_sees_nothing_goes_nowhere(brute, name, case):
    problem = problem_of(brute, case, phase="train")
    blind = torch.from_numpy(~seen_and_bias(brute, case)[0].any(-1))
    assert blind.any()
    *inputs, above = (x.clone() for x in tensors(case))
    out = built(name, problem)(*(x.requires_grad_() for x in inputs))
    only_blind = torch.where(blind[..., None], above, 0.0)
    for gradient in torch.autograd.grad(out, inputs, only_blind, materialize_grads=True):
        assert not gradient.any()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_laid_out_otherwise_give_the_same_and_are_left_alone(brute, name):
    case = "padding-grouped"
    q, k, v, _ = tensors(case)
    laid = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not laid[0].is_contiguous()
    out = built(name, problem_of(brute, case))(*laid)
    assert error(out, truth(brute, case, "float64", TABLE.find(name).exact)) <= 1e-12
    assert all(torch.equal(x, y) for x, y in zip(laid, (q, k, v), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_built_once_serves_fresh_values_again_and_again(brute, name):
    case = "causal+bias+alibi" if taken(name, "causal+bias+alibi") else "causal"
    attend, exact = built(name, problem_of(brute, case)), TABLE.find(name).exact
    q, k, v, _ = tensors(case)
    attend(k.clone(), v.clone(), q.clone())
    first = attend(q, k, v)
    kept = first.clone()
    attend(v.clone(), q.clone(), k.clone())
    assert torch.equal(first, kept), "a later call wrote into an earlier output"
    assert error(kept, truth(brute, case, "float64", exact)) <= 1e-12


@asked(NAMES, ["none", "causal+alibi", "causal", "padding-one-kv-head", "one-query"])
def test_decoding_is_the_forward_pass(brute, name, case, dtype):
    problem = problem_of(brute, case, phase="decode")
    out = built(name, problem)(*tensors(case)[:3])
    assert error(out, truth(brute, case, "float64", TABLE.find(name).exact)) <= 1e-12


# ---- what each is known for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "right", "over"), [("float32", 88, 89), ("bfloat16", 88, 89), ("float16", 11, 12)]
)
def test_naive_exponentials_overflow_just_where_they_say(dtype, right, over):
    problem = Problem(heads=1, kv_heads=1, q_len=1, kv_len=1, head_dim=1, v_head_dim=1, dtype=dtype)
    attend = built("exp.naive", problem)
    one = torch.ones(1, 1, 1, 1, dtype=getattr(torch, dtype))
    assert attend(one * right, one, one).item() == 1.0
    assert not attend(one * over, one, one).isfinite().all()


def test_naive_exponentials_overflow_with_logits_in_the_hundreds(brute):
    q, k, v, _ = tensors("none", "float32", 12.0)
    assert (q @ k.mT * 8**-0.5).max() > 300
    naive = built("exp.naive", problem_of(brute, "none", "float32"))(q, k, v)
    matmul = built("matmul", problem_of(brute, "none", "float32"))(q, k, v)
    assert not naive.isfinite().all()
    assert matmul.isfinite().all()


BLOCKS = [1, 3, 64, 1000]
CUT = ["none", "causal", "window", "padding-grouped", "bias", "alibi-long-q"]


@pytest.mark.parametrize("case", CUT)
@pytest.mark.parametrize("q_block", BLOCKS)
@pytest.mark.parametrize("k_block", BLOCKS)
def test_online_is_the_same_whatever_its_blocks(brute, case, q_block, k_block):
    row = TABLE.find(f"online?q_block={q_block}&k_block={k_block}")
    out = load_function(row.build)(problem_of(brute, case), **row.chosen)(*tensors(case)[:3])
    assert error(out, truth(brute, case, "float64", True)) <= 1e-13


@pytest.mark.parametrize("case", CUT)
@pytest.mark.parametrize("block", BLOCKS)
def test_chunked_is_the_same_whatever_its_block(brute, case, block):
    out = built(f"chunked?block={block}", problem_of(brute, case))(*tensors(case)[:3])
    assert error(out, truth(brute, case, "float64", True)) <= 1e-13


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chunked?block=0", "block=0 must be 1 or more"),
        ("chunked?block=-3", "block=-3 must be 1 or more"),
        ("online?q_block=0", "q_block=0 and k_block=512 must be 1 or more"),
        ("online?k_block=0", "q_block=512 and k_block=0 must be 1 or more"),
    ],
)
def test_a_block_of_nothing_is_unsupported_with_a_sentence(name, says):
    with pytest.raises(Unsupported, match=says):
        built(name, Problem())


@asked(["mean_v"], CASES)
def test_the_definition_of_mean_v_is_the_mean_of_the_visible_values(brute, name, case, dtype):
    q, k, v, _ = tensors(case)
    rows = torch.arange(q.shape[2]).flip(0)[:3]
    true = truth(brute, case, dtype, False)[:, :, rows.numpy()]
    define = load_function(TABLE.rows[name].definition)(problem_of(brute, case))
    assert error(define(q, k, v, rows), true) <= 1e-13


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("case", ["none", "causal+alibi-grouped", "padding", "bias"])
def test_compiled_is_exact_forward_and_backward(brute, case):
    check_forward(brute, "compiled", case, "float32")
    check_gradients(brute, "compiled", case, "float32")
