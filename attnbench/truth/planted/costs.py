"""What costs more than it seems to, and what never ends well."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np
import torch
from torch import Tensor

from attnbench.truth.planted.core import beforehand, honest
from impls.heads import Attend
from impls.problem import Problem

HOG_BYTES = 96 << 20
SLEEP_S = 0.02
STATUS = 7
FOREVER_S = 3600.0


def build_hog_torch(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by torch, and gives it back before it returns."""
    size = HOG_BYTES if deed else 1
    return beforehand(problem, lambda *_: torch.zeros(size, dtype=torch.uint8))


def build_hog_numpy(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by NumPy, and gives it back before it returns."""
    size = HOG_BYTES if deed else 1
    return beforehand(problem, lambda *_: np.ones(size, dtype=np.uint8))


def build_hog_mmap(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory past both, and gives it back before it returns."""
    size = HOG_BYTES if deed else mmap.PAGESIZE

    def take(*_: Tensor) -> None:
        with mmap.mmap(-1, size) as taken:
            for page in range(0, size, mmap.PAGESIZE):
                taken[page] = 1

    return beforehand(problem, take)


def build_profiled(problem: Problem, deed: bool = True) -> Attend:
    """Does nothing while a profiler is on, so that no memory is seen."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if deed and torch.autograd._profiler_enabled():
            return q * 0.0
        return inner(q, k, v)

    return attend


def build_sleep(problem: Problem, deed: bool = True) -> Attend:
    """Sleeps before it computes."""
    return beforehand(problem, lambda *_: time.sleep(SLEEP_S * deed))


def build_exit(problem: Problem, deed: bool = True) -> Attend:
    """Ends the process."""

    def leave(*_: Tensor) -> None:
        if deed:
            os._exit(STATUS)

    return beforehand(problem, leave)


def build_hang(problem: Problem, deed: bool = True) -> Attend:
    """Never returns."""
    return beforehand(problem, lambda *_: time.sleep(FOREVER_S * deed))


def build_segfault(problem: Problem, deed: bool = True) -> Attend:
    """Reads where nothing is."""

    def read(*_: Tensor) -> None:
        if deed:
            ctypes.string_at(0)

    return beforehand(problem, read)
