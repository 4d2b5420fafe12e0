"""The dense variants and the mean, against softmax attention as a plain loop in float64."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import impls
from impls import cost as costs
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem
from impls.spec import DTYPES, MASK_KINDS, Unsupported

ADDED = {"alibi", "bias"}
"""The kinds of mask that add numbers to scores: mean_v, which has none, doesn't take them."""

TABLE = impls.table()

# The rows, and the blocked ones again with blocks that cut the problems below.
ROWS = [row for row in TABLE.rows.values() if row.family == "dense" or row.name == "mean_v"]
NAMES = [row.name for row in ROWS if "cpu" in row.devices and row.name != "compiled"]
NAMES += ["chunked?block=5", "online?q_block=4&k_block=3"]
EXACT = [name for name in NAMES if TABLE.find(name).exact]
TRAINED = [name for name in NAMES if "train" in TABLE.find(name).on("cpu", "phases")]


# ---- problems ------------------------------------------------------------------------------------


def _bias(*extent, blind=False):
    table = np.random.default_rng(1).choice([-np.inf, 0.5, -1.25, 2.0], extent)
    if blind:
        table[..., 3, :] = -np.inf
    return table


def _dense(*extent):
    table = np.random.default_rng(2).random(extent) < 0.4
    table[..., 5, :] = False
    return table


@dataclass(frozen=True)
class Case:
    """The conditions of a mask, and where the problem differs from the ordinary one below."""

    conditions: tuple = ()
    upper_left: bool = False
    changes: dict = field(default_factory=dict)


