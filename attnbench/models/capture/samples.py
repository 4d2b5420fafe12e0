"""Samples of real q, k and v: a file for a place and kind of problem, the first call's.

Bounded: at most ``MOST`` files and ``BYTES`` altogether. Half precision that NumPy has not is kept
as float32, from which it comes back as it was.
"""

from __future__ import annotations

import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.models.gathered import octave
from impls.problem import Problem

MOST = 32
BYTES = 2**30


class Samples:
    """Files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._had: set[Any] = set()
        self._left = BYTES
        self.skipped = 0

    def keep(self, place: str, problem: Problem, qkv: tuple[Tensor, Tensor, Tensor]) -> str:
        """The file of this call's tensors; nothing where there is one of its kind, or no room."""
        kind = (place, problem.phase, octave(problem), problem.heads, problem.head_dim)
        size = sum(x.numel() * min(x.element_size() * 2, 8) for x in qkv)
        with self._lock:
            if kind in self._had:
                return ""
            if len(self._had) >= MOST or size > self._left:
                self.skipped += 1
                return ""
            self._had.add(kind)
            self._left -= size
        arrays = {name: _array(x) for name, x in zip("qkv", qkv, strict=True)}
        if not all(np.isfinite(x).all() for x in arrays.values()):
            return ""
        file = self._new_file()
        np.savez(file, **arrays)
        return str(file)

    def _new_file(self) -> Path:
        """By a number that no file has: earlier captures of this process may have left some."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = (self.folder / f"{os.getpid()}-{number:02}.npz" for number in count(1))
        with self._lock:
            file = next(name for name in names if not name.exists())
            file.touch()
        return file


def _array(x: Tensor) -> Any:
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()
