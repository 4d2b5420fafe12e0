"""The trials of a tuning as a table, and its result in a sentence a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape

from attnbench.core.format import key_values, mib, percent
from attnbench.core.tuned import lengths_alike
from attnbench.features.tune.search import Trial, Tuning
from attnbench.report import tables, tidy
from attnbench.report.tables import FAINT, Styled, Table, columns, console
from impls.problem import Problem

NUMBERS = ("of its time", "99 % interval", "pairs", "margin", "MiB")
DEFAULTS = "the defaults"


def rows(tunings: Sequence[Tuning]) -> Iterator[tidy.Row]:
    """A row a trial, in the order in which they were made."""
    for tuning in tunings:
        for trial in tuning.trials:
            c = trial.comparison
            yield {
                "variant": tuning.row.label,
                "computes": tuning.row.computes,
                "options": key_values(trial.options),
                "against": key_values(trial.against),
                **tidy.of_problem(tuning.problem),
                "verdict": str(c.verdict) if c else trial.compared.status.replace("_", " "),
                **tidy.of_comparison(c),
                **tidy.flat({"memory_bytes": tuning.peak_bytes(trial.options)}),
                "decides": trial.final,
                "kept": bool(tuning.best) and trial.options == tuning.best,
                "reason": trial.compared.why,
            }


def show(tunings: Sequence[Tuning]) -> None:
    """A table a problem: each candidate, then the trial that decides."""
    out = console()
    for tuning in tunings:
        heads = columns(
            "options", "verdict", "against", *NUMBERS, right=NUMBERS, wrap=("options", "against")
        )
        lines = [_line(tuning, trial) for trial in tuning.trials]
        tables.show(Table(str(tuning.problem), heads, lines))
        out.print(escape(f"{tuning.sentence()}."))
        if tuning.best:
            out.print(escape(f"It holds for {_alike(tuning.problem)}."), style=FAINT)
        whys = dict.fromkeys(t.compared.why for t in tuning.trials if t.comparison is None)
        for why in whys:
            out.print(escape(why), style=FAINT)


def _line(tuning: Tuning, trial: Trial) -> tuple[Any, ...]:
    c, memory = trial.comparison, mib(tuning.peak_bytes(trial.options))
    words = key_values(trial.options) + (", again" if trial.final else "")
    against = key_values(trial.against) or DEFAULTS
    if c is None:
        return words, Styled(trial.compared.status, FAINT), against, *[None] * 4, memory
    verdict = Styled(c.verdict, tables.VERDICTS[c.verdict])
    interval = f"[{c.low:.3f}, {c.high:.3f}]"
    return words, verdict, against, f"{c.ratio:.3f}", interval, c.n, percent(c.margin), memory


def _alike(p: Problem) -> str:
    """The problems that a line in the file is used for."""
    widths = f"head_dim {p.head_dim}"
    widths += f" and v_head_dim {p.v_head_dim}" if p.v_head_dim != p.head_dim else ""
    low, high = lengths_alike(p.kv_len)
    lengths = f"{low:,} to {high:,} tokens"
    if p.q_len != p.kv_len:
        low, high = lengths_alike(p.q_len)
        queries = f"{low:,} to {high:,} queries" if high > low else "one query"
        lengths = f"{queries} on {lengths}"
    return f"{p.phase}, {p.dtype}, {widths}, the mask {p.mask} and {lengths}, on this device"
