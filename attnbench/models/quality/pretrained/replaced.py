"""The model with its attention replaced, in all layers or in some.

A layer asks its configuration which attention it has. So each layer gets one of its own, and the
weights stay where they are: what is timed against the original differs from it in nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

ORIGINAL = "sdpa"
"""What transformers takes by itself."""
NOTHING = "attnbench_hands_v_on"
"""No attention at all: each token gets its own value. What no variant can be faster than."""


def register_nothing() -> str:
    """What transformers calls no attention."""

    def hand_on(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any,
                **more: Any) -> tuple[Tensor, None]:  # fmt: skip
        return value.transpose(1, 2).contiguous(), None

    AttentionInterface.register(NOTHING, hand_on)
    return NOTHING


class Replaced:
    """A model whose layers can be given another attention, again and again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers: list[Any] = [layer.attention.self for layer in model.encoder.layer]  # type: ignore[union-attr]
        self._configs: dict[str, Any] = {}

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self._layers)

    def use(self, name: str, layers: Collection[int] | None = None) -> None:
        """Another attention in these layers, all if none are named, and the original elsewhere."""
        for number, layer in enumerate(self._layers):
            here = layers is None or number in layers
            layer.config = self._config(name if here else ORIGINAL)

    def _config(self, name: str) -> Any:
        if name not in self._configs:
            config: Any = copy.deepcopy(self.model.config)
            config._attn_implementation = name
            self._configs[name] = config
        return self._configs[name]


def takes_padding(row: Variant, dtype: str, device: str) -> bool:
    """Whether a variant serves texts of unequal length under a mask, as far as its row tells."""
    problem = Problem(batch=2, q_len=8, kv_len=8, mask=Mask.parse("padding:4,8"), dtype=dtype,
                      device=device)  # fmt: skip
    return row.supports(problem) is None


def no_dropout(model: nn.Module) -> None:
    """Train a model without dropping anything: not every variant drops weights."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
