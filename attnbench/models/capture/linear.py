"""Stand-ins for layers that are no softmax attention: they take their share of a step.

They are found by the names of functions: the delta rule and its kin, state spaces, linear
attention. Their sites say that they are operators of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from attnbench.models.capture.functions import Stands
from attnbench.models.capture.libraries import stand_in
from attnbench.models.capture.recorder import CapturedCall

PACKAGES = ("fla.ops.", "mamba_ssm.ops.", "transformers.models.")
FUNCTION = re.compile(
    "(?!_|load_|apply_|compute_|naive_).*"
    "(delta_rule|delta_attention|chunk_scan|scan_combined|selective_scan|selective_state_update|"
    "mamba_inner|linear_attention)"
)
LAYER = re.compile(".*(LightningAttention|Rglru)$")
KIN = (
    ("delta|kda|gdn", "delta"),
    ("retention|lightning", "retention"),
    ("gla|rwkv|gsa|hgrn|rglru", "gla"),
    ("linear_att", "linear.identity"),
    ("scan|mamba|state_update", "ssd"),
)
"""The row of the table that is nearest, by a part of the name."""
MOST_NODES = 8192  # of a gradient, where the function is written out step by step


def put_linear(stands: Stands, module: ModuleType) -> None:
    """Stand for what a module that has been imported has of these."""
    for owner, name, text in _found(module):
        original = getattr(owner, name)
        if not hasattr(original, "__attnbench__"):
            read = partial(_read, text, text is not name)
            stands.put(owner, name, partial(stand_in, read))


def _found(module: ModuleType) -> Iterator[tuple[Any, str, str]]:
    """Owner, attribute, and how a user knows it."""
    of_fla = module.__name__.startswith("fla.ops.")
    if of_fla and module.__name__.count(".") != 2:
        return  # a part of what the package above it has
    names = getattr(module, "__all__", ()) if of_fla else list(vars(module))
    for name in names:
        thing = getattr(module, name, None)
        if isinstance(thing, FunctionType | nn.Module):  # which `kernels` makes of a function
            own = of_fla or isinstance(thing, nn.Module) or thing.__module__ == module.__name__
            kernel = name.startswith(("chunk", "fused", "parallel")) if of_fla else False
            if own and name != "parallel_attn" and (kernel or FUNCTION.match(name)):
                yield module, name, name
        elif LAYER.match(name) and isinstance(thing, type) and issubclass(thing, nn.Module):
            yield thing, "forward", name


def _read(text: str, layer: bool, values: Mapping[str, Any]) -> CapturedCall:
    qkv = [x.detach() for x in _qkv(text, values)]
    kin = next((row for part, row in KIN if re.search(part, text.lower())), None)
    note = "an operator of its own, no softmax"
    note += f"; its kin in the table is {kin}" if kin else ""
    note += "; its seconds are the whole layer's" if layer else ""
    heads = max(x.shape[1] for x in qkv)
    q, k, v = (x if x.shape[1] == heads else x[:, :1].expand(-1, heads, -1, -1) for x in qkv)
    return CapturedCall(
        text,
        q,
        k,
        v,
        is_causal=True,
        note=note,
        faithful=False,
        ends=tuple(x for x in values.values() if isinstance(x, Tensor)),
        most_nodes=MOST_NODES,
    )


def _qkv(text: str, values: Mapping[str, Any]) -> list[Tensor]:
    """As [batch, heads, length, width]; the states of a state space are queries and keys."""
    if "selective_scan" in text or "mamba_inner" in text:  # [batch, width, length]
        first = next(x for x in values.values() if isinstance(x, Tensor)).mT[:, None]
        return [first, first, first]
    tensors = {name: x for name, x in values.items() if isinstance(x, Tensor) and x.dim() > 2}
    if "state_update" in text:  # one token: [batch, heads, width] and [batch, groups, states]
        names = ("C", "B", "x" if "x" in values else "hidden_states")
        return [
            (x if x.dim() == 3 else x[:, None])[:, :, None] for x in map(values.__getitem__, names)
        ]
    named = (("query", "q", "r", "C"), ("key", "k", "B"), ("value", "v", "hidden_states", "x"))
    found = [next((tensors[x] for x in some if x in tensors), None) for some in named]
    any_one = next(iter(tensors.values()))
    qkv = [any_one if x is None else x for x in found]
    return [x[:, None] if x.dim() == 3 else x.transpose(1, 2) for x in qkv]
