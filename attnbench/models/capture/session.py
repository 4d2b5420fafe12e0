"""A stretch of a process's life in which its attention calls are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from attnbench.models.capture import flex_calls, torch_calls, transformers_calls, written_out
from attnbench.models.capture.imports import After
from attnbench.models.capture.now import NOW
from attnbench.models.capture.originals import Stands
from attnbench.models.capture.recorder import Recorder
from impls.asked import CantBeDone

RULES = "torch._dynamo.trace_rules"
GRAPHS = "torch._dynamo.output_graph"
FLEX = "torch.nn.attention.flex_attention"


class Session:
    """From :meth:`begin` to :meth:`end`; one at a time."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._stands = Stands()
        self._optimizers: Any = None
        deeds = {
            FLEX: lambda: flex_calls.put(self._stands, NOW),
            RULES: self._rules,
            GRAPHS: lambda: written_out.put_graphs(self._stands, NOW),
            transformers_calls.MODULE: lambda: transformers_calls.put(self._stands, NOW),
        }
        self._imports = After(deeds, recorder.failed)

    def begin(self, *, running: bool) -> None:
        """``running``: the program runs already, and may have the functions under other names."""
        if NOW.on:
            raise CantBeDone("this process is being captured already; end that first")
        try:
            self._put(running)
        except BaseException:
            self.end()
            raise
        NOW.recorder = self.recorder

    def _rules(self) -> None:
        """Let the compiler find what it knows by identity while torch's functions are its own."""
        from torch._dynamo import trace_rules

        with self._stands.paused():
            trace_rules.get_torch_obj_rule_map()

    def _put(self, running: bool) -> None:
        if RULES in sys.modules:
            self._rules()
        torch_calls.put(self._stands, NOW)
        written_out.put(self._stands, NOW)
        flex_calls.put_compile(self._stands)
        flex_calls.put_script(self._stands)
        self._imports.begin()
        if running:
            self._stands.spread()
        self._optimizers = register_optimizer_step_post_hook(self._stepped)

    def end(self) -> None:
        """Everything is as it was before."""
        NOW.recorder = None
        self._imports.end()
        if self._optimizers is not None:
            self._optimizers.remove()
        self._stands.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded for a moment, and torch's functions are its own."""
        NOW.recorder = None
        try:
            with self._stands.paused():
                yield
        finally:
            NOW.recorder = self.recorder

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if NOW.recorder is not None:
            NOW.recorder.steps.stepped(optimizer)
