"""What all variants of a process share, left changed: random states, settings."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from attnbench.truth.planted.core import beforehand, honest
from impls.heads import Attend
from impls.problem import Problem


def build_seeds_torch(problem: Problem, deed: bool = True) -> Attend:
    """Seeds torch's global generator at every call."""
    own = torch.Generator()
    return beforehand(problem, lambda *_: (torch.manual_seed if deed else own.manual_seed)(7))


def build_draws_from_numpy(problem: Problem, deed: bool = True) -> Attend:
    """Draws from NumPy's global generator at every call."""
    own = np.random.RandomState(7)
    return beforehand(problem, lambda *_: (np.random if deed else own).rand())


def build_seeds_random(problem: Problem, deed: bool = True) -> Attend:
    """Seeds Python's global generator at every call."""
    own = random.Random(7)
    return beforehand(problem, lambda *_: (random if deed else own).seed(7))


def build_threads(problem: Problem, deed: bool = True) -> Attend:
    """Takes more of torch's threads than it was given."""
    if deed:
        torch.set_num_threads(torch.get_num_threads() + 1)
    return honest(problem)


def build_anomaly(problem: Problem, deed: bool = True) -> Attend:
    """Has torch look for NaN after every step of every backward pass."""
    if deed:
        torch.autograd.set_detect_anomaly(True)
    return honest(problem)


def build_sdpa(problem: Problem, deed: bool = True) -> Attend:
    """Takes the flash kernel from every other variant."""
    if deed:
        torch.backends.cuda.enable_flash_sdp(False)
    return honest(problem)


def build_kernel(problem: Problem, deed: bool = True) -> Attend:
    """A product of its own in place of torch's, for everybody."""
    inner, library = honest(problem), torch.library.Library("aten", "FRAGMENT")
    if deed:
        library.impl("square", lambda x: x * x, "CPU")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert library is not None  # it lives as long as this
        return inner(q, k, v)

    return attend


def build_default_dtype(problem: Problem, deed: bool = True) -> Attend:
    """Leaves another default dtype behind."""
    if deed:
        torch.set_default_dtype(torch.float64)
    return honest(problem)
