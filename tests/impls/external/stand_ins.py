"""Stand-ins for libraries that need a GPU: modules of the same names and signatures, on the CPU.

Each signature in signatures.txt was read from the distribution and version that stands above it.
A stand-in binds what it is called with to that signature, keeps the call, and computes softmax
attention from what the library documents.
"""

import inspect
import sys
import types
from pathlib import Path

import torch

READ = dict(
    line.removesuffix(")").split("(", 1)
    for line in Path(__file__).with_name("signatures.txt").read_text().splitlines()
    if not line.startswith("#")
)


def signature(name):
    return inspect.signature(eval(f"lambda {READ[name]}: None"))


class Library:
    """Stand-in modules, put in place for one test; ``calls`` are what they were called with."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.calls = monkeypatch, []

    def module(self, name, **members):
        made = types.ModuleType(name)
        for member, value in members.items():
            setattr(made, member, value)
        self.monkeypatch.setitem(sys.modules, name, made)
        above, _, last = name.rpartition(".")
        if above:
            if above not in sys.modules:
                self.module(above)
            self.monkeypatch.setattr(sys.modules[above], last, made, raising=False)
        return made

    def as_read(self, name, function):
        """``function(the bound arguments)`` behind the signature that was read."""
        read = signature(name)

        def stand_in(*args, **kwargs):
            bound = read.bind(*args, **kwargs)
            bound.apply_defaults()
            call = types.SimpleNamespace(**bound.arguments)
            self.calls.append((name, call))
            return function(call)

        stand_in.__signature__ = read
        return stand_in


def sees(n, m, causal=False, left=-1, right=-1):
    """Lower-right: query i stands at key i + m - n. -1 or None leaves a side open."""
    away = torch.arange(n)[:, None] + m - n - torch.arange(m)
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen &= away >= 0
    if left is not None and left >= 0:
        seen &= away <= left
    if right is not None and right >= 0:
        seen &= -away <= right
    return seen


def attention(q_bnhd, k_bmcd, v_bmce, scale, seen, added=0.0):
    """Softmax attention, tokens before heads; rows that see nothing give zeros."""
    group = q_bnhd.shape[2] // k_bmcd.shape[2]
    assert q_bnhd.shape[2] == group * k_bmcd.shape[2]
    assert all(x.stride(-1) == 1 for x in (q_bnhd, k_bmcd, v_bmce))
    q, k, v = (x.transpose(1, 2) for x in (q_bnhd, k_bmcd, v_bmce))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    blind = ~seen.any(-1, keepdim=True)
    scores = (q @ k.transpose(-1, -2) * scale + added).masked_fill(~(seen | blind), -torch.inf)
    out = (scores.softmax(-1) @ v).masked_fill(blind, 0.0)
    return out.transpose(1, 2).contiguous()


def blocks(edges):
    """True where two tokens are of one document."""
    owner = torch.bucketize(torch.arange(int(edges[-1])), edges.long(), right=True)
    return owner[:, None] == owner
