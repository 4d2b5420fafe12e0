"""The same values, the same bits? Planted in the order of adding, the batch and the place in it."""

from pathlib import Path

import pytest
import torch

from attnbench.core.record import Determinism
from attnbench.meter import determinism
from impls.loading import load_file
from impls.masks import Mask

bits = load_file(Path(__file__).with_name("bits.py"))
HONEST = bits.HONEST
KEYS = bits.KEYS
planted = bits.planted
problem = bits.problem
tried = bits.tried


BY_CALL = """
def build(problem):
    orders = itertools.cycle([BLOCKS, BLOCKS[::-1]])
    return lambda q, k, v: added(q, k, v, next(orders))
"""
BACKWARD = """
class Same(torch.autograd.Function):
    calls = itertools.count()

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return dx * (1 + 2**-22 * (next(Same.calls) % 2))

def build(problem):
    return lambda q, k, v: added(q, k, Same.apply(v), BLOCKS)
"""


# ---- over calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["forward", "train", "backward"])
def test_adding_in_another_order_at_every_call_is_seen(planted, phase):
    found = tried(planted(BY_CALL), problem(phase=phase))
    assert (found.repeats, found.batch, found.place) == (False, None, None)
    assert found.why == "its results differ from call to call, so nothing can be said of the batch"


def test_a_gradient_that_differs_by_its_last_bit_is_seen(planted):
    row = planted(BACKWARD)
    assert tried(row, problem()).repeats is True
    assert tried(row, problem(phase="train")).repeats is False


def test_a_buffer_that_every_call_fills_anew_does_not_hide_that_calls_differ(planted):
    code = (
        BY_CALL.replace(
            "return lambda q, k, v:",
            "out = torch.empty(1, 2, KEYS, 8)\n    return lambda q, k, v: out.copy_(",
        ).rstrip()
        + ")\n"
    )
    assert tried(planted(f"KEYS = {KEYS}\n{code}"), problem()).repeats is False


def test_random_bits_drawn_at_every_call_are_seen(planted):
    code = "def build(problem): return lambda q, k, v: v + torch.rand(())\n"
    assert tried(planted(code), problem()).repeats is False


def test_the_sign_of_nought_is_a_bit_too(planted):
    code = """
def build(problem):
    signs = itertools.cycle([1.0, -1.0])
    return lambda q, k, v: torch.zeros_like(v) * next(signs)
"""
    assert tried(planted(code), problem()).repeats is False


def test_what_is_no_number_repeats_where_its_bits_do(planted):
    code = "def build(problem): return lambda q, k, v: v * float('nan')\n"
    assert tried(planted(code), problem()).repeats is True


def test_a_weights_gradient_that_differs_is_seen(planted):
    code = """
class Layer:
    def __init__(self):
        self.weights = {"w": torch.ones(16, 16, requires_grad=True)}
        self.calls = itertools.count()

    def __call__(self, x):
        self.weights["w"].register_hook(lambda g: g * (1 + 2**-22 * (next(self.calls) % 2)))
        return x @ self.weights["w"]

def build(problem): return Layer()
"""
    row = planted(code, level="layer", definition="a:b")
    assert tried(row, problem(level="layer", phase="train")).repeats is False
    assert tried(row, problem(level="layer")).repeats is True


# ---- torch's deterministic mode ------------------------------------------------------------------

OBEYS = """
def build(problem):
    orders = itertools.cycle([BLOCKS, BLOCKS[::-1]])
    def attend(q, k, v):
        order = BLOCKS if torch.are_deterministic_algorithms_enabled() else next(orders)
        return added(q, k, v, order)
    return attend
"""
RAISES = """
def build(problem):
    def attend(q, k, v):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("scatter has no deterministic form\\nand more")
        return v + torch.rand(())
    return attend
"""


def test_the_mode_is_tried_where_calls_differ_and_its_cost_is_measured(planted, monkeypatch):
    under = torch.are_deterministic_algorithms_enabled
    monkeypatch.setattr(determinism._Fixed, "seconds", lambda self: 3.0 if under() else 2.0)
    found = tried(planted(OBEYS), problem())
    assert (found.repeats, found.mode_repeats, found.mode_cost) == (False, True, 1.5)


def test_a_mode_that_does_not_help_is_said_to_have_not(planted):
    assert tried(planted(BY_CALL), problem()).mode_repeats is False


def test_what_raises_under_the_mode_says_so(planted):
    found = tried(planted(RAISES), problem())
    assert (found.mode_repeats, found.mode_cost) == (None, None)
    assert found.why.endswith("under torch's deterministic mode: scatter has no deterministic form")


@pytest.mark.parametrize(
    ("code", "before"),
    [
        (OBEYS, (False, False)),
        (RAISES, (False, False)),
        (RAISES, (False, True)),
        (BY_CALL, (True, True)),
        (BY_CALL, (True, False)),
    ],
    ids=["obeys", "raises", "raises, warned", "on, warned", "on"],
)
def test_the_mode_is_left_as_it_was(planted, code, before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        tried(planted(code), problem())
        after = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert after == before


def test_the_mode_is_not_tried_where_calls_agree(planted):
    found = tried(planted(HONEST), problem())
    assert (found.mode_repeats, found.mode_cost) == (None, None)


# ---- rows of the table ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("sdpa.flash", {"phase": "train"}),
        ("matmul", {"kv_heads": 1}),
        ("linear.elu", {"phase": "decode", "q_len": 1, "mask": Mask.parse("causal")}),
        ("mha", {"level": "layer", "phase": "train"}),
        ("mha", {"level": "layer", "q_len": 8}),
        ("block", {"level": "block"}),
    ],
)
def test_rows_of_the_table_repeat_and_their_batch_can_be_tried(table, text, changes):
    found = tried(table.find(text), problem(**changes))
    assert found.repeats is True
    assert None not in (found.batch, found.place)


@pytest.fixture(scope="module")
def table():
    import impls

    return impls.table()


# ---- in a word -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"repeats": True, "batch": True, "place": True}, "same bits"),
        ({"repeats": False}, "not over repeats"),
        ({"repeats": True, "batch": False, "place": True}, "not across batches"),
        ({"repeats": True, "batch": True, "place": False}, "not across places"),
        ({"repeats": True, "batch": False, "place": False}, "not across batches or places"),
        (
            {"repeats": True, "why": "building took 3.1 s"},
            "same bits over repeats; batch not tried: building took 3.1 s",
        ),
        ({}, "not tried"),
        ({"why": "it was not asked for"}, "not tried: it was not asked for"),
    ],
)
def test_a_few_words_say_it(values, said):
    assert Determinism(**values).words() == said
