"""``attnbench.run(…)`` and ``attnbench.choose(…)``: the verbs, asked from Python."""

from __future__ import annotations

import io
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, redirect_stderr
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pandas as pd

from attnbench.answer import paste
from attnbench.answer.choose import Choice
from attnbench.command.arguments import BadWord, parser
from attnbench.command.progress import Progress
from attnbench.core.format import roughly
from attnbench.features.choose import models, view
from attnbench.features.choose.verb import answer, answer_calls, answer_model
from attnbench.features.run.verb import measure, places_of, start_run
from attnbench.notebook.frames import load
from attnbench.report import tidy
from attnbench.sweep.sweep import Stopped

if TYPE_CHECKING:
    from attnbench.models.capture.calls import SeenCalls
    from attnbench.sweep.places import Places
    from attnbench.sweep.start import Run

Words = str | Iterable[str] | None
Numbers = int | Iterable[int] | str | None
Lengths = int | str | Iterable[int | str] | None


AGAIN = {"mask": "mask", "tables": "table", "runs": "from"}
"""What is given again for each value, and by which option."""
ASIDE = ("out", "quiet")
"""What is no option of the command."""


def _texts(name: str, value: Any) -> list[str]:
    """As the command line has them: ``torch.float32`` is float32. Raises BadWord for none."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    texts = [str(each).removeprefix("torch.") for each in (value if several else (value,))]
    if not texts:
        raise BadWord(f"{name} holds nothing: give one at the least, or leave it out")
    return texts


def parse(verb: str, options: Mapping[str, Any]) -> Namespace:
    """The verb's arguments, as the command line gives them; None stands for what is left out.

    What a capture gave is handed on as it is. Raises BadWord.
    """
    problems = options.get("problems")
    captured = not isinstance(problems, str | Path | None)
    options = {**options, "problems": "CALLS.json" if captured else problems}
    command = [verb]
    for name, value in options.items():
        option = f"--{AGAIN.get(name, name).replace('_', '-')}"
        left_out = value is None or value is False or (isinstance(value, tuple) and not value)
        if left_out or name in ASIDE:
            continue
        if value is True:
            command.append(option)
        elif name == "variants":
            command += _texts(name, value)
        elif name in AGAIN:
            command += [word for each in _texts(name, value) for word in (option, each)]
        else:
            command += [option, ",".join(_texts(name, value))]
    arguments: Namespace = parser().parse_args(command)
    arguments.out, arguments.command = str(options["out"]), shlex.join(["attnbench", *command])
    if captured:
        arguments.problems = problems
    return arguments


def _output(quiet: bool) -> AbstractContextManager[object]:
    """Where a verb says what it does: standard error, or nowhere."""
    return redirect_stderr(io.StringIO()) if quiet else nullcontext()


def run(
    variants: str | Iterable[str] = (),
    *,
    preset: str | None = None,
    model: str | None = None,
    tp: int | None = None,
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
    allocator: str | None = None,
    seed: int | None = None,
    energy: bool = False,
    same_bits: bool = False,
    out: str | Path = "results",
    problems: str | Path | SeenCalls | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Measure every combination of what is given, and return a DataFrame with a row for each.

    ``variants``: names as in ``attnbench list``; the whole table if none. The grid is that of
    ``preset``, or the device's default, changed by what is given: one value or several,
    ``seq=[256, "1x4096"]``, ``mask=["causal", "window:255,0"]``. ``tables``: Python files with rows
    of your own. ``model``: in place of a preset, a published model's kinds of layer; ``tp``: those
    of one of so many ranks. ``devices``: several GPUs, used side by side. ``budget``: seconds of
    sampling a cell. ``problems``: in place of a grid, what ``attnbench.capture`` returned, or its
    file.
    ``resume``: the folder of a run to go on with; then nothing else is given.

    Ctrl-C lets a cell end and raises ``KeyboardInterrupt``; what was measured is kept. The folder
    of the run is ``df.attrs["run"]``. What was not measured has a row too, with its ``reason``.
    ``attnbench.load(…, raw=True)`` has every field of the records. Raises ``CantBeDone``.

    >>> df = attnbench.run(["sdpa", "matmul"], seq=[256, 512], phase="forward")  # doctest: +SKIP
    >>> df.pivot_table("ms", "seq", "variant")                                   # doctest: +SKIP
    """
    words, start = dict(locals()), monotonic()
    arguments = parse("run", words)
    with _output(quiet), places_of(arguments) as places:
        path = _measured(start_run(arguments, places), places)
        took = roughly(monotonic() - start)
        print(f"measured in {took}; the run is {path}", file=sys.stderr, flush=True)
    return load(path)


