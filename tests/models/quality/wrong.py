"""Code that does something else than its row says."""

import torch
import torch.nn.functional as F


def last_head(problem):
    """Softmax attention, but for the last head, which hands its values on."""

    def attend(q, k, v):
        return torch.cat([F.scaled_dot_product_attention(q, k, v)[:, :-1], v[:, -1:]], 1)

    return attend


def no_numbers(problem):
    """Nothing that could be told."""
    return lambda q, k, v: v * torch.nan
