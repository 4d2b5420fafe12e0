"""``attnbench.run(…)`` and ``attnbench.choose(…)``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import impls
from attnbench.answer import choose_runs, paste
from attnbench.answer.choose import Choice, Wants
from attnbench.answer.choose_runs import Means
from attnbench.command.arguments import GRID
from attnbench.core.format import roughly
from attnbench.core.machine import this_machine
from attnbench.core.record import Record
from attnbench.features.run.verb import begin, measure, problems_of
from attnbench.notebook.arguments import BadWord, command, grid_changes, plain, read, several
from attnbench.notebook.frames import Measurements, load
from attnbench.sweep import start
from attnbench.sweep.places import Local
from attnbench.sweep.plan import problems as grid_problems
from attnbench.sweep.presets import one_problem
from attnbench.sweep.sweep import Stopped

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.models.capture.calls import SeenCalls


WIDE = 110
"""Characters of a line in most notebooks and terminals."""


class OneLine:
    """A run's progress: one line that is written over where it is watched, and a last line."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._start, self._shown = quiet, monotonic(), 0
        self._watched = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._ended = dict[str, str]()
        """Each cell's status; one that is measured again counts once."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """Show that a cell has ended."""
        self._ended[record.key] = str(record.status)
        self.at(done, total, left_s, f"{record.variant} {record.problem}: {record.status}")

    def at(self, done: int, total: int, left_s: float, what: str) -> None:
        """Show how far it is, and what ended last or begins."""
        if self._watched and not self._quiet:
            self._over(f"[{done}/{total}, {roughly(left_s)} left] {what}"[:WIDE])

    def tell(self, sentence: str) -> None:
        """Print a line of its own."""
        self._clear()
        if not self._quiet:
            print(sentence, file=sys.stderr, flush=True)

    def end(self, path: Path) -> None:
        """Print how many cells ended how, and the run's folder."""
        ended = Counter(self._ended.values()).most_common()
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in ended)
        took = roughly(monotonic() - self._start)
        self.tell(f"{counts or 'nothing was left to measure'}, in {took}; the run is {path}")

    @contextmanager
    def watching(self, _: int) -> Iterator[OneLine]:
        """This, cleared at the end."""
        try:
            yield self
        finally:
            self._clear()

    def _over(self, text: str) -> None:
        print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
        self._shown = len(text)

    def _clear(self) -> None:
        if self._shown:
            self._over("")
            print("\r", end="", file=sys.stderr, flush=True)


Words = str | Iterable[str] | None
Numbers = int | Iterable[int] | str | None
Lengths = int | str | Iterable[int | str] | None


def run(
    variants: str | Iterable[str] = (),
    *,
    preset: str | None = None,
    seq: Lengths = None,
    batch: Numbers = None,
    heads: Numbers = None,
    kv_heads: Numbers = None,
    head_dim: Numbers = None,
    v_head_dim: Numbers = None,
    dtype: Any = None,
    mask: Words = None,
    phase: Words = None,
    inputs: Words = None,
    level: Words = None,
    device: str | None = None,
    devices: Words = None,
    world: int | None = None,
    budget: float | None = None,
    tables: str | Path | Iterable[str | Path] = (),
    threads: int | None = None,
    seed: int | None = None,
    energy: bool = False,
    out: str | Path = "results",
    problems: str | Path | SeenCalls | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
) -> Measurements:
    """Measure every combination of what is given, and return a DataFrame with a row for each.

    ``variants``: names as in ``attnbench list``; the whole table if none. The grid is that of
    ``preset``, or the device's default, changed by what is given: one value or several,
    ``seq=[256, "1x4096"]``, ``mask=["causal", "window:255,0"]``. ``tables``: Python files with rows
    of your own. ``devices``: several GPUs, used side by side. ``budget``: seconds of sampling a
    cell. ``problems``: in place of a grid, what ``attnbench.capture`` returned, or its file.
    ``resume``: the folder of a run to go on with; then nothing else is given.

    Ctrl-C lets a cell end and raises ``KeyboardInterrupt``; what was measured is kept. The folder
    of the run is ``df.attrs["run"]``. What was not measured has a row too, with its ``reason``.
    ``df.raw`` has every field of the records. Raises ``CantBeDone`` for what can't be done.

    >>> df = attnbench.run(["sdpa", "matmul"], seq=[256, 512], phase="forward")  # doctest: +SKIP
    >>> df.pivot_table("ms", "seq", "variant")                                   # doctest: +SKIP
    """
    given = {name: plain(value) for name, value in locals().items()}
    line = OneLine(quiet=quiet)
    begun, places = _begun(given, line.tell)
    path = begun.folder.path
    with closing(begun.folder):
        try:
            with line.watching(0):
                measure(begun, places, line)
        except (Stopped, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"stopped; what was measured is kept: attnbench.load({str(path)!r}) reads it, "
                f"attnbench.run(resume={str(path)!r}) goes on"
            ) from None
    line.end(path)
    return load(path)


