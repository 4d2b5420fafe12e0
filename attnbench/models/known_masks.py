"""What a mask's tensor says, found out once: the same one goes through every layer of a step.

A tensor is known again by being the same object, unchanged: torch counts what is written into it
(not what is written past torch, by NumPy say, nor into a tensor made in inference mode, which is
therefore looked at each time). Nothing keeps it alive, and with it goes the file that holds a mask
without a name, so that a bias that is learned leaves no file for each step.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from attnbench.models.mask_of import mask_of, own_folder
from impls.masks import Mask, Shape


@dataclass
class Known:
    """A tensor, how often it had been written to, and what it said, for each form of scores."""

    tensor: weakref.ref[Tensor]
    version: int | None
    masks: dict[tuple[bool, Shape], Mask] = field(default_factory=dict)
    end: weakref.finalize[..., Tensor] | None = None
    """What is done when the tensor is gone."""


class KnownMasks:
    """The masks of the tensors that are alive."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._files: Counter[str] = Counter()
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __call__(self, tensor: Tensor | None, is_causal: bool, shape: Shape) -> Mask:
        """The mask that ``tensor`` and ``is_causal`` are; both mean what F.sdpa takes them for."""
        if tensor is None:
            return mask_of(None, is_causal, shape)
        with self._lock:
            version = None if tensor.is_inference() else tensor._version
            known = self._known.get(id(tensor))
            same = known is not None and known.tensor() is tensor
            if known is None or not same or version is None or known.version != version:
                known = self._learned(tensor, version)
            if (is_causal, shape) not in known.masks:
                mask = mask_of(tensor, is_causal, shape, own_folder("models"))
                known.masks[is_causal, shape] = mask
                self._files.update(part.file for part in mask.parts if part.file)
            return known.masks[is_causal, shape]

    def _learned(self, tensor: Tensor, version: int | None) -> Known:
        key = id(tensor)
        if key in self._known:
            self._forget(key, self._known[key])
        known = Known(weakref.ref(tensor), version)
        self._known[key] = known
        known.end = weakref.finalize(tensor, self._forget, key, known)
        known.end.atexit = False
        return known

    def _forget(self, key: int, known: Known) -> None:
        """A tensor is gone, or says something else now; files that nobody else means go too."""
        with self._lock:
            if self._known.get(key) is known:
                del self._known[key]
            if known.end is not None:
                known.end.detach()
            files = [p.file for mask in known.masks.values() for p in mask.parts if p.file]
            known.masks.clear()
            self._files.subtract(files)
            for file in files:
                if self._files[file] <= 0:
                    del self._files[file]
                    if self._process == os.getpid():  # a forked child's files are its parent's
                        Path(file).unlink(missing_ok=True)


known_mask = KnownMasks()
"""``known_mask(tensor, is_causal, shape)``: one for the process, as the files are."""