def _measured(new: Run, places: Places) -> Path:
    """Measure a run; its folder. Raises KeyboardInterrupt that says how to go on."""
    path = new.folder.path
    try:
        with closing(new.folder), Progress() as progress:
            measure(new, places, progress)
    except (Stopped, KeyboardInterrupt):
        raise KeyboardInterrupt(
            f"stopped; what was measured is kept: attnbench.load({str(path)!r}) reads it, "
            f"attnbench.run(resume={str(path)!r}) goes on"
        ) from None
    return path


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
        """A row a variant: those that could be chosen, the winner first, then those left out, with
        the reason; as ``attnbench choose --csv`` has them.
        """
        return tidy.frame(view.rows(self.choice))

    def __str__(self) -> str:
        return self.choice.sentence()

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        sentence = f"<p><b>{escape(str(self))}</b></p>"
        if self.variant is None:
            return sentence
        rows = self.to_frame().drop(columns=[*tidy.of_problem(self.choice.problem)])
        table = tidy.html(rows[rows["verdict"] != view.LEFT_OUT])
        pasted = f"<pre>{escape(self.code)}</pre><p><code>{escape(self.proof)}</code></p>"
        return sentence + table + pasted


def choose(
    seq: int | str | None = None,
    *,
    problems: str | Path | SeenCalls | None = None,
    model: str | None = None,
    tp: int | None = None,
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
    allow: str | Iterable[str] = (),
    same_bits: bool = False,
    runs: str | Path | Iterable[str | Path] = (),
    measure: bool = False,
    tables: str | Path | Iterable[str | Path] = (),
    threads: int | None = None,
    allocator: str | None = None,
    seed: int | None = None,
    out: str | Path = "results",
    quiet: bool = False,
) -> Chosen | pd.DataFrame:
    """The attention to use for one problem, within limits; or for each of a program's calls, or
    each kind of layer of a published model.

    ``problems``: in place of a problem, what ``attnbench.capture`` gave, or its file. The answer is
    then a DataFrame, a row a site, those first that gain most. ``model``: such as
    ``"gpt-oss-20b"``, ``tp`` for one of so many ranks; a row a kind of layer and variant.
    By default: forward, with a causal mask, one sequence, 4 heads of 64; on a GPU two sequences,
    16 heads of 128, bfloat16.
    ``max_memory``: bytes, or a text such as ``"8GiB"``. ``allow``: besides exact softmax,
    ``"pattern"``, ``"approximate"``, ``"other"``. ``same_bits``: only what gives a batch element
    the same bits alone and among others. ``runs``: run folders to answer from; by default
    runs of this machine as it is now, and where none fits it is measured. ``measure``: measure in
    any case. Raises ``CantBeDone`` for what can't be done, and ``KeyboardInterrupt`` after Ctrl-C.

    >>> attnbench.choose(4096, heads=16, phase="forward", max_memory="2GiB")  # doctest: +SKIP
    >>> attnbench.choose(problems="calls.json")                               # doctest: +SKIP
    """
    words = dict(locals())
    if max_memory is not None and not isinstance(max_memory, str):
        words["max_memory"] = f"{max_memory}B"
    arguments = parse("choose", words)
    with _output(quiet):
        if model is not None and problems is None:
            return tidy.frame(models.rows(answer_model(arguments)))
        if problems is None:
            return Chosen(answer(arguments))
        result = answer_calls(arguments)
        print(result.gained.sentence(), file=sys.stderr)
    return tidy.frame(view.site_rows(result.calls, result.choices, result.gained))