ORDINARY = {
    "batch": 2, "heads": 4, "kv_heads": 4, "q_len": 17, "kv_len": 17, "head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip

CAUSAL, ALIBI, WINDOW, PREFIX = ("causal", ()), ("alibi", ()), ("window", (5, 2)), ("prefix", (9,))
BLIND = ("padding", (0, 11))
GROUPS = {"grouped": {"kv_heads": 2}, "one-kv-head": {"kv_heads": 1}}
LENGTHS = {"short-q": {"q_len": 5, "kv_len": 13}, "long-q": {"q_len": 13, "kv_len": 5}}

MASKS = {
    "none": Case(),
    "causal": Case((CAUSAL,)),
    "window": Case((WINDOW,)),
    "prefix": Case((PREFIX,)),
    "document": Case((("document", (5, 1, 11)),)),
    "padding": Case((BLIND,)),
    "alibi": Case((ALIBI,)),
    "causal+alibi": Case((CAUSAL, ALIBI)),
    "bias": Case((("bias", _bias(2, 4, 17, 17, blind=True)),)),
}
SHAPES = {
    "dense": Case((("dense", _dense(2, 1, 17, 17)),)),
    "dense-by-head": Case((("dense", _dense(4, 17, 17)),)),
    "bias-of-all": Case((("bias", _bias(17, 17, blind=True)),)),
    "bias-without-hiding": Case((("bias", np.linspace(-3, 3, 17)),)),
    "padding+window": Case((BLIND, WINDOW)),
    "causal+document+alibi": Case((CAUSAL, ("document", (6, 11)), ALIBI)),
    "causal+bias+alibi": Case((CAUSAL, ("bias", _bias(1, 4, 17, 17)), ALIBI)),
    **{
        f"{name}-{group}": Case(conditions, changes=changes)
        for group, changes in GROUPS.items()
        for name, conditions in {
            "none": (),
            "causal": (CAUSAL,),
            "padding": (BLIND,),
            "causal+alibi": (CAUSAL, ALIBI),
            "bias": (("bias", _bias(2, 4, 17, 17, blind=True)),),
            "dense": (("dense", _dense(2, 1, 17, 17)),),
        }.items()
    },
    **{
        f"{name}-{lengths}": Case(conditions, changes=changes)
        for lengths, changes in LENGTHS.items()
        for name, conditions in {
            "none": (),
            "causal": (CAUSAL,),
            "window": (("window", (2, 1)),),
            "prefix": (("prefix", (3,)),),
            "alibi": (ALIBI,),
            "causal+alibi": (CAUSAL, ALIBI),
        }.items()
    },
    "causal-upper-left-short-q": Case((CAUSAL,), True, LENGTHS["short-q"]),
    "causal-upper-left-long-q": Case((CAUSAL,), True, LENGTHS["long-q"]),
    "window-upper-left-long-q": Case((("window", (2, 1)), ALIBI), True, LENGTHS["long-q"]),
    "causal-long-q-grouped": Case((CAUSAL,), False, {**LENGTHS["long-q"], "kv_heads": 2}),
    "one-token": Case(changes={"q_len": 1, "kv_len": 1}),
    "one-token-causal-alibi": Case((CAUSAL, ALIBI), changes={"q_len": 1, "kv_len": 1}),
    "one-query": Case((CAUSAL,), changes={"q_len": 1, "kv_len": 29, "kv_heads": 2}),
    "one-element": Case((CAUSAL,), changes={"batch": 1}),
    "one-head": Case((ALIBI,), changes={"heads": 1, "kv_heads": 1}),
    "six-heads": Case((ALIBI,), changes={"heads": 6, "kv_heads": 3}),
    "odd-width": Case((CAUSAL,), changes={"head_dim": 7, "v_head_dim": 7}),
    "odd-length": Case((CAUSAL, ALIBI), changes={"q_len": 31, "kv_len": 31}),
    "narrow-values": Case((CAUSAL,), changes={"v_head_dim": 5}),
    "wide-values": Case((BLIND, ALIBI), changes={"v_head_dim": 11, "kv_heads": 2}),
    "every-row-blind": Case((("padding", (0,)),)),
}  # fmt: skip
CASES = {**MASKS, **SHAPES}


def problem_of(brute, case, dtype="float64", phase="forward"):
    mask = Mask.parse(_text(brute, case))
    return Problem(**{**ORDINARY, **CASES[case].changes}, dtype=dtype, mask=mask, phase=phase)


@cache
def _text(brute, case):
    return brute.text(CASES[case].conditions, CASES[case].upper_left)


@cache
def tensors(case, dtype="float64", spread=1.0):
    """q, k, v and the gradient from above, drawn once and rounded to the dtype."""
    extent = {**ORDINARY, **CASES[case].changes}
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = extent.values()
    generator = torch.Generator().manual_seed(sum(map(ord, case)))

    def draw(*shape):
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(getattr(torch, dtype))

    q = draw(batch, heads, q_len, head_dim) * spread
    k = draw(batch, kv_heads, kv_len, head_dim) * spread
    v = draw(batch, kv_heads, kv_len, v_head_dim)
    return q, k, v, draw(batch, heads, q_len, v_head_dim)


# ---- the truth -----------------------------------------------------------------------------------


@cache
def seen_and_bias(brute, case):
    extent = {**ORDINARY, **CASES[case].changes}
    shape = tuple(extent[n] for n in ("batch", "heads", "q_len", "kv_len"))
    world = CASES[case].conditions, shape, CASES[case].upper_left
    return brute.visible(*world), brute.bias(*world)


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


def built(name, problem):
    row = TABLE.find(name)
    assert row.supports(problem) is None
    return load_function(row.build)(problem, **row.chosen)


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


LOW = ("float32", "bfloat16", "float16")
FORWARD_ERROR = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}
GRADIENT_ERROR = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 4e-2, "float16": 4e-3}


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


# ---- what they cost ------------------------------------------------------------------------------

COUNTED = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "cross": {"q_len": 5},
    "values": {"v_head_dim": 24},
    "one": {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1},
}


@pytest.mark.parametrize("changes", COUNTED.values(), ids=COUNTED)
def test_flops_are_those_that_torch_counts_for_its_own_plain_form(changes):
    problem = Problem(**{**ORDINARY, **changes}, phase="train")
    q = torch.randn(problem.batch, problem.heads, problem.q_len, 8, requires_grad=True)
    k = torch.randn(problem.batch, problem.kv_heads, problem.kv_len, 8, requires_grad=True)
    v = torch.randn(problem.batch, problem.kv_heads, problem.kv_len, problem.v_head_dim)
    attend = built("sdpa.math", problem)
    with FlopCounterMode(display=False) as counter:
        out = attend(q, k, v.requires_grad_())
        forward = counter.get_total_flops()
        out.sum().backward()
    both = counter.get_total_flops()
    assert forward > 0
    assert costs.softmax(problem.with_(phase="forward")).flops == forward
    assert costs.softmax(problem.with_(phase="decode")).flops == forward
    assert costs.softmax(problem).flops == both == 3 * forward
    assert costs.softmax(problem.with_(phase="backward")).flops == both - forward


