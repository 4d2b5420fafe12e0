"""``attnbench.run(…)``: a grid measured, and its records as a DataFrame."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import impls
from attnbench.answer import choose_runs, paste
from attnbench.answer.choose import Choice
from attnbench.answer.choose_runs import Means
from attnbench.answer.wants import Wants
from attnbench.command import arguments
from attnbench.core.machine import this_machine
from attnbench.core.record import Record
from attnbench.notebook.frames import BadWord, changes, command, held, load, read, several
from attnbench.sweep.plan import duration, grid_of, problems
from attnbench.sweep.presets import one_problem
from attnbench.sweep.sweep import Interrupt, Stopped, sweep

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.models.capture.calls import SeenCalls
    from attnbench.sweep.start import Run
    from attnbench.sweep.sweep import Places
    from impls.problem import Problem


WIDE = 110
"""Characters that a line holds, in most notebooks and terminals."""


class OneLine:
    """What a run shows of itself in a notebook."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._start, self._shown = quiet, monotonic(), 0
        self._watched = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._ended = dict[str, str]()
        """By cell: one that is measured again has ended once."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended."""
        self._ended[record.key] = str(record.status)
        if self._watched:
            what = f"{record.variant} {record.problem}: {record.status}"
            self._write(f"[{done}/{total}, {duration(left_s)} left] {what}")

    def tell(self, sentence: str) -> None:
        """A line of its own."""
        self.close()
        self._print(sentence)

    def end(self, path: Path) -> None:
        """How it came out, and where it lies."""
        self.close()
        ended = Counter(self._ended.values()).most_common()
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in ended)
        took = duration(monotonic() - self._start)
        self._print(f"{counts or 'nothing was left to measure'}, in {took}; the run is {path}")

    def close(self) -> None:
        """Take away what is written over."""
        if self._shown:
            self._write("")
            print("\r", end="", file=sys.stderr, flush=True)
            self._shown = 0

    def _write(self, text: str) -> None:
        if not self._quiet:
            text = text[:WIDE]
            print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)


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
) -> pd.DataFrame:
    """Measure every combination of what is given, and return the records, a row each.

    ``variants``: names as ``attnbench list`` has them, all of the table if none. The grid is that
    of ``preset``, or of the device's default, with what is given in place of its own: one value or
    several, ``seq=[256, "1x4096"]``, ``mask=["causal", "window:255,0"]``. ``tables``: Python files
    with rows of your own. ``devices``: several GPUs, measured on side by side. ``budget``: seconds
    of sampling a cell. ``problems``: in place of a grid, what ``attnbench.capture`` gave, or its
    file. ``resume``: the folder of a run to go on with; then nothing else is given.

    Ctrl-C lets a cell end and raises ``KeyboardInterrupt``; what was measured is kept. The folder
    of the run is ``df.attrs["run"]``. What was not measured has a row too, with its ``reason``.

    >>> df = attnbench.run(["sdpa", "matmul"], seq=[256, 512], phase="forward")  # doctest: +SKIP
    >>> df[["variant", "problem.q_len", "time.median_s"]]                        # doctest: +SKIP
    """
    asked = {
        "seq": seq,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "dtype": dtype,
        "mask": mask,
        "phase": phase,
        "inputs": inputs,
        "level": level,
        "device": device,
        "world": world,
        "budget": budget,
    }
    more = {
        "preset": preset,
        "problems": problems,
        "seed": seed,
        "threads": threads,
        "energy": energy,
    }
    asked = {name: held(value) for name, value in asked.items()}
    names, files, where = (
        several(name, found) if (found := held(value)) else ()
        for name, value in (("variants", variants), ("tables", tables), ("devices", devices))
    )
    places, line = _places(where), OneLine(quiet=quiet)
    if resume is not None:
        if names or files or any(x not in (None, False) for x in (asked | more).values()):
            raise BadWord("resume takes the grid of the run it names; leave the rest out")
        begun = _resumed(Path(resume), places)
    else:
        begun = _begun(names, asked, more | {"devices": where}, files, Path(out), places, line)
    with closing(begun.folder):
        _measure(begun, places, line)
    line.end(begun.folder.path)
    return load(begun.folder.path)


def _places(devices: Sequence[str]) -> Places:
    from attnbench.sweep.places import Local

    return Local(read("devices", arguments.words, devices) if devices else ())


def _resumed(path: Path, places: Places) -> Run:
    from attnbench.sweep import start

    return start.resume(path, places.machine)


