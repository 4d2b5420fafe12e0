"""Which records may share a line, in which order lines are shown, and what is drawn of them."""

import math
import random

import pytest

from attnbench.answer.regimes import frontier, regimes
from tests.answer.build import line, timed


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "forward, no mask, float32, batch 1, 8 heads of 64, on cpu"),
        (
            {"kv_heads": 2, "v_head_dim": 32, "inputs": "captured:/a/b.npz", "q_len": 1},
            "forward, one query a call, no mask, float32, captured:b.npz inputs, batch 1, 8 heads "
            "on 2 of 64/32, on cpu",
        ),
        (
            {"level": "layer", "world": 2},
            "forward, a layer, no mask, float32, batch 1, 8 heads of 64, on cpu, over 2 processes",
        ),
        (
            {"q_len": 4, "phase": "decode", "node": "x"},
            "decode, 4 queries a call, no mask, float32, batch 1, 8 heads of 64, on cpu",
        ),
    ],
)
def test_a_regime_is_said_by_all_that_tells_it_from_another(more, words):
    assert [str(r) for r in regimes([timed("a", 128, 1.0, **more)])] == [words]


OTHER = {"kv_heads": 2, "v_head_dim": 32, "inputs": "peaky", "device": "cuda", "world": 2}


@pytest.mark.parametrize("other", [*OTHER.items(), ("node", "the other kind")])
def test_what_differs_otherwise_is_another_regime(other):
    found = regimes([*line("a", {128: 1, 256: 2}), *line("a", {128: 1, 256: 2}, **dict([other]))])
    assert [r.lengths for r in found] == [[128, 256]] * 2
    assert len({str(r) for r in found}) == 2


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        # (batch, length); the batch, the tokens and the lengths of each line
        ([(1, 128), (1, 256), (4, 128), (4, 256)], [(1, None, [128, 256]), (4, None, [128, 256])]),
        ([(8, 128), (4, 256), (2, 512), (1, 1024)], [(None, 1024, [128, 256, 512, 1024])]),
        (
            [(1, 256), (1, 512), (1, 1024), (4, 256)],  # a place may lie on a line of either sort
            [(1, None, [256, 512, 1024]), (None, 1024, [256, 1024])],
        ),
        ([(1, 256), (2, 256)], [(1, None, [256]), (2, None, [256])]),
        ([], []),
    ],
)
def test_lines_are_of_one_batch_or_of_as_many_tokens(places, expected):
    found = regimes([timed("a", n, 1.0, batch=b) for b, n in places])
    batches = [None if r.tokens else r.like.batch for r in found]
    assert [(b, r.tokens, r.lengths) for b, r in zip(batches, found, strict=True)] == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_is_what_no_other_beats(seed):
    chance = random.Random(seed)
    points = {f"v{n}": (chance.randint(1, 9), chance.randint(1, 9)) for n in range(25)}

    def beaten(p, q):  # no worse in both, and better in one
        return q[0] <= p[0] and q[1] <= p[1] and q != p

    found = frontier({**points, "x": (math.nan, 0.0), "y": (0.0, math.inf)})
    best = {n for n, p in points.items() if not any(beaten(p, q) for q in points.values())}
    assert set(found) == best
    assert [points[name][0] for name in found] == sorted(points[name][0] for name in found)
    assert frontier({}) == []
