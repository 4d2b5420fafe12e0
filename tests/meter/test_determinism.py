"""The same values, the same bits? Faults planted in calls, in the batch and in the place in it."""

import pytest
import torch

import impls
from attnbench.gate.inputs import make
from attnbench.meter.determinism import try_determinism
from attnbench.meter.timed import Values
from impls.loading import load_function
from impls.masks import Mask

KEYS = 64
TOP = f"""
import itertools
KEYS = {KEYS}
BLOCKS = [slice(i, i + 8) for i in range(0, KEYS, 8)]
def added(q, k, v, order):
    weights = (q @ k.mT).softmax(-1)
    return sum(weights[..., s] @ v[..., s, :] for s in order)
"""
HONEST = "def build(problem): return lambda q, k, v: added(q, k, v, BLOCKS)\n"
ORDERS = "def build(problem):\n    orders = itertools.cycle([BLOCKS, BLOCKS[::-1]])\n"
BY_CALL = ORDERS + "    return lambda q, k, v: added(q, k, v, next(orders))\n"
SWAPPED = """
class Swaps(torch.autograd.Function):
    forward = staticmethod(lambda ctx, out: out.clone())
    backward = staticmethod(lambda ctx, dout: dout.flip(0))

def build(problem): return lambda q, k, v: Swaps.apply(added(q, k, v, BLOCKS))
"""
BY_PLACE = """
def build(problem):
    return lambda q, k, v: torch.cat(
        [added(*(x[i:i+1] for x in (q, k, v)), BLOCKS[::(-1)**i]) for i in range(len(q))])
"""
BY_BATCH = HONEST.replace("BLOCKS", "BLOCKS[::1 if len(q) == 1 else -1]")


def returning(text):
    return f"def build(problem): return lambda q, k, v: {text}\n"


@pytest.fixture
def tried(cells):
    """The determinism of code, or of a row, on a problem, with values from seeds."""

    def tried(code, *, setup_s=0.0, **changes):
        row = cells.variant(TOP + code) if "build" in code else impls.table().find(code)
        problem = cells.problem(**{"q_len": KEYS, "kv_len": KEYS, **changes})
        generator = torch.Generator().manual_seed(1)
        dout = torch.randn(problem.output_shape, generator=generator) if problem.gradients else None
        attend = load_function(row.build)(problem, **row.chosen)
        values = Values(make(problem, 0), dout)
        return try_determinism(problem, row, attend, values, setup_s=setup_s, most_s=0.3)

    return tried


TRAIN, SAME, DIFFERS = {"phase": "train"}, (True,) * 3, (False, None, None)
BATCH, IN_PLACE = (True, False), (True, True, False)
ZERO = "signs = itertools.cycle([1.0, -1.0])\n" + returning("torch.zeros_like(v) * next(signs)")
CASES = [
    (HONEST, TRAIN | {"batch": 2}, SAME), (HONEST, {"batch": 3}, SAME),
    (returning("v * float('nan')"), {}, SAME), (ZERO, {}, DIFFERS),
    (BY_CALL, {}, DIFFERS), (BY_CALL, {"phase": "backward"}, DIFFERS),
    (BY_BATCH, {}, BATCH), (BY_BATCH, {"batch": 2}, BATCH), (BY_PLACE, TRAIN, IN_PLACE),
    (SWAPPED, {}, (True, True)), (SWAPPED, TRAIN, BATCH),
    ("linear.elu", {"phase": "decode", "q_len": 1, "mask": Mask.parse("causal")}, None),
    ("block", TRAIN | {"level": "block"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changes", "wanted"), CASES)
def test_what_differs_is_seen_over_calls_batches_and_places(tried, code, changes, wanted):
    result = tried(code, **changes)
    got = (result.repeats, result.batch, result.place)
    if wanted is None:  # a row of the table: it repeats, and its batch can be tried
        assert got[0] is True and None not in got
    else:
        assert got[: len(wanted)] == wanted
    assert bool(result.why) == (wanted == DIFFERS)


ONE_ALONE = """
def build(problem):
    if problem.batch > 1: raise ValueError("one at a time")
    return lambda q, k, v: v.clone()
"""
UNTRIED = [
    (HONEST, {"batch": 2, "mask": Mask.parse("padding:64,40")}, True, "2 lengths for a batch of 1"),
    (HONEST, {"setup_s": 3.14}, True, "building took 3.14 s"),
    (ONE_ALONE, {}, True, "for another batch it can't be tried: one at a time"),
    (returning("[][1]"), {}, None, "trying it raised: list index out of range"),
]


@pytest.mark.parametrize(("code", "changes", "repeats", "why"), UNTRIED)
def test_what_can_not_be_tried_says_why(tried, code, changes, repeats, why):
    result = tried(code, **changes)
    assert (result.repeats, result.batch, result.place) == (repeats, None, None)
    assert why in result.why
