"""The same bits whatever the batch, and whatever the place in it? Planted, and told apart."""

from pathlib import Path

import pytest

from attnbench.core.record import Determinism
from impls.loading import load_file
from impls.masks import Mask

bits = load_file(Path(__file__).with_name("bits.py"))
HONEST = bits.HONEST
planted = bits.planted
problem = bits.problem
tried = bits.tried


BY_BATCH = """
def build(problem):
    return lambda q, k, v: added(q, k, v, BLOCKS if len(q) == 1 else BLOCKS[::-1])
"""
BY_PLACE = """
def build(problem):
    def attend(q, k, v):
        parts = [added(*(x[i:i+1] for x in (q, k, v)), BLOCKS[::(-1)**i]) for i in range(len(q))]
        return torch.cat(parts)
    return attend
"""


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_what_adds_in_one_order_gives_the_same_bits_whatever_the_batch(planted, phase, batch):
    found = tried(planted(HONEST), problem(phase=phase, batch=batch))
    assert found == Determinism(repeats=True, batch=True, place=True)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_another_path_for_a_batch_of_one_is_seen(planted, batch):
    found = tried(planted(BY_BATCH), problem(batch=batch))
    assert (found.repeats, found.batch, found.place) == (True, False, True)


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_another_path_for_the_second_place_is_seen(planted, phase):
    found = tried(planted(BY_PLACE), problem(phase=phase))
    assert (found.repeats, found.batch, found.place) == (True, True, False)


def test_a_neighbour_that_leaks_in_is_seen(planted):
    code = "def build(problem): return lambda q, k, v: v + 1e-6 * v.sum(0, keepdim=True)\n"
    found = tried(planted(code), problem())
    assert found.batch is False


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_each_batch_is_served_by_what_was_built_for_it(planted, batch):
    code = """
def build(problem):
    def attend(q, k, v):
        assert len(q) == problem.batch
        return added(q, k, v, BLOCKS)
    return attend
"""
    found = tried(planted(code), problem(batch=batch))
    assert found == Determinism(repeats=True, batch=True, place=True)


def test_elements_that_change_places_are_seen(planted):
    code = "def build(problem): return lambda q, k, v: v.flip(0)\n"
    assert tried(planted(code), problem()).batch is False


def test_upstream_gradients_that_change_places_are_seen(planted):
    code = """
class Swaps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        return out.clone()

    @staticmethod
    def backward(ctx, dout):
        return dout.flip(0)

def build(problem):
    return lambda q, k, v: Swaps.apply(added(q, k, v, BLOCKS))
"""
    assert tried(planted(code), problem()).batch is True
    assert tried(planted(code), problem(phase="train")).batch is False


def test_a_layer_that_treats_the_second_place_otherwise_is_seen(planted):
    code = """
def build(problem):
    def attend(x):
        return torch.cat([x[:1], x[1:] + 1e-3])
    return attend
"""
    found = tried(planted(code, level="layer", definition="a:b"), problem(level="layer"))
    assert (found.batch, found.place) == (True, False)


def test_a_weights_gradient_which_sums_over_the_batch_is_no_part_of_an_element(planted):
    code = """
class Layer:
    def __init__(self):
        self.weights = {"w": torch.ones(16, requires_grad=True)}

    def __call__(self, x):
        return x * self.weights["w"]

def build(problem): return Layer()
"""
    row = planted(code, level="layer", definition="a:b")
    found = tried(row, problem(level="layer", phase="train"))
    assert found == Determinism(repeats=True, batch=True, place=True)


def test_a_decoder_that_steps_otherwise_for_two_is_seen(planted):
    code = """
class Decoder:
    def __call__(self, q, k, v): raise AssertionError
    def remember(self, k, v): return v.sum(2, keepdim=True)
    def step(self, q, k, v, memory): return (memory + v) * (1 + 2**-20 * (len(q) > 1)), memory

def build(problem): return Decoder()
"""
    found = tried(planted(code), problem(phase="decode", q_len=1))
    assert (found.repeats, found.batch, found.place) == (True, False, True)


@pytest.mark.parametrize("text", ["padding:64,40"])
def test_a_mask_of_the_batchs_own_leaves_the_batch_untried_and_says_so(planted, text):
    found = tried(planted(HONEST), problem(batch=2, mask=Mask.parse(text)))
    assert (found.repeats, found.batch, found.place) == (True, None, None)
    assert "2 lengths for a batch of 1" in found.why


def test_what_is_dear_to_build_is_not_built_again(planted):
    code = "def build(problem):\n    assert len(BUILT) == 0\n    BUILT.append(1)\n"
    code = "BUILT = []\n" + code + "    return lambda q, k, v: added(q, k, v, BLOCKS)\n"
    found = tried(planted(code), problem(), setup_s=3.14, most_setup_s=1.0)
    assert (found.repeats, found.batch) == (True, None)
    assert found.why == "building took 3.1 s"


def test_a_variant_that_refuses_another_batch_says_why(planted):
    code = """
def build(problem):
    if problem.batch > 1:
        raise ValueError("one at a time\\nplease")
    return lambda q, k, v: v.clone()
"""
    found = tried(planted(code), problem())
    assert found.batch is None
    assert found.why == "for another batch it can't be tried: one at a time"


def test_what_raises_at_once_is_said_and_nothing_else(planted):
    code = "def build(problem): return lambda q, k, v: [][1]\n"
    found = tried(planted(code), problem())
    assert found == Determinism(why="trying it raised: list index out of range")
