"""Ranks that are threads of one process: the exchanges of real ones, without starting any."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from attnbench.gate.inputs import make
from attnbench.gate.oracle import exact
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

PATIENCE_S = 20


class Post:
    """What is under way between threads, by whom it is for and which exchange it belongs to."""

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


class Coming:
    def __init__(self, take):
        self.wait = take


class Ranks:
    """As :class:`impls.parallel.ranks.Ranks`, over a post that all threads share."""

    def __init__(self, rank, world, post):
        self.rank, self.world, self._post, self._number = rank, world, post, 0

    def rotate(self, x):
        self._number += 1
        number = self._number
        self._post.put(((self.rank + 1) % self.world, number, self.rank), x)
        before = (self.rank - 1) % self.world
        return Coming(lambda: self._post.take((self.rank, number, before)))

    def all_to_all(self, x):
        self._number += 1
        for to in range(self.world):
            self._post.put((to, self._number, self.rank), x[to])
        return torch.stack(
            [self._post.take((self.rank, self._number, of)) for of in range(self.world)]
        )


def run(row, problem, seed=0):
    """Output and, where there are any, gradients of all ranks put together; and the inputs."""
    inputs = make(problem, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    dout = torch.randn(problem.output_shape, generator=generator).to(inputs.q.dtype)
    places, post = load_function(row.shares)(problem, row.world), Post()
    options = {name: value for name, value in row.chosen.items() if name != "world"}
    wanted = ("out", "dq", "dk", "dv")
    whole = dict(zip(wanted, (torch.zeros_like(x) for x in (dout, *inputs)), strict=True))

    def one(rank):
        attend = load_function(row.build)(problem, Ranks(rank, row.world, post), **options)
        leaves = [x[:, :, places[rank]].clone().requires_grad_() for x in inputs]
        out = attend(*leaves)
        made = (out, *torch.autograd.grad(out, leaves, dout[:, :, places[rank]]))
        for name, share in zip(wanted, made, strict=True):
            assert share.dtype == dout.dtype
            whole[name][:, :, places[rank]] = share.detach()

    with ThreadPoolExecutor(row.world) as pool:
        list(pool.map(one, range(row.world)))
    return whole, inputs, dout


def truth(problem, inputs, dout):
    """The same by the oracle, in float64."""
    found = exact(problem, *inputs, torch.arange(problem.q_len), dout)
    return {"out": found.out, "dq": found.dq, "dk": found.dk, "dv": found.dv}


def off(got, want):
    """Relative Frobenius distances by name."""
    return {
        name: float((x.detach().double() - want[name]).norm() / want[name].norm())
        for name, x in got.items()
    }


def problem(length=24, heads=4, **more):
    ordinary = {"heads": heads, "kv_heads": heads, "head_dim": 8, "v_head_dim": 8, "phase": "train"}
    mask = Mask.parse(more.pop("mask", "causal"))
    return Problem(q_len=length, kv_len=length, mask=mask, **{**ordinary, **more})
