"""Rows whose memory forgets: the gate on their picks, planted faults, and a memory that stays."""

import pytest
import torch

import attnbench
from attnbench.gate.gate import gate
from attnbench.gate.inputs import Call, make
from attnbench.gate.reference import judge
from attnbench.gate.selection import judged_by
from attnbench.meter.memory import observe, warm_profiler
from impls import operators
from impls.eviction import POLICIES
from impls.spec import Unsupported
from tests.impls.small import OPTIONS, TABLE, both_forms, cost, problem, verdict
from tests.impls.test_eviction import BUDGET, PROMPT, looped, new_tokens
from tests.impls.test_eviction import OPTIONS as SMALL

NAMES = [name for name in TABLE.rows if name.startswith("evict.")]
LABELS = {name: f"{name}?{OPTIONS[name][0]}" for name in NAMES}


def step(n=1, length=45, **changes):
    return problem("causal", length, phase="decode", q_len=n, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_takes_each_row_at_one_token_and_at_several(name, dtype):
    for p in (step(dtype=dtype), step(3, dtype=dtype), step(3, 3, dtype=dtype), step(2, 8)):
        assert verdict(LABELS[name], p).reason is None


def reason_of(name, change=None):
    """Why the gate refuses a row, where it gets other queries of the tokens before."""
    p, row = step(dtype="float32"), TABLE.find(LABELS[name])
    attend, define = both_forms(row.label, p)
    if change is not None:
        inner = attend.policy.positions
        attend.policy.positions = lambda q, k: inner(change(q), k)
    define = judged_by(p, define, attend, operators.inputs(row.operator, p))
    return gate(judge(p, make(p, 0), 0).of(row.operator), attend, define, 0).reason


@pytest.mark.parametrize("name", ["evict.h2o", "evict.snapkv"])
@pytest.mark.parametrize("change", [torch.zeros_like, lambda q: q.roll(2, 1)])
def test_queries_of_the_tokens_before_that_are_ignored_or_another_heads_are_refused(name, change):
    assert reason_of(name) is None
    assert "leaves out key" in reason_of(name, change)


FAULTS = {
    "another head's weight": ("h2o", "prompt_score", lambda x, *_: x.roll(1, 1)),
    "a window off by one": ("snapkv", "prompt_score", lambda x, *_: x.roll(1, 2)),
    "a sink that goes": ("sinks", "worth", lambda x, self, at, *_: at * 1),
    "the latest that go": ("random", "worth", lambda x, self, at, score, _: score),
    "another head's pages": ("quest", "picks", lambda x, *_: x.roll(1, 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_refuses_a_planted_fault(fault, monkeypatch):
    policy, name, change = FAULTS[fault]
    inner = getattr(POLICIES[policy], name)
    monkeypatch.setattr(POLICIES[policy], name, lambda *given: change(inner(*given), *given))
    assert reason_of(f"evict.{policy}") is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_called_by_name_a_row_is_its_papers_rule(policy):
    _, (q, k, v) = new_tokens()
    options = {"budget": BUDGET, **SMALL.get(policy, {})}
    label = f"evict.{policy}?" + "&".join(f"{n}={x}" for n, x in options.items())
    now = slice(0, PROMPT + 1)
    more = {"past_q": q[:, :, now]} if policy in ("h2o", "snapkv") else {}
    attend = attnbench.attention(label)
    out = attend(q[:, :, PROMPT : PROMPT + 1], k[:, :, now], v[:, :, now], mask="causal", **more)
    torch.testing.assert_close(out, looped(policy, 1)[0][:, :, :1])


def test_a_step_costs_what_it_reads_and_no_more():
    p = step(length=1025, dtype="float32")
    heads, d, e = 2 * 4, 16, 12
    for name in ("evict.sinks", "evict.h2o", "evict.snapkv", "evict.random"):
        label = f"{name}?budget=100"
        assert cost(label, p).flops == 2 * heads * 101 * (d + e)
        assert cost(label, p).bytes == 4 * (heads + 2 * 2 * 101) * (d + e)
    bounds = 2 * 2 * 2 * 64 * d
    quest = cost("evict.quest?budget=112", p)
    assert quest.flops == 2 * heads * 113 * (d + e) + 4 * heads * 64 * d
    assert quest.bytes == 4 * ((heads + 2 * 2 * 113) * (d + e) + bounds)


def test_a_prompt_of_too_many_scores_is_refused_with_their_number():
    with pytest.raises(Unsupported, match="68,719,476,736 scores, and 4,294,967,296 is the most"):
        both_forms("evict.h2o", step(length=(1 << 16) + 1, batch=1, heads=16, kv_heads=16))


LENGTHS = 1 << 12, 1 << 14, 1 << 16


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_from_4k_to_64k_tokens_the_memory_of_all_but_quest_stays(name):
    warm_profiler()
    measured = []
    for length in LENGTHS:
        p = problem("causal", length + 1, phase="decode", q_len=1, batch=1, heads=1, kv_heads=1,
                    v_head_dim=16, dtype="float32")  # fmt: skip
        row = TABLE.find(name)
        attend, _ = both_forms(name, p)
        inputs = make(p, 0, operators.inputs(row.operator, p))
        memory = Call(p, attend, inputs).memory
        held = sum(x.nbytes for x in memory if isinstance(x, torch.Tensor))
        measured.append((observe(p, attend, inputs, None, None).memory.peak_bytes, held))
    print(name, measured)  # the figures of docs/measurements.md
    steps, holds = zip(*measured, strict=True)
    if name == "evict.quest":
        assert holds[2] > 15.9 * holds[0]
    else:
        assert len({*steps}) == len({*holds}) == 1
