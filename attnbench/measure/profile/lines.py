"""Which line of a variant's code is running, said to the profiler as it changes.

Python's own tracing calls back at every line of the variant's files, and a mark goes into the
profiler's events: what lies between two marks was done by the line of the first. So memory taken
inside a kernel has a line too, and so does what a compiled function does: that of its call.
"""

from __future__ import annotations

import inspect
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch._C._profiler import _RecordFunctionFast

import impls
from impls.loading import load_function
from impls.spec import Variant

MARK = "attnbench line: "


def files_of(variant: Variant) -> tuple[str, ...]:
    """Where a variant's code lies: the table's package, and its own file (its core's too)."""
    own = [inspect.getfile(load_function(v.build)) for v in (variant, variant.core) if v]
    return (str(Path(impls.__file__).parent), *own)


class Marks:
    """The marks that were set. ``arrays``: bytes that Python's allocators hold at each, and the
    most since the one before, where they are traced.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self.arrays: list[tuple[int, int]] = []

    def enter(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every function that is called: follow its lines if it is the variant's."""
        return self.follow if self._own(frame) else None

    def follow(self, frame: FrameType, what: str, _: Any) -> Any:
        """For every line, and the end, of such a function."""
        at: FrameType | None = frame
        if what == "return":
            at = frame.f_back
            while at is not None and not self._own(at):
                at = at.f_back
        if what in ("line", "return"):
            self._set("" if at is None else f"{at.f_code.co_filename}:{at.f_lineno}")
        return self.follow

    def _own(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._files)

    def _set(self, place: str) -> None:
        if tracemalloc.is_tracing():
            self.arrays.append(tracemalloc.get_traced_memory())
            tracemalloc.reset_peak()
        with _RecordFunctionFast(MARK + place):
            pass


@contextmanager
def marked(files: tuple[str, ...]) -> Iterator[Marks]:
    """Set marks inside the block."""
    marks, before = Marks(files), sys.gettrace()
    sys.settrace(marks.enter)
    try:
        yield marks
    finally:
        sys.settrace(before)
