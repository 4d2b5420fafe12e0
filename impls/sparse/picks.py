"""Picking the largest of many numbers, ties settled."""

import torch
from torch import Tensor


def largest(x: Tensor, count: int) -> Tensor:
    """The places of the largest in the last dimension; of equal ones, those that come first.

    torch.topk leaves open which of several equal numbers it takes; only rows where that matters
    are looked at again. Of -inf any will do.
    """
    values, where = x.topk(count, sorted=False)
    least = values.amin(-1, keepdim=True)
    crowded = ((x >= least).sum(-1) > count) & (least[..., 0] > -torch.inf)
    if bool(crowded.any()):
        rows, level = x[crowded], least[crowded]
        above, equal = rows > level, rows == level
        room = count - above.sum(-1, keepdim=True)
        winners = above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= room))
        where[crowded] = winners.nonzero()[:, 1].view(-1, count)
    return where
