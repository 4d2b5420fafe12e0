"""A program's attention calls, recorded while it runs.

``with attnbench.capture() as calls:`` records what this process does, ``attnbench capture --
PROGRAM`` what a program and all Python that it starts do. Functions that compute attention are
replaced by ones that call them and take notes; nothing that is computed changes, to the last bit.

==================  ==============================================================================
seen                ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``,
                    ``nn.TransformerEncoder`` (also on their fast path), FlexAttention (also
                    compiled by itself), every attention function that transformers gives a model:
                    its eager ones, sdpa, flash, flex and registered ones; in all threads
met, not counted    calls inside of what ``torch.compile`` compiles: which problems, not how often
met, not recorded   attention written out as products and a softmax; said with its place
not seen            other libraries' kernels, called directly; a softmax written as exponentials;
                    Python started with ``-I``, ``-E`` or ``-S``, or with packages of its own that
                    are named as ours; with ``attnbench.capture()``, a function that a running
                    function has in a variable of its own, that is another one's default, in a
                    tuple, or in a ``functools.partial``, and code that was compiled before
==================  ==============================================================================

A call takes about a tenth of a millisecond longer; that time is taken off the steps and the window
of which a share is told, but not on a GPU, which goes on meanwhile. There a share is of the window
alone, never of a step: its seconds are read later than its steps end. Attention that a checkpoint
computes again is counted again: it is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.models.calls import Calls


@contextmanager
def capture(samples: bool | str | Path = False) -> Iterator[Calls]:
    """Record this process's attention calls; what is given is filled in at the end.

    ``samples``: keep the q, k and v of one call of each place and kind, in a folder of that name
    (``attention-samples`` if it is just true), as ``inputs=captured:FILE.npz`` takes them. Masks
    without a name are kept as files for as long as this process lives.
    """
    from attnbench.models.calls import Calls
    from attnbench.models.capture.recorder import Recorder
    from attnbench.models.capture.session import Session
    from attnbench.models.merged import merged

    folder = Path("attention-samples" if samples is True else samples) if samples else None
    session = Session(Recorder(samples=folder and folder.resolve()))
    calls = Calls(complete=False)
    session.begin(running=True)
    try:
        yield calls
    finally:
        session.end()
        vars(calls).update(vars(merged([session.recorder.calls(complete=True)])))
