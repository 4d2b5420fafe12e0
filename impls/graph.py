"""Shared by variants in torch.compile: a function compiled apart from every other use of it.

torch keeps what it compiled by code object, and fails a function of which it compiled more than
``torch._dynamo.config.recompile_limit`` forms. A :class:`Graph` has a code object of its own: it
meets that limit alone, and leaves alone what the program around it compiled.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor.exc import InductorError

_number = itertools.count()


class Graph:
    """``function`` compiled for one problem, or with ``lengths`` for all of one kind.

    With ``lengths`` torch compiles the first problem as it is and the next for any length. Where
    it can't do that, a warning says so, and each problem is compiled by itself.
    """

    def __init__(
        self, function: Callable[..., Any], *, lengths: bool = False,
        options: dict[str, str | int | bool | Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        self._function, self._options, self.lengths = function, options, lengths
        self._run = self._fresh()

    def __call__(self, *inputs: Any) -> Any:
        """The function's result; compiles where nothing that was compiled fits."""
        run = self._run
        try:
            return run(*inputs)
        except FailOnRecompileLimitHit:  # layouts and modes, beside lengths: it begins anew
            pass
        except InductorError as error:
            if not self.lengths:
                raise
            self.lengths = False
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"torch can't compile {self._function.__name__.strip('_')} for several lengths at "
                f"once, so each is compiled by itself, some seconds each: {reason}", stacklevel=2,
            )  # fmt: skip
        self._run = run = self._fresh()
        return run(*inputs)

    def another(self) -> Graph:
        """This one where it serves other lengths too, else one more of the same function."""
        return self if self.lengths else Graph(self._function, options=self._options)

    def _fresh(self) -> Callable[..., Any]:
        code, name = self._function.__code__, f"{self._function.__name__}_{next(_number)}"
        own = FunctionType(code.replace(co_name=name), self._function.__globals__, name)
        return torch.compile(
            own, fullgraph=True, dynamic=None if self.lengths else False, options=self._options
        )