def _begun(given: Mapping[str, Any], tell: Callable[[str], None]) -> tuple[start.Run, Local]:
    """The run that :func:`run` is asked for, and where it is measured."""
    names, files, where = _all_several(given, "variants", "tables", "devices")
    places = Local(read("devices", where) if where else ())
    if given["resume"] is not None:
        beside = (*GRID, "preset", "problems", "seed", "threads", "energy")
        if names or files or any(given[name] not in (None, False) for name in beside):
            raise BadWord("resume takes the grid of the run it names; leave the rest out")
        return start.resume(Path(given["resume"]), places.machine), places
    changes, preset = grid_changes(given), given["preset"]
    begun = begin(
        names,
        changes,
        preset,
        problems_of(given["problems"], (*changes, *["preset"] * (preset is not None)), tell),
        files,
        places,
        Path(given["out"]),
        seed=_optional(given, "seed") or 0,
        threads=_optional(given, "threads"),
        energy=given["energy"],
        command=command(names, {**given, "devices": where}, files),
    )
    return begun, places


def _all_several(given: Mapping[str, Any], *names: str) -> Iterator[tuple[str, ...]]:
    return (several(name, given[name]) if given[name] else () for name in names)


def _optional(given: Mapping[str, Any], name: str) -> Any:
    return None if given[name] is None else read(name, given[name])


@dataclass(frozen=True)
class Chosen:
    """An answer: printed it is its sentence, as the last value of a cell its table too."""

    choice: Choice

    @property
    def variant(self) -> str | None:
        """The variant chosen; None where there is none, and the sentence says why."""
        return self.choice.ranking.winner.variant if self.choice.ranking else None

    @property
    def code(self) -> str:
        """The lines that use it."""
        return "\n".join(paste.pasted(self.choice)["code"])

    @property
    def proof(self) -> str:
        """The command that proves it."""
        return str(paste.pasted(self.choice)["proof"])

    def to_frame(self) -> pd.DataFrame:
        """The variants that could be chosen, the fastest first, a row each."""
        import pandas as pd

        ranking = self.choice.ranking
        return pd.DataFrame([asdict(c) for c in ranking.all] if ranking else [])

    def __str__(self) -> str:
        return self.choice.sentence()

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        sentence = f"<p><b>{escape(str(self))}</b></p>"
        if self.variant is None:
            return sentence
        table = self.to_frame().to_html(index=False, escape=True)
        pasted = f"<pre>{escape(self.code)}</pre><p><code>{escape(self.proof)}</code></p>"
        return sentence + table + pasted


def choose(
    seq: int | str,
    *,
    batch: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
    dtype: Any = None,
    mask: str | None = None,
    phase: str | None = None,
    device: str | None = None,
    max_memory: int | str | None = None,
    max_error: float | None = None,
    exact: bool = False,
    allow: str | Iterable[str] = (),
    runs: str | Path | Iterable[str | Path] = (),
    measure: bool = False,
    tables: str | Path | Iterable[str | Path] = (),
    threads: int | None = None,
    seed: int | None = None,
    out: str | Path = "results",
    quiet: bool = False,
) -> Chosen:
    """The attention to use for one problem, within limits.

    By default: forward, with a causal mask, one sequence, 4 heads of 64; on a GPU two sequences,
    16 heads of 128, bfloat16.
    ``max_memory``: bytes, or a text such as ``"8GiB"``. ``allow``: besides exact softmax,
    ``"pattern"``, ``"approximate"``, ``"other"``. ``runs``: run folders to answer from; by default
    runs of this machine as it is now, and where none fits it is measured. ``measure``: measure in
    any case. Raises ``CantBeDone`` for what can't be done, and ``KeyboardInterrupt`` after Ctrl-C.

    >>> attnbench.choose(4096, heads=16, phase="forward", max_memory="2GiB")  # doctest: +SKIP
    """
    given = {name: plain(value) for name, value in locals().items()}
    files, kinds, folders = _all_several(given, "tables", "allow", "runs")
    if max_memory is not None and not isinstance(max_memory, str):
        given["max_memory"] = f"{max_memory}B"
    most = {name: _optional(given, name) for name in ("max_error", "max_memory")}
    table, wants = impls.table(files), Wants.of(exact=exact, allow=kinds, **most)
    how = (files, _optional(given, "seed") or 0, _optional(given, "threads"))
    line = OneLine(quiet=quiet)
    means = Means(
        line.tell, line.watching, Path(out), *how, command="attnbench.choose, from Python"
    )
    usual = one_problem(device or this_machine().devices[-1])
    found = list(grid_problems(usual.with_(**grid_changes(given))))
    if len(found) != 1:
        raise BadWord(f"choose answers for one problem, and these words make {len(found)}")
    try:
        named = [Path(folder) for folder in folders]
        return Chosen(choose_runs.answer(found[0], wants, table, means, named=named, anew=measure))
    except Stopped:
        raise KeyboardInterrupt("stopped; what was measured is kept") from None
