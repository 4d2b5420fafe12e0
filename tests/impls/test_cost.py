"""What attention costs: the FLOPs and bytes of impls/cost.py, and that the dense rows say them."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from impls import cost as costs
from impls.loading import load_file, load_function
from impls.masks import Mask
from impls.problem import Problem

cases = load_file(Path(__file__).with_name("dense_cases.py"))
TABLE, ROWS, EXACT, ORDINARY, CASES, built, problem_of, seen_and_bias = (
    getattr(cases, name)
    for name in (
        "TABLE",
        "ROWS",
        "EXACT",
        "ORDINARY",
        "CASES",
        "built",
        "problem_of",
        "seen_and_bias",
    )
)

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
        batch=1,
        heads=1,
        kv_heads=1,
        q_len=5,
        kv_len=4,
        head_dim=4,
        v_head_dim=3,
        phase=phase,
        dtype=dtype,
    )
    assert costs.softmax(problem).bytes == numbers * size


def test_keys_that_no_row_sees_are_not_read():
    problem = Problem(
        batch=2,
        heads=4,
        kv_heads=2,
        q_len=5,
        kv_len=9,
        head_dim=4,
        v_head_dim=3,
        mask=Mask.parse("padding:0,6"),
    )
    ends = 2 * 4 * 5 * (4 + 3)
    assert costs.softmax(problem).bytes == 4 * (ends + 6 * 2 * (4 + 3))


@pytest.mark.parametrize("phase", ["forward", "backward", "train", "decode"])
def test_the_mean_costs_an_addition_for_each_value_and_reads_no_queries_or_keys(phase):
    problem = Problem(
        batch=2,
        heads=4,
        kv_heads=2,
        q_len=5,
        kv_len=9,
        head_dim=4,
        v_head_dim=3,
        phase=phase,
        mask=Mask.parse("padding:0,6"),
    )
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
