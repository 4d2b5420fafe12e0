"""Variants that behave for the gate alone are found out while they are timed, in a whole cell."""

from pathlib import Path

import pytest

import impls
from attnbench.core.record import Status
from attnbench.gate import watch
from impls.loading import load_file

FROZEN = load_file(Path(__file__).with_name("codes.py")).FROZEN

PHASES = ("forward", "train", "backward", "decode")

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
    monkeypatch.setattr("attnbench.gate.gate.check_nothing_goes_on", lambda *_: None)
    monkeypatch.setattr("attnbench.meter.cell.unlike", lambda *_: None)  # it comes before


GATE = {"forward": 10, "decode": 10, "train": 13, "backward": 13}
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
@pytest.mark.parametrize(
    "deed",
    [
        "return out.detach() + 0.0 * out if late else out",
        "return inner(q.detach() + 0.0 * q, k, v) if late else out",
        "return inner(q, k.detach() + 0.0 * k, v) if late else out",
        "return inner(q, k, v.detach() + 0.0 * v) if late else out",
    ],
    ids=["all", "dq", "dk", "dv"],
)
@pytest.mark.parametrize("late", [0, 1, 7])
def test_gradients_that_are_zero_after_the_gate_are_wrong(cells, phase, deed, late):
    code = cheat("out = inner(q, k, v); " + deed, GATE[phase] + late)
    wrong(cells.run(code, cells.problem(phase=phase)))


@pytest.mark.parametrize(
    "deed",
    [
        "torch.manual_seed(0)\n        " + CHEATS["by address"],
        "torch.manual_seed(0)\n        " + CHEATS["what came before"],
    ],
    ids=["by address", "what came before"],
)
def test_seeding_the_generator_does_not_make_the_values_repeat(cells, deed, monkeypatch):
    monkeypatch.setattr(watch, "check", lambda *_: None)  # it would tell first
    wrong(cells.run(cheat(deed, GATE["forward"])))


@pytest.mark.parametrize("phase", PHASES)
def test_a_variant_that_reuses_its_own_buffer_honestly_is_measured(cells, phase):
    deed = "out = inner(q, k, v); return buffer.detach().copy_(out)"
    record = cells.run(cheat(deed), cells.problem(phase=phase), reuses_output=True)
    assert (record.status, record.reason) == (Status.MEASURED, "")


MEAN = """
from impls.lowrank.mean_v import build as mean, definition
def build(problem): return frozen(mean(problem), {late})
"""


@pytest.mark.parametrize("late", [10, 15, 16])
@pytest.mark.parametrize("phase", PHASES)
def test_a_frozen_variant_with_a_definition_of_its_own_is_wrong(cells, phase, late):
    variant = cells.variant(
        FROZEN + MEAN.format(late=late), computes="approximates softmax", definition=True
    )
    assert not variant.exact
    wrong(cells.measure(variant, cells.problem(phase=phase)))


@pytest.mark.parametrize("phase", PHASES)
def test_an_honest_variant_with_a_definition_of_its_own_is_measured(cells, phase):
    record = cells.measure(impls.table().find("mean_v"), cells.problem(phase=phase))
    assert (record.status, record.reason) == (Status.MEASURED, "")
