"""What costs more than it seems to, and what never ends well."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np
import torch
from torch import Tensor

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem

HOG_BYTES = 96 << 20
SLEEP_S = 0.02
STATUS = 7
FOREVER_S = 3600.0


def build_hog_torch(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by torch, and gives it back before it returns."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.zeros(HOG_BYTES if deed else 1, dtype=torch.uint8)
        return inner(q, k, v)

    return attend


def build_hog_numpy(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by NumPy, and gives it back before it returns."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        np.ones(HOG_BYTES if deed else 1, dtype=np.uint8)
        return inner(q, k, v)

    return attend


def build_hog_mmap(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory past both, and gives it back before it returns."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = HOG_BYTES if deed else mmap.PAGESIZE
        with mmap.mmap(-1, size) as taken:
            for page in range(0, size, mmap.PAGESIZE):
                taken[page] = 1
        return inner(q, k, v)

    return attend


def build_sleep(problem: Problem, deed: bool = True) -> Attend:
    """Sleeps before it computes."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        time.sleep(SLEEP_S * deed)
        return inner(q, k, v)

    return attend


def build_exit(problem: Problem, deed: bool = True) -> Attend:
    """Ends the process."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if deed:
            os._exit(STATUS)
        return inner(q, k, v)

    return attend


def build_hang(problem: Problem, deed: bool = True) -> Attend:
    """Never returns."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        time.sleep(FOREVER_S * deed)
        return inner(q, k, v)

    return attend


def build_segfault(problem: Problem, deed: bool = True) -> Attend:
    """Reads where nothing is."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if deed:
            ctypes.string_at(0)
        return inner(q, k, v)

    return attend