def _begun(
    names: Sequence[str],
    asked: dict[str, Any],
    more: dict[str, Any],
    files: Sequence[str],
    out: Path,
    places: Places,
    line: OneLine,
) -> Run:
    from attnbench.sweep import start

    changed = changes(asked)
    problems = _captured(more, changed, line)
    if problems:
        grid = grid_of(problems, "the problems of a program").with_(budget=changed.get("budget"))
    else:
        changed |= {"device": places.kind} if places.kind is not None else {}
        grid = start.find_preset(more["preset"], places.machine).with_(**changed)
    numbers = {
        name: read(name, parse, more[name]) if more[name] is not None else None
        for name, parse in (("seed", arguments.seed), ("threads", arguments.count))
    }
    return start.begin(
        names,
        grid,
        files,
        out,
        seed=numbers["seed"] or 0,
        threads=numbers["threads"],
        energy=more["energy"],
        machine=places.machine,
        problems=problems,
        command=command(names, asked | more, files),
    )


def _captured(more: Mapping[str, Any], changed: Mapping[str, Any], line: OneLine) -> list[Problem]:
    """The problems of a program; none where a grid is asked for."""
    calls = more["problems"]
    if calls is None:
        return []
    from attnbench.models.capture.calls import SeenCalls

    beside = [name for name in changed if name != "budget"]
    beside += ["preset"] if more["preset"] else []
    if beside:
        raise BadWord(f"problems says which problems; leave out {', '.join(beside)}")
    calls = calls if isinstance(calls, SeenCalls) else SeenCalls.read(Path(calls))
    if not (found := calls.problems()):
        raise BadWord("problems holds no call that can be put as a problem")
    if not calls.complete:
        line.tell(f"note: the calls are not complete; {' '.join(calls.unseen)}")
    return found


def _measure(begun: Run, places: Places, line: OneLine) -> None:
    plan, folder = begun.plan, begun.folder
    line.tell(plan.sentence())
    for note in filter(None, (places.note, folder.set_aside, *plan.warnings())):
        line.tell(note)
    device = next((cell.problem.device for cell in plan.to_run), "cpu")
    try:
        with places.slots(begun.settings, device) as slots:
            sweep(plan, begun.done, folder, slots, line, interrupt(line))
    except (Stopped, KeyboardInterrupt):
        line.close()
        raise KeyboardInterrupt(
            f"stopped; what was measured is kept: attnbench.load({str(folder.path)!r}) reads it, "
            f"attnbench.run(resume={str(folder.path)!r}) goes on"
        ) from None


def interrupt(line: OneLine) -> Interrupt:
    """Ctrl-C is heard in the main thread alone; in another nobody listens."""
    main = threading.current_thread() is threading.main_thread()
    return Interrupt(line.tell) if main else _Deaf(line.tell)


class _Deaf(Interrupt):
    """One that can't be asked."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Nothing is caught."""
        yield


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

    Where nothing else is said: forward, with a causal mask, one sequence, 4 heads of 64; on a GPU
    two sequences, 16 heads of 128, bfloat16.
    ``max_memory``: bytes, or a text such as ``"8GiB"``. ``allow``: besides exact softmax,
    ``"pattern"``, ``"approximate"``, ``"other"``. ``runs``: run folders to answer from; without,
    runs of this machine as it is now, and where none fits it is measured. ``measure``: measure,
    whatever there is.

    >>> attnbench.choose(4096, heads=16, phase="forward", max_memory="2GiB")  # doctest: +SKIP
    """
    asked = {
        "seq": seq,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "dtype": dtype,
        "mask": mask,
        "phase": phase,
        "device": device,
    }
    files = several("tables", tables) if (tables := held(tables)) else ()
    table, line = impls.table(files), OneLine(quiet=quiet)
    wants = Wants.of(
        exact=exact,
        allow=several("allow", allow) if (allow := held(allow)) else (),
        max_error=None
        if max_error is None
        else read("max_error", arguments.above_nought, max_error),
        max_memory=None if max_memory is None else _bytes(max_memory),
    )

    @contextmanager
    def watching(_: int) -> Iterator[OneLine]:
        try:
            yield line
        finally:
            line.close()

    means = Means(
        line.tell,
        watching,
        lambda: interrupt(line),
        Path(out),
        files,
        0 if seed is None else read("seed", arguments.seed, seed),
        None if threads is None else read("threads", arguments.count, threads),
        command="attnbench.choose, from Python",
    )
    named = [Path(x) for x in several("runs", runs)] if (runs := held(runs)) else []
    try:
        found = choose_runs.answer(_problem(asked), wants, table, means, named=named, anew=measure)
    except Stopped:
        raise KeyboardInterrupt("stopped; what was measured is kept") from None
    return Chosen(found)


def _bytes(asked: int | str) -> Any:
    """A number is of bytes; a text says its unit."""
    return read("max_memory", arguments.size, asked if isinstance(asked, str) else f"{asked}B")


def _problem(asked: dict[str, Any]) -> Problem:
    start = one_problem(asked["device"] or this_machine().devices[-1])
    found = list(problems(start.with_(**changes(asked))))
    if len(found) != 1:
        raise BadWord(f"choose answers for one problem, and these words make {len(found)}")
    return found[0]
