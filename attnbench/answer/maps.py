"""The maps that the variants of a run make of one sentence, kept beside its records.

One worker is asked for all of them. Exact variants make one and the same map, so one of them is
asked and stands for the others. The time for all is limited: what is left out says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import impls
from attnbench.answer import words
from attnbench.answer.variant import map_problem
from attnbench.measure.settings import Settings
from attnbench.record import Record
from attnbench.store.disk import write_whole
from attnbench.sweep.engine import LocalEngine, WorkerLost
from impls.asked import CantBeDone

SENTENCE = "I must go back to my ship and to my crew"
FILE = "maps.json"
SCHEMA = 1
DIGITS = 4
ALL_S, EACH_S = 20.0, 4.0
"""For all of them, loading torch included, and for one."""
MASKS = ("causal", "none")
"""The first of these that it takes."""


class Engine(Protocol):
    """Whoever asks a worker."""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer."""


def keep(folder: Path, records: Iterable[Record], tables: Sequence[str],
         watch: Callable[[str], None]) -> None:  # fmt: skip
    """Write the maps of all variants that have a time into a run's folder.

    ``tables``: the files of rows that the run was given. Nothing that goes wrong here costs the run
    anything: ``watch`` is told, in a sentence.
    """
    timed = _timed(records)
    if not timed:
        return
    try:
        with LocalEngine(Settings()) as engine:
            made = maps(timed, impls.table(tables), engine)
        text = json.dumps(made, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        write_whole(folder / FILE, (text + "\n").encode(), sync=False)
    except (CantBeDone, OSError) as error:
        watch(f"no attention maps were kept: {error}")


def _timed(records: Iterable[Record]) -> dict[str, str]:
    """What each variant that has a time computes, in the order of the records."""
    return {r.variant: r.computes for r in records if r.time is not None}


def maps(timed: Mapping[str, str], table: impls.Table, engine: Engine) -> dict[str, Any]:
    """All maps, and of those that there are none of: why. ``timed``: name -> what it computes."""
    tokens = words.tokens(SENTENCE)
    vectors = words.vectors(tokens, None)
    asking = Asking(table, engine, vectors)
    exact = [v for v, computes in timed.items() if computes == "softmax"]
    found: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for variant in [*exact, *(v for v in timed if v not in exact)]:
        if variant in exact and found:
            found[0]["alike"].append(variant)  # one of them has given the map of all
            continue
        try:
            mask, weights = asking.map_of(variant)
        except CantBeDone as error:
            reason = error.reason if isinstance(error, WorkerLost) else str(error)
            failed.append({"variant": variant, "reason": reason})
        else:
            found.append({"variant": variant, "computes": timed[variant], "mask": mask,
                          "alike": [], "weights": weights})  # fmt: skip
    return {"schema": SCHEMA, "sentence": SENTENCE, "words": tokens, "maps": found,
            "failed": failed}  # fmt: skip


class Asking:
    """One map after another, within the time there is."""

    def __init__(self, table: impls.Table, engine: Engine, vectors: list[list[float]]) -> None:
        self._table, self._engine, self._vectors = table, engine, vectors
        self._end = monotonic() + ALL_S

    def map_of(self, variant: str) -> tuple[str, list[list[float | None]]]:
        """The mask that it was made under, and the weights; raises where there are none."""
        row = self._table.find(variant)
        masks = row.on("cpu", "masks")
        mask = next((m for m in MASKS if m in masks), MASKS[-1])
        problem = map_problem(row, mask, self._vectors)
        left = self._end - monotonic()
        if left <= 0:
            raise CantBeDone(f"the {ALL_S:.0f} s for all maps were over")
        job = {"variant": row.to_dict(), "problem": problem.to_dict()}
        answer = self._engine.ask({"map": job, "words": self._vectors}, min(left, EACH_S))
        if "error" in answer:
            raise CantBeDone(str(answer["error"]))
        return mask, _rounded(answer.get("map"), len(self._vectors))


def _rounded(weights: Any, many: int) -> list[list[float | None]]:
    """A row for each word, a weight for each in it; a worker led astray may give others."""
    try:
        found = [[w if w is None else round(float(w), DIGITS) for w in some] for some in weights]
    except (TypeError, ValueError):
        found = []
    fine = all(w is None or math.isfinite(w) for some in found for w in some)
    if not fine or [len(some) for some in found] != [many] * many:
        raise CantBeDone("it gave no weight for each pair of words")
    return found
