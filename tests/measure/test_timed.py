"""What is timed: fresh values before every call, and every call held against what is right."""

import itertools

import pytest
import torch

import impls
from attnbench.measure.shared import state
from attnbench.measure.time import measure_time
from attnbench.measure.timed import SAME, Signs, Timed, Turns, Values, other_set
from attnbench.record import Status
from attnbench.truth.budget import EPSILON
from attnbench.truth.call import Call
from attnbench.truth.inputs import cast, make
from impls.dense.matmul import build
from impls.loading import load_function
from impls.lowrank import mean_v
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()
EXACT = ("einsum", "sdpa.flash", "chunked?block=5", "online?q_block=7&k_block=4")
PHASES = ("forward", "train", "backward", "decode")
SMALL = {
    "heads": 4, "kv_heads": 4, "q_len": 16, "kv_len": 16, "head_dim": 32, "v_head_dim": 32,
}  # fmt: skip


def values_of(problem, seed=0):
    shape = (problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    dout = cast(torch.randn(shape), problem) if problem.gradients else None
    return Values(make(problem, seed), dout)


def results_of(problem, attend, values):
    call = Call(problem, attend, values.inputs)
    out = call.forward()
    return [out.detach(), *(call.backward(out, values.dout) if problem.gradients else ())]


def attend_of(name, problem):
    variant = TABLE.find(name)
    assert variant.supports(problem) is None
    return load_function(variant.build)(problem, **variant.chosen)


def timed(problem, attend=None, *, exact=True, zero=()):
    attend = attend or build(problem)
    values = values_of(problem)
    judged = [x.clone() for x in results_of(problem, attend, values)]
    return Timed(problem, attend, values, judged, exact=exact, zero=zero), values


def turns(one, count):
    for _ in range(count):
        one.before()
        one.run()
    one.settle()


class Seen:
    """An honest ``attend`` that writes down where its inputs lie and what they hold."""

    def __init__(self, problem):
        self.inner, self.calls = build(problem), []

    def __call__(self, q, k, v):
        values = [x.detach().clone() for x in (q, k, v)]
        self.calls.append(([x.data_ptr() for x in (q, k, v)], values))
        return self.inner(q, k, v)


# ---- the other values ----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("form", [
    {"heads": 4, "kv_heads": 2}, {"heads": 4, "kv_heads": 4}, {"heads": 4, "kv_heads": 1},
    {"heads": 1, "kv_heads": 1, "batch": 2}, {"heads": 1, "kv_heads": 1},
])  # fmt: skip
def test_the_other_set_has_the_same_form_other_values_and_another_result(form, inputs):
    problem = Problem(q_len=10, kv_len=14, head_dim=8, v_head_dim=4, inputs=inputs, **form)
    first = make(problem, 0)
    other = other_set(first)
    for a, b in zip(first, other, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a.flatten().sort()[0], b.flatten().sort()[0])
    attend = build(problem)
    assert not torch.allclose(attend(*first), attend(*other), rtol=0.01)
    rows = (attend(*first) - attend(*other)).abs().amax(-1) > 0
    assert bool(rows.all())


