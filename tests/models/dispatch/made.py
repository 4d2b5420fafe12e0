"""What tests of dispatch make: tables of one entry, inputs, and what is true of them."""

import warnings

import torch

import attnbench
from attnbench.answer.dispatch_table import DispatchEntry, DispatchTable, Range
from attnbench.core.machine import this_machine
from attnbench.models.dispatch import DispatchWarning
from impls.problem import INPUTS


def made(**more):
    here = {"device": "cpu", "torch": torch.__version__, "machine": this_machine().name}
    ours = {"threads": 1, "attnbench": attnbench.__version__, "protocol": 2, "run": "r"}
    return {**here, **ours, "inputs": list(INPUTS), **more}


def entry(variant="spy", **more):
    ranges = more.pop("ranges", (Range(1, 64, more.pop("queries", "same"), variant),))
    kind = {"phase": "forward", "mask": "none", "dtype": "float32", "heads": 4, "kv_heads": 4}
    sizes = {"head_dim": 8, "v_head_dim": 8, "batch": (1, 4), "ranges": ranges}
    return DispatchEntry(**{**kind, **sizes, **more})


def table(*entries, **more):
    return DispatchTable(made(**more), entries=entries or (entry(),))


def by_hand(q, k, v, *, causal=False):
    """Softmax attention in float64, written out; causal is torch's, from the upper left corner."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5
    if causal:
        rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = scores.masked_fill(keys > rows, float("-inf"))
    return torch.einsum("bhnm,bhme->bhne", scores.softmax(-1), v)


def silently(function, *given, **more):
    """What a call gives that says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DispatchWarning)
        return function(*given, **more)
