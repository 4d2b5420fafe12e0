"""Ring and Ulysses, whose ranks are threads here: all together are exact attention."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.gate.inputs import make
from attnbench.gate.oracle import exact
from impls.loading import load_function
from impls.masks import Mask
from impls.parallel import shares
from impls.parallel.ring import Ring
from impls.problem import Problem
from impls.spec import InvalidRow, Unsupported
from tests.impls.small import TABLE

PATIENCE_S = 20


class Post:
    """Messages between threads, by receiver and by exchange."""

    def __init__(self):
        self._parcels, self._changed = {}, threading.Condition()

    def put(self, where, what):
        with self._changed:
            assert where not in self._parcels
            self._parcels[where] = what.clone()
            self._changed.notify_all()

    def take(self, where):
        with self._changed:
            assert self._changed.wait_for(lambda: where in self._parcels, PATIENCE_S), where
            return self._parcels.pop(where)


class Ranks:
    """As :class:`impls.parallel.ranks.Ranks`, over a post that all threads share."""

    def __init__(self, rank, world, post):
        self.rank, self.world, self._post, self._number = rank, world, post, 0

    def rotate(self, x):
        self._number += 1
        number = self._number
        self._post.put(((self.rank + 1) % self.world, number, self.rank), x)
        before = (self.rank - 1) % self.world
        return SimpleNamespace(wait=lambda: self._post.take((self.rank, number, before)))

    def all_to_all(self, x):
        self._number += 1
        for to in range(self.world):
            self._post.put((to, self._number, self.rank), x[to])
        return torch.stack(
            [self._post.take((self.rank, self._number, of)) for of in range(self.world)]
        )


def problem(length=24, heads=2, **more):
    ordinary = {"heads": heads, "kv_heads": heads, "head_dim": 8, "v_head_dim": 8, "phase": "train"}
    mask = Mask.parse(more.pop("mask", "causal"))
    return Problem(q_len=length, kv_len=length, mask=mask, **{**ordinary, **more})


FOUR = {"heads": 4, "kv_heads": 4}
CELLS = [  # the row, how far it may be off, and what else of the problem
    ("ring?world=2&block=5", 1e-6, {"mask": "none"}),
    ("ring?world=2", 1e-6, {}),
    ("ring?world=4&block=5", 1e-6, {}),
    ("ring?world=3&block=3", 2e-4, {"heads": 6, "kv_heads": 2, "v_head_dim": 12, "batch": 2}),
    # log-sums of hundreds: their neighbours are 1e-5 away
    ("ring?world=3&block=3", 2e-4, {"heads": 4, "kv_heads": 1, "inputs": "peaky"}),
    ("ring?world=3&block=3", 2e-4, {"dtype": "float64"}),
    *((f"ulysses?world={w}", 1e-6, {**FOUR, "mask": m})
      for w, m in ((2, "none"), (4, "window:3,2"), (2, "document:10,14"), (2, "causal+alibi"))),
    ("ulysses?world=3", 1e-5, {"heads": 6, "kv_heads": 3, "batch": 2, "v_head_dim": 12}),
    ("ulysses?world=3", 1e-5, {"heads": 3, "kv_heads": 3, "inputs": "peaky"}),
    ("ulysses?world=3", 1e-5,
     {"heads": 3, "kv_heads": 3, "dtype": "float64", "mask": "padding:20"}),
]  # fmt: skip


@pytest.mark.parametrize(("label", "most", "more"), CELLS)
def test_all_ranks_together_have_the_output_and_gradients_of_the_oracle(label, most, more):
    row, p = TABLE.find(label), problem(**more)
    inputs, generator = list(make(p, 0).values()), torch.Generator().manual_seed(1)
    dout = torch.randn(p.output_shape, generator=generator).to(inputs[0].dtype)
    places, post = load_function(row.shares)(p, row.world), Post()
    options = {name: value for name, value in row.chosen.items() if name != "world"}
    whole = [torch.zeros_like(x) for x in (dout, *inputs)]

    def one(rank):
        attend = load_function(row.build)(p, Ranks(rank, row.world, post), **options)
        leaves = [x[:, :, places[rank]].clone().requires_grad_() for x in inputs]
        out = attend(*leaves)
        results = (out, *torch.autograd.grad(out, leaves, dout[:, :, places[rank]]))
        for end, share in zip(whole, results, strict=True):
            assert share.dtype == dout.dtype
            end[:, :, places[rank]] = share.detach()

    with ThreadPoolExecutor(row.world) as pool:
        list(pool.map(one, range(row.world)))
    truth = exact(p, *inputs, torch.arange(p.q_len), dout)
    for name, x in zip(("out", "dq", "dk", "dv"), whole, strict=True):
        want = getattr(truth, name)
        assert float((x.double() - want).norm() / want.norm()) < most, name


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 9))
def test_all_ranks_of_a_ring_have_as_much_work_and_see_each_visible_pair_once(world, size, block):
    p = problem(2 * world * size)
    places, times, work = shares.ring(p, world), torch.zeros(p.q_len, p.q_len, dtype=torch.int), []
    for rank in range(world):
        ring = Ring(p, Ranks(rank, world, None), block)
        tiles = [(source, tile) for source in range(world) for tile in ring.tiles(source)]
        work.append(0)
        for source, tile in tiles:
            rows = torch.tensor(places[rank])[tile.rows]
            keys = torch.tensor(places[source])[tile.keys]
            hidden = torch.zeros(()) if tile.hidden is None else tile.hidden
            times[rows[:, None], keys] += (hidden == 0).int()
            work[-1] += len(rows) * len(keys)
    assert torch.equal(times, torch.ones_like(times).tril())
    assert len(set(work)) == 1


def test_what_a_row_cannot_take_is_said_before_a_process_is_started():
    for name, changes, says in (
        ("ring?world=2", {"kv_len": 256}, "needs q_len equal to kv_len"),
        ("ring?world=2", {"phase": "decode", "q_len": 1}, "is for forward, train, backward only"),
        ("ring?world=3", {}, "lengths that 6 divides"),
        ("ring?world=0", {}, "0"),
        ("ulysses?world=2", {"q_len": 129, "kv_len": 129}, "needs q_len that 2 divides, not 129"),
        ("ulysses?world=4", {"heads": 6, "kv_heads": 6}, "needs heads that 4 divides, not 6"),
        ("ulysses?world=4", {"kv_heads": 2}, "needs kv_heads that 4 divides, not 2"),
    ):
        assert says in TABLE.find(name).supports(problem(128, 8).with_(**changes))
    with pytest.raises(Unsupported, match="0"):
        load_function(TABLE.find("ring").build)(problem(128), None, 0)
    with pytest.raises(InvalidRow, match="runs over several"):
        TABLE.find("mha?core=ring")