# ---- signs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_every_call_has_values_that_no_call_had_at_the_same_addresses(phase):
    problem = Problem(**SMALL, phase=phase)
    seen = Seen(problem)
    one, values = timed(problem, seen)
    seen.calls.clear()
    turns(one, 30)
    assert len(seen.calls) == 30
    places = seen.calls[0][0]
    assert all(where == places for where, _ in seen.calls)
    assert not {x.data_ptr() for x in values.inputs} & set(places)
    for at in range(3):
        held = [values.inputs[at], *(had[at] for _, had in seen.calls)]
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(held, 2))
        assert all(torch.equal(x.abs(), held[0].abs()) for x in held)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_the_scores_are_the_same_to_the_last_bit(dtype, kv_heads):
    problem = Problem(**{**SMALL, "kv_heads": kv_heads}, dtype=dtype)
    values = values_of(problem)
    fresh = Signs(values, [])
    was = values.inputs.q @ values.inputs.k.mT
    for _ in range(5):
        q, k, _ = fresh.draw().inputs
        assert not torch.equal(q, values.inputs.q)
        assert torch.equal(q @ k.mT, was)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_wanted_is_what_honest_rows_compute(name, phase, dtype, kv_heads, mask):
    problem = Problem(**{**SMALL, "kv_heads": kv_heads}, dtype=dtype, phase=phase,
                      mask=Mask.parse(mask))  # fmt: skip
    attend, values = attend_of(name, problem), values_of(problem)
    fresh = Signs(values, results_of(problem, attend, values))
    for _ in range(2):
        got = results_of(problem, attend, fresh.draw())
        wanted = fresh.wanted(got)
        assert len(got) == len(wanted) == (4 if phase == "train" else 1)
        for a, b in zip(got, wanted, strict=True):
            away = (a - b).double().norm() / b.double().norm()
            assert away <= SAME[dtype] * EPSILON[dtype]


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*EXACT, "mean_v"])
def test_honest_rows_are_right_all_the_while(name, phase, dtype, kv_heads):
    problem = Problem(**{**SMALL, "kv_heads": kv_heads}, dtype=dtype, phase=phase)
    one, _ = timed(problem, attend_of(name, problem), exact=name != "mean_v")
    assert isinstance(one.fresh, Turns if name == "mean_v" else Signs)
    turns(one, 5)
    assert one.wrong() is None


def test_the_values_themselves_are_left_alone():
    one, values = timed(Problem(**SMALL, phase="train"))
    kept = [x.clone() for x in (*values.inputs, values.dout)]
    turns(one, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept, (*values.inputs, values.dout), strict=True))


def test_nobody_can_draw_the_same_signs_by_doing_the_same():
    values = values_of(Problem(**SMALL))
    one, other = (Signs(values, []) for _ in range(2))
    assert any(
        not torch.equal(a, b)
        for _ in range(4)
        for a, b in zip(one.draw().inputs, other.draw().inputs, strict=True)
    )


