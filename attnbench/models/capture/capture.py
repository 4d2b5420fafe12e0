"""A program's attention calls, recorded while it runs.

``with attnbench.capture() as calls:`` records what this process does, ``attnbench capture --
PROGRAM`` what a program and all Python that it starts do. Functions that compute attention are
replaced by ones that call them and take notes; nothing that is computed changes, to the last bit.

docs/choosing.md has a table of what is seen, what is counted, and what is only named.

A call takes about a tenth of a millisecond longer; that time is taken off the steps and the window
that a share is of, but not on a GPU, which goes on meanwhile. There a share is of the window
alone, never of a step: its seconds are read later than its steps end. Attention that a checkpoint
computes again is counted again: it is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from attnbench.models.capture import functions
from attnbench.models.capture.calls import SeenCalls, merged
from attnbench.models.capture.child import AfterImport
from attnbench.models.capture.libraries import LIBRARIES, put_library
from attnbench.models.capture.recorder import NOW, Recorder
from attnbench.models.capture.stands import Stands
from impls.errors import CantBeDone


@contextmanager
def capture() -> Iterator[SeenCalls]:
    """Record this process's attention calls; what is yielded is filled in at the end.

    Masks without a name are kept as files for as long as this process lives. Raises ``CantBeDone``
    where this process is being captured already.
    """
    session = Session(Recorder())
    calls = SeenCalls(complete=False)
    session.begin(running=True)
    try:
        yield calls
    finally:
        session.end()
        recorded = merged([session.recorder.calls(complete=True)])
        if not recorded.sites and not recorded.header.get("met"):
            recorded.unseen.insert(0, UNWATCHED)
        for name in SeenCalls.__struct_fields__:
            setattr(calls, name, getattr(recorded, name))


UNWATCHED = (
    "no call was seen; a function that the program had before in an object, a closure or a list of "
    "its own, and not among the names of a module, is not watched: 'attnbench capture -- PROGRAM' "
    "sees it"
)
RULES = "torch._dynamo"  # whole: the rules name functions that it defines last
FLEX = "torch.nn.attention.flex_attention"


class Session:
    """From :meth:`begin` to :meth:`end`; one at a time."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._stands = Stands()
        self._optimizers: Any = None
        actions = {
            FLEX: lambda: functions.put_flex(self._stands),
            RULES: self._load_rules,
            functions.MODULE: lambda: functions.put_transformers(self._stands),
        }
        actions |= {name: partial(put_library, self._stands, name) for name in LIBRARIES}
        self._imports = AfterImport(actions, recorder.report_failure)

    def begin(self, *, running: bool) -> None:
        """Record from now on; raises CantBeDone where this process is being captured already.

        ``running``: the program runs already, and may have the functions under other names.
        """
        if NOW.recorder is not None:
            raise CantBeDone("this process is being captured already; end that first")
        try:
            functions.put_torch(self._stands)
            self._imports.begin()
            if running:
                self._stands.spread()
            self._optimizers = register_optimizer_step_post_hook(self._stepped)
        except BaseException:
            self.end()
            raise
        self.recorder.replaced = self._stands.replaced
        NOW.recorder = self.recorder

    def _load_rules(self) -> None:
        """Let the compiler find what it knows by identity while torch's functions are its own."""
        from torch._dynamo import trace_rules

        with self._stands.paused():
            trace_rules.clear_lru_cache()  # of what its own import may have asked
            trace_rules.get_torch_obj_rule_map()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if NOW.recorder is not None:
            self.recorder.steps.stepped(optimizer)

    def end(self) -> None:
        """Put everything back as it was before."""
        NOW.recorder = None
        self._imports.end()
        if self._optimizers is not None:
            self._optimizers.remove()
        self.recorder.replaced = self._stands.replaced().copy
        self._stands.close()
