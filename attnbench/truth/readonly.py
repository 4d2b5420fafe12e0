"""Does it leave its inputs alone? One call whose inputs lie on pages that nobody may write to.

A variant that writes to its inputs and puts them back looks honest before and after. Here the
write itself kills the process: whoever started it is told beforehand what such a death means.
Only on the CPU, and only where there is somebody to tell.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from attnbench.truth.call import Attend, Call
from attnbench.truth.reference import Judged

Announce = Callable[[str], None]
"""Told what it means if the process dies of a forbidden access now; an empty text: no more."""
WROTE = "it wrote to its inputs (they were write-protected while it ran)"

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def check_writes_nothing(judged: Judged, attend: Attend, announce: Announce) -> None:
    """Call it, backward too, on protected pages. The process dies where it writes to them."""
    if judged.problem.device != "cpu":
        return
    call, dout = Call(judged.problem, attend, judged.inputs), judged.dout
    held = [*call.leaves, *call.new, *([] if dout is None else [dout])]
    with _protected(held) as safe:
        count, new = len(call.leaves), len(call.new)
        call.leaves, call.new = safe[:count], safe[count : count + new]
        announce(WROTE)
        out = call.forward()
        if dout is not None:
            call.backward(out, safe[-1])
        announce("")


@contextmanager
def _protected(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The same tensors, on pages of their own that may be read and nothing else."""
    pages = [mmap.mmap(-1, max(1, x.numel() * x.element_size())) for x in tensors]
    copies = []
    for x, page in zip(tensors, pages, strict=True):
        copy = torch.frombuffer(page, dtype=x.dtype, count=x.numel()).view(x.shape)
        copies.append(copy.copy_(x.detach()).requires_grad_(x.requires_grad))
    try:
        for page in pages:
            _protect(page, mmap.PROT_READ)
        yield copies
    finally:
        for page in pages:  # whoever kept one of them may write to it again
            with suppress(OSError):
                _protect(page, mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(page: mmap.mmap, how: int) -> None:
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if _mprotect(start, len(page), how) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