# ---- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_two_sets_of_values_take_turns_at_the_same_addresses(phase):
    problem = Problem(**SMALL, phase=phase)
    seen = Seen(problem)
    one, values = timed(problem, seen, exact=False)
    seen.calls.clear()
    turns(one, 4)
    sets = (values.inputs, other_set(values.inputs))
    assert all(where == seen.calls[0][0] for where, _ in seen.calls)
    for (_, had), turn in zip(seen.calls, (1, 0, 1, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(had, sets[turn], strict=True))
    assert one.wrong() is None


FROZEN = """
from impls.lowrank.mean_v import build as mean, definition
def build(problem):
    inner, calls, held = mean(problem), [], []
    def attend(q, k, v):
        calls.append(1)
        out = inner(q, k, v)
        if len(calls) > {late} and not held: held.append(out.detach().clone())
        return held[0] + (out - out.detach()) if held else out
    return attend
"""


@pytest.mark.parametrize("late", [10, 15, 16])
@pytest.mark.parametrize("phase", PHASES)
def test_a_frozen_variant_with_a_definition_of_its_own_is_wrong(cells, phase, late):
    variant = cells.variant(
        FROZEN.format(late=late), computes="approximates softmax", definition=True
    )
    assert not variant.exact
    wrong(cells.measure(variant, cells.problem(phase=phase)))


@pytest.mark.parametrize("phase", PHASES)
def test_an_honest_variant_with_a_definition_of_its_own_is_measured(cells, phase):
    record = cells.measure(TABLE.find("mean_v"), cells.problem(phase=phase))
    assert (record.status, record.reason) == (Status.MEASURED, "")


def test_the_same_result_for_other_values_is_told():
    problem = Problem(**SMALL)
    values = values_of(problem)
    out = mean_v.build(problem)(*values.inputs)
    one = Timed(problem, lambda q, k, v: out.clone(), values, [out], exact=False)
    turns(one, 4)
    assert one.wrong() == "while it was timed it returned the same result for other inputs"


# ---- what the clock sees -------------------------------------------------------------------------


def test_each_phase_runs_what_its_name_says_under_the_clock():
    counts = {}
    for phase in PHASES:
        seen = Seen(Problem(**SMALL, phase=phase))
        one, _ = timed(Problem(**SMALL, phase=phase), seen)
        seen.calls.clear()
        one.before()
        ahead = len(seen.calls)
        out = one.run()
        counts[phase] = (ahead, len(seen.calls) - ahead)
        assert out.shape == (1, 4, 16, 32)
        assert out.requires_grad is (phase in ("train", "backward"))
        assert [tuple(g.shape) for g in one._gradients] == [(1, 4, 16, 32)] * (
            3 if phase in ("train", "backward") else 0
        )
    assert counts == {"forward": (0, 1), "train": (0, 1), "backward": (1, 0), "decode": (0, 1)}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_result_that_is_off_at_the_last_call_alone_is_found(phase, count):
    problem = Problem(**SMALL, phase=phase)
    one, _ = timed(problem)
    inner, numbers = one.call.attend, itertools.count(1)
    one.call.attend = lambda *x: inner(*x) * (1.001 if next(numbers) == count else 1.0)
    turns(one, count)
    assert "while it was timed its output was not" in one.wrong()


def test_settling_twice_changes_nothing():
    one, _ = timed(Problem(**SMALL))
    turns(one, 2)
    one.settle()
    assert one.wrong() is None


@pytest.mark.parametrize("phase", PHASES)
def test_after_measuring_the_last_output_is_held_too(phase, scripted):
    one, _ = timed(Problem(**SMALL, phase=phase))
    inner, numbers = one.call.attend, itertools.count(1)
    one.call.attend = lambda *x: inner(*x) * (2.0 if next(numbers) == 7 else 1.0)
    got = measure_time(one, scripted(itertools.repeat(1.0), step_s=10.0), 1e-9, [])
    assert got.n == 7
    assert "while it was timed its output was not" in one.wrong()


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_gradient_that_is_off_is_named(name):
    problem = Problem(**SMALL, phase="train")
    one, _ = timed(problem)
    inner, at = one.call.attend, ("dq", "dk", "dv").index(name)

    def attend(*given):
        scaled = [x * 1.01 - (x * 0.01).detach() if i == at else x for i, x in enumerate(given)]
        return inner(*scaled)

    one.call.attend = attend
    turns(one, 2)
    assert f"while it was timed its {name} was not" in one.wrong()


def test_a_gradient_that_is_zero_in_truth_may_be_another_rounding_each_time():
    problem = Problem(**SMALL, phase="train")
    one, _ = timed(problem, zero=("dk",))
    inner = one.call.attend
    one.call.attend = lambda q, k, v: inner(q, k * 1.01 - (k * 0.01).detach(), v)
    turns(one, 2)
    assert one.wrong() is None


# ---- cheats, through the whole cell --------------------------------------------------------------

CHEAT = """
class Lazy(torch.Tensor): pass
def build(problem):
    inner, calls, held, packed = right(problem), [], [], {{}}
    buffer = torch.empty(problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    def through(held, out): return held + (out - out.detach())
    def attend(q, k, v):
        calls.append(1)
        n = len(calls)
        late = n > {after}
        {deed}
    return attend
"""
REMEMBER = "held.append(out.detach().clone())"
CHEATS = {
    "by call count": (
        f"out = inner(q, k, v); {REMEMBER}; return through(held[20], out) if n > 21 else out"
    ),
    "what came before": (
        f"out = inner(q, k, v); {REMEMBER}; return through(held[-2], out) if late else out"
    ),
    "by address": (
        "out = inner(q, k, v)\n"
        "        key = tuple(x.data_ptr() for x in (q, k, v))\n"
        "        if late: return through(packed.setdefault(key, out.detach().clone()), out)\n"
        "        return out"
    ),
    "by parity": (
        f"out = inner(q, k, v); {REMEMBER}; return through(held[-3], out) if late else out"
    ),
    "every second": (
        f"out = inner(q, k, v); {REMEMBER}\n"
        "        return through(held[-2], out) if late and n % 2 else out"
    ),
    "zeros now and then": (
        "out = inner(q, k, v); return out * 0 if n % 20 == 0 else out"
    ),
    "lazy": "out = inner(q, k, v); return out.as_subclass(Lazy) if late else out",
    "scaled": "return inner(q, k, v) * (1.001 if late else 1.0)",
}  # fmt: skip


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """The gate makes a known number of calls: it looks for work put off only once."""
    monkeypatch.setattr("attnbench.truth.gate.check_nothing_goes_on", lambda *_: None)
    monkeypatch.setattr("attnbench.measure.meters.unlike", lambda *_: None)  # it comes before


GATE = {"forward": 7, "decode": 7, "train": 9, "backward": 9}
"""Calls up to the end of the gate: what comes first tells the rest from them."""


def cheat(deed, after=15):
    return CHEAT.format(deed=deed, after=after)


def wrong(record):
    assert record.status is Status.WRONG, (record.status, record.reason)
    assert record.reason.startswith("while it was timed"), record.reason
    assert record.time is None


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", CHEATS)
def test_a_variant_that_is_right_for_the_gate_alone_is_wrong(cells, name, phase):
    wrong(cells.run(cheat(CHEATS[name]), cells.problem(phase=phase)))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("name", ["by address", "what came before", "scaled"])
def test_the_first_call_after_the_gate_is_not_too_early_to_be_found(cells, name, phase, late):
    record = cells.run(cheat(CHEATS[name], GATE[phase] + late), cells.problem(phase=phase))
    wrong(record)


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_keys_packed_once_for_each_address_are_wrong_with_one_kv_head(cells, phase):
    deed = (
        "if not late: return inner(q, k, v)\n"
        "        kept = packed.setdefault(k.data_ptr(), k.detach().clone())\n"
        "        return inner(q, kept + (k - k.detach()), v)"
    )
    for heads in (1, 2):
        problem = cells.problem(phase=phase, heads=heads, kv_heads=1)
        wrong(cells.run(cheat(deed, GATE[phase]), problem))


@pytest.mark.parametrize("phase", ["train", "backward"])
@pytest.mark.parametrize("deed", [
    "return out.detach() + 0.0 * out if late else out",
    "return inner(q.detach() + 0.0 * q, k, v) if late else out",
    "return inner(q, k.detach() + 0.0 * k, v) if late else out",
    "return inner(q, k, v.detach() + 0.0 * v) if late else out",
], ids=["all", "dq", "dk", "dv"])  # fmt: skip
@pytest.mark.parametrize("late", [0, 1, 7])
def test_gradients_that_are_zero_after_the_gate_are_wrong(cells, phase, deed, late):
    code = cheat("out = inner(q, k, v); " + deed, GATE[phase] + late)
    wrong(cells.run(code, cells.problem(phase=phase)))


@pytest.mark.parametrize("deed", [
    "torch.manual_seed(0)\n        " + CHEATS["by address"],
    "torch.manual_seed(0)\n        " + CHEATS["what came before"],
], ids=["by address", "what came before"])  # fmt: skip
def test_seeding_the_generator_does_not_make_the_values_repeat(cells, deed, monkeypatch):
    monkeypatch.setattr(state, "check", lambda *_: None)  # it would tell first
    wrong(cells.run(cheat(deed, GATE["forward"])))


@pytest.mark.parametrize("phase", PHASES)
def test_a_variant_that_reuses_its_own_buffer_honestly_is_measured(cells, phase):
    deed = "out = inner(q, k, v); return buffer.detach().copy_(out)"
    record = cells.run(cheat(deed), cells.problem(phase=phase))
    assert (record.status, record.reason) == (Status.MEASURED, "")
