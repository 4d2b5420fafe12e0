"""The others, as one process sees them: the few exchanges that ring and ulysses are made of.

A rank numbers the process; ``world`` of them share a problem. Exchanges are of plain tensors and
know nothing of gradients: what uses them says what goes back. Bytes handed to *other* ranks are
counted in ``sent``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Coming:
    """A tensor on its way from another rank."""

    def __init__(self, outgoing: Tensor, coming: Tensor, works: list[Any]) -> None:
        self._outgoing, self._coming, self._works = outgoing, coming, works

    def wait(self) -> Tensor:
        """The tensor, once it is there and what was given has left."""
        for work in self._works:
            work.wait()
        return self._coming


class Ranks:
    """This process among those that share a problem."""

    def __init__(self, rank: int, world: int, group: Any = None) -> None:
        """``group``: torch's process group; None for the one of all processes."""
        self.rank, self.world, self.group = rank, world, group
        self.sent = 0
        """Bytes handed to other ranks so far."""
        self._exchanges = 0

    def rotate(self, x: Tensor) -> Coming:
        """Give a tensor to the next rank; what comes is the same of the rank before.

        Nothing is waited for, so that there can be work meanwhile; what was given must stay as it
        is until the other has come.
        """
        outgoing = x.contiguous()
        coming = torch.empty_like(x, memory_format=torch.contiguous_format)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self._exchanges += 1  # as often on every rank: several tensors under way are not confused
        tag = self._exchanges
        send = dist.P2POp(dist.isend, outgoing, after, self.group, tag)
        receive = dist.P2POp(dist.irecv, coming, before, self.group, tag)
        self.sent += outgoing.numel() * outgoing.element_size()
        return Coming(outgoing, coming, dist.batch_isend_irecv([send, receive]))

    def all_to_all(self, x: Tensor) -> Tensor:
        """Part r of a tensor [world, …] to rank r, and from each rank the part for this one."""
        outgoing = x.contiguous()
        coming = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(coming, outgoing, group=self.group)
        self.sent += outgoing.numel() * outgoing.element_size() * (self.world - 1) // self.world
        return coming