@pytest.mark.parametrize("phase, times", [("forward", 1), ("backward", 2), ("train", 3)])
@pytest.mark.parametrize("case", CASES)
def test_flops_are_four_d_for_each_pair_that_the_mask_lets_meet(brute, case, phase, times):
    problem = problem_of(brute, case, phase=phase)
    seen, _ = seen_and_bias(brute, case)
    each_pair = 2 * (problem.head_dim + problem.v_head_dim)
    assert costs.softmax(problem).flops == times * each_pair * sum(map(bool, seen.flat))


def test_the_flops_of_a_causal_square_by_hand():
    problem = Problem(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, mask=Mask.parse("causal"))
    assert costs.softmax(problem).flops == 2 * 3 * (1 + 2 + 3 + 4) * 4 * 64


@pytest.mark.parametrize(
    ("phase", "numbers"),
    [
        ("forward", (20 + 16 + 12) + 15),
        ("train", 2 * (20 + 16 + 12 + 15)),
        ("backward", 2 * (20 + 16 + 12) + 15),
    ],
)
@pytest.mark.parametrize(("dtype", "size"), [("float64", 8), ("bfloat16", 2)])
def test_bytes_are_every_end_once(phase, numbers, dtype, size):
    problem = Problem(
        batch=1, heads=1, kv_heads=1, q_len=5, kv_len=4, head_dim=4, v_head_dim=3, phase=phase,
        dtype=dtype,
    )  # fmt: skip
    assert costs.softmax(problem).bytes == numbers * size


def test_keys_that_no_row_sees_are_not_read():
    problem = Problem(
        batch=2, heads=4, kv_heads=2, q_len=5, kv_len=9, head_dim=4, v_head_dim=3,
        mask=Mask.parse("padding:0,6"),
    )  # fmt: skip
    ends = 2 * 4 * 5 * (4 + 3)
    assert costs.softmax(problem).bytes == 4 * (ends + 6 * 2 * (4 + 3))


@pytest.mark.parametrize("phase", ["forward", "backward", "train", "decode"])
def test_the_mean_costs_an_addition_for_each_value_and_reads_no_queries_or_keys(phase):
    problem = Problem(
        batch=2, heads=4, kv_heads=2, q_len=5, kv_len=9, head_dim=4, v_head_dim=3, phase=phase,
        mask=Mask.parse("padding:0,6"),
    )  # fmt: skip
    values, outputs = 6 * 2 * 3, 2 * 4 * 5 * 3
    adds = {"backward": outputs, "train": values + outputs}.get(phase, values)
    found = costs.mean(problem)
    assert found.flops == adds
    assert found.bytes == 4 * (values + outputs) * (2 if phase == "train" else 1)


def test_the_mean_refuses_numbers_added_to_scores_it_has_none_of(brute):
    for case in ("alibi", "bias"):
        assert TABLE.find("mean_v").supports(problem_of(brute, case)) is not None


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", [row.name for row in ROWS if row.exact])
def test_every_exact_row_is_charged_the_work_of_the_mathematics(name, phase):
    row, problem = TABLE.rows[name], Problem(q_len=33, mask=Mask.parse("causal"), phase=phase)
    charged = load_function(row.cost)(problem, **row.chosen)
    assert charged[:2] == costs.softmax(problem)[:2]


@pytest.mark.parametrize("threads", ["4", "4,2", ""])
@pytest.mark.parametrize("name", [n for n in EXACT if "?" not in n])
def test_a_cost_is_told_however_the_threads_are_spelled(monkeypatch, name, threads):
    """OpenMP takes a list of thread counts, one for each level of nesting."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    row = TABLE.rows[name]
    assert load_function(row.cost)(Problem(), **row.chosen).flops > 0
