"""The smallest model in which softmax attention solves the task, around any core.

    x       = E[token]
    q, k, v = W [norm x_t ; norm x_(t-1)]           a token and the one before it
    x       = x + W_o norm(core(q, k, v))           by heads, causal
    x       = x + W_2 gelu(W_1 norm x)
    logits  = W_V norm x                            one for each value

A value's place sees the key before it, so that one layer will do: its key holds the pair's key, its
value the pair's value. Every variant has these parameters and no others, and the same first values
for a seed; what a row draws from a seed of its own (random features, gates) stays as it was drawn.
Each head's output is brought to unit variance without parameters, as the recurrences' papers do:
what is no average of values grows with the length otherwise.

Legend: b sequences, n tokens, h heads, d head_dim, E width, V values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.models.quality.recall.setting import Setting

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``core(q, k, v)``, causal, [b, h, n, d] each."""


class Layer(nn.Module):
    """Attention on pairs of neighbours, then an MLP; both beside the tokens' own way."""

    def __init__(self, width: int, heads: int, core: Core) -> None:
        super().__init__()
        self.heads, self.core = heads, core
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into = nn.Linear(2 * width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x_bnE: Tensor) -> Tensor:
        """The tokens, with what they recalled."""
        x_bnE = x_bnE + self.attended(self.norm(x_bnE))
        hidden = F.gelu(self.up(self.norm_mlp(x_bnE)))
        out: Tensor = x_bnE + self.down(hidden)
        return out

    def attended(self, y_bnE: Tensor) -> Tensor:
        """What the core makes of a token and the one before it."""
        before_bnE = F.pad(y_bnE[:, :-1], (0, 0, 1, 0))
        heads_bnx = self.into(torch.cat((y_bnE, before_bnE), -1)).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in heads_bnx)
        out_bhnd = self.core(q, k, v)
        out_bhnd = F.layer_norm(out_bhnd, out_bhnd.shape[-1:])
        out: Tensor = self.out(out_bhnd.transpose(1, 2).flatten(2))
        return out


class Model(nn.Module):
    """Tokens to logits of the values."""

    def __init__(self, setting: Setting, core: Core) -> None:
        super().__init__()
        width = setting.width
        self.embedding = nn.Embedding(setting.task.tokens, width)
        layers = [Layer(width, setting.heads, core) for _ in range(setting.layers)]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, setting.values, bias=False)

    def forward(self, tokens_bn: Tensor) -> Tensor:
        """[b, n, V]"""
        logits: Tensor = self.head(self.norm(self.layers(self.embedding(tokens_bn))))
        return logits


def made(setting: Setting, core: Core, seed: int) -> Model:
    """A model whose first values follow from the seed alone."""
    torch.manual_seed(seed)
    return Model(setting, core).to(setting.device)
