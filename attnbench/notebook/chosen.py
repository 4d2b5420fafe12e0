"""``attnbench.choose(…)``: which attention for these shapes and limits, and what proves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import impls
from attnbench import given
from attnbench.answer.choice import asking, paste
from attnbench.answer.choice.choice import Choice
from attnbench.answer.choice.measuring import Means
from attnbench.answer.choice.wants import Wants
from attnbench.machine import this_machine
from attnbench.notebook.asked import BadWord, changes, held, read, several
from attnbench.notebook.measured import interrupt
from attnbench.notebook.progress import OneLine
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import one_problem
from attnbench.sweep.run import Stopped

if TYPE_CHECKING:
    import pandas as pd

    from impls.problem import Problem


@dataclass(frozen=True)
class Chosen:
    """An answer: printed it is its sentence, as the last word of a cell its table too."""

    choice: Choice

    @property
    def variant(self) -> str | None:
        """Who is chosen; None where nobody is, and the sentence says why."""
        return self.choice.winner.variant if self.choice.winner else None

    @property
    def code(self) -> str:
        """The lines that use it."""
        return "\n".join(paste.pasted(self.choice)["code"])

    @property
    def proof(self) -> str:
        """The command that proves it."""
        return str(paste.pasted(self.choice)["proof"])

    def to_frame(self) -> pd.DataFrame:
        """Everybody who could be chosen, the fastest first, a row each."""
        import pandas as pd

        return pd.DataFrame([c.to_dict() for c in self.choice.ranked])

    def __str__(self) -> str:
        return self.choice.sentence()

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        said = f"<p><b>{escape(str(self))}</b></p>"
        if self.variant is None:
            return said
        table = self.to_frame().to_html(index=False, escape=True)
        pasted = f"<pre>{escape(self.code)}</pre><p><code>{escape(self.proof)}</code></p>"
        return said + table + pasted


def choose(
    seq: int | str, *, batch: int | None = None, heads: int | None = None,
    kv_heads: int | None = None, head_dim: int | None = None, v_head_dim: int | None = None,
    dtype: Any = None, mask: str | None = None, phase: str | None = None,
    device: str | None = None, max_memory: int | str | None = None,
    max_error: float | None = None, exact: bool = False, allow: str | Iterable[str] = (),
    runs: str | Path | Iterable[str | Path] = (), measure: bool = False,
    tables: str | Path | Iterable[str | Path] = (), threads: int | None = None,
    seed: int | None = None, out: str | Path = "results", quiet: bool = False,
) -> Chosen:  # fmt: skip
    """The attention to use for one problem, within limits.

    Where nothing else is said: forward, with a causal mask, one sequence, 4 heads of 64; on a GPU
    two sequences, 16 heads of 128, bfloat16.
    ``max_memory``: bytes, or a text such as ``"8GiB"``. ``allow``: besides exact softmax,
    ``"pattern"``, ``"approximate"``, ``"other"``. ``runs``: run folders to answer from; without,
    runs of this machine as it is now, and where none fits it is measured. ``measure``: measure,
    whatever there is.

    >>> attnbench.choose(4096, heads=16, phase="forward", max_memory="2GiB")  # doctest: +SKIP
    """
    asked = {
        "seq": seq, "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "v_head_dim": v_head_dim, "dtype": dtype, "mask": mask, "phase": phase, "device": device,
    }  # fmt: skip
    files = several("tables", tables) if (tables := held(tables)) else ()
    table, line = impls.table(files), OneLine(quiet=quiet)
    wants = Wants.of(
        exact=exact, allow=several("allow", allow) if (allow := held(allow)) else (),
        max_error=None if max_error is None else read("max_error", given.above_nought, max_error),
        max_memory=None if max_memory is None else _bytes(max_memory),
    )  # fmt: skip

    @contextmanager
    def watching(_: int) -> Iterator[OneLine]:
        try:
            yield line
        finally:
            line.close()

    means = Means(
        line.tell, watching, lambda: interrupt(line), Path(out), files,
        0 if seed is None else read("seed", given.seed, seed),
        None if threads is None else read("threads", given.count, threads),
        command="attnbench.choose, from Python",
    )  # fmt: skip
    named = [Path(x) for x in several("runs", runs)] if (runs := held(runs)) else []
    try:
        found = asking.answer(_problem(asked), wants, table, means, named=named, anew=measure)
    except Stopped:
        raise KeyboardInterrupt("stopped; what was measured is kept") from None
    return Chosen(found)


def _bytes(asked: int | str) -> Any:
    """A number is of bytes; a text says its unit."""
    return read("max_memory", given.size, asked if isinstance(asked, str) else f"{asked}B")


def _problem(asked: dict[str, Any]) -> Problem:
    start = one_problem(asked["device"] or this_machine().devices[-1])
    found = list(problems(start.with_(**changes(asked))))
    if len(found) != 1:
        raise BadWord(f"choose answers for one problem, and these words make {len(found)}")
    return found[0]
