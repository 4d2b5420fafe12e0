"""Whether calls are being recorded at this moment, and by whom: what every stand-in asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnbench.models.capture.clocks import Begun
from attnbench.models.capture.tally import Counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnbench.models.capture.asked import Call
    from attnbench.models.capture.recorder import Recorder


class Now:
    """One for a process: its recorder, or none."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    @property
    def on(self) -> bool:
        """Whether anybody records."""
        return self.recorder is not None

    def state(self) -> Counts:
        """What this thread is in the middle of, also where recording has ended meanwhile."""
        recorder = self.recorder
        return Counts() if recorder is None else recorder.tally.mine()

    def begin(self, query: Any, *, nested: bool = False) -> Begun | None:
        """Just before a call; None where it will not be recorded."""
        recorder = self.recorder
        if recorder is None or not isinstance(query, Tensor):
            return None
        if torch.jit.is_tracing():
            recorder.amiss[
                "torch.jit traced it, and what is traced is not called by its sizes"
            ] += 1
            return None
        if query.is_nested and not nested:
            recorder.amiss["its tensors are nested, and a problem's are not"] += 1
            return None
        return recorder.clocks.begin(query)

    def made(self, call: Callable[[], Call], out: Any, begun: Begun) -> None:
        """Just after it; ``call`` says which it was. Inside of a library's it is a part of that."""
        if (recorder := self.recorder) is None:
            return
        state = recorder.tally.mine()
        if state.outer is not None:
            state.calls.append(call)
        else:
            recorder.made(call, out, begun)

    def written_out(self, place: str) -> None:
        """Attention that was written out there."""
        if (recorder := self.recorder) is not None:
            recorder.wrote_out(place)

    def met(self, context: Any, read: Callable[[Any, Recorder], Any]) -> None:
        """A call that torch's compiler met, and what reads its arguments."""
        if (recorder := self.recorder) is not None:
            read(context, recorder)


NOW = Now()
