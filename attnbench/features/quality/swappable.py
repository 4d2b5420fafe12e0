"""A model of transformers that can be given another attention, again and again."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import nn
from transformers.utils import logging

from attnbench.answer.paste import spelled
from attnbench.models.attention import NotServed
from attnbench.models.transformers import OTHERS

ORIGINAL = "sdpa"
"""The attention that a model is loaded with, if it can be."""


def load_quietly() -> None:
    """No bars and no warnings of transformers' own."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class SwappableModel:
    """The model and the configuration that its modules share, a copy for each attention."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.device = model, next(model.parameters()).device
        own: Any = model.config
        self._sharers = [
            module for module in model.modules() if getattr(module, "config", 0) is own
        ]
        self.layers = [module for module in self._sharers if hasattr(module, "layer_idx")]
        """Those that compute attention, in their order."""
        self.original: str = own._attn_implementation
        """The attention that it was loaded with."""
        self._configs: dict[str, Any] = {}

    def use(self, name: str, only: Collection[int] | None = None) -> None:
        """Put an attention into all layers, or into some; the others have their own, by the name
        under which it reads the mask that all layers get without writing it out.
        """
        for module in self._sharers:
            module.config = self._config(name)
        if only is not None and name != self.original:
            own = spelled(ORIGINAL) if self.original == ORIGINAL else self.original
            for number in set(range(len(self.layers))).difference(only):
                self.layers[number].config = self._config(own)

    def _config(self, name: str) -> Any:
        if name not in self._configs:
            config: Any = copy.deepcopy(self.model.config)
            config._attn_implementation = name
            self._configs[name] = config
        return self._configs[name]


def own_words(why: NotServed) -> str:
    """A variant's own sentence, without the layer that called it and the alternatives."""
    return str(why).partition(": ")[2].removesuffix(f"; {OTHERS}")
