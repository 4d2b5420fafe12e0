"""The maps that the variants of a run make of one sentence, kept beside its records.

One worker is asked for all of them. Exact variants make one and the same map, so one of them is
asked and stands for the others. The time for all is limited: what is left out says so.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import impls
from attnbench.core.disk import is_no_file, write_whole
from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import Record
from attnbench.core.settings import Settings
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine, WorkerLost
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

WIDTH = 50
"""Of hashed vectors; GloVe's smallest."""
SHARED = 0.5
"""How much of a hashed vector its letters give, so that words that look alike lie near."""


class BadEmbeddings(CantBeDone):
    """A file of word vectors that can't be used; a sentence."""


def tokens_of(text: str) -> list[str]:
    """Words and marks, in small letters."""
    found = re.findall(r"\w+(?:['\u2019]\w+)*|[^\w\s]", text.lower())
    if not found:
        raise BadEmbeddings(f"there is no word in {text!r}")
    return found


def vectors_of(words: list[str], file: str | None) -> list[list[float]]:
    """A vector for each word, all of one width."""
    return _hashed(words) if file is None else _from_file(words, Path(file))


def _from_file(words: list[str], file: Path) -> list[list[float]]:
    wanted, found, width = set(words), {}, -1
    if is_no_file(file):
        raise BadEmbeddings(f"can't read {file}: it is no file")
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().rsplit(" ", width)  # a word may hold spaces
                width = len(numbers) if number == 1 else width
                one_too_many = " " in word and _is_number(word.rpartition(" ")[2])
                if not width or len(numbers) != width or one_too_many:
                    raise BadEmbeddings(
                        f"{file}, line {number}: {len(numbers) + one_too_many} numbers where the "
                        f"first line has {width}; a GloVe file is a word and as many numbers, at "
                        "least one, on each line"
                    )
                if word in wanted:
                    found[word] = [float(n) for n in numbers]
    except OSError as error:
        raise BadEmbeddings(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadEmbeddings(f"{file} is not UTF-8 text; a GloVe file is") from None
    except ValueError as error:
        raise BadEmbeddings(f"{file}: {error}") from None
    missing = [w for w in words if w not in found]
    if missing:
        raise BadEmbeddings(
            f"{file} has no vector for {', '.join(dict.fromkeys(missing))}; "
            "use other words, or leave --embeddings out for hashed vectors"
        )
    return [found[w] for w in words]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _hashed(words: list[str]) -> list[list[float]]:
    """The same word always has the same vector; its pairs of letters give part of it."""
    made = []
    for word in words:
        pairs = [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        letters = [sum(c) / len(pairs) ** 0.5 for c in zip(*map(_noise, pairs), strict=True)]
        own = _noise("word " + word)
        made.append([SHARED * a + (1 - SHARED) * b for a, b in zip(letters, own, strict=True)])
    return made


def _noise(text: str) -> list[float]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    source = random.Random(seed)
    return [source.gauss(0.0, 0.8) for _ in range(WIDTH)]


def mathematics(row: Variant) -> str:
    """The text at the top of the variant's file, read without running it."""
    place = row.build.rpartition(":")[0]
    if place.endswith(".py"):
        file = Path(place)
    else:
        spec = importlib.util.find_spec(place)
        if spec is None or spec.origin is None:
            return f"(the module {place} is not there)"
        file = Path(spec.origin)
    text = ast.get_docstring(ast.parse(file.read_text()))
    return text or f"({file.name} says nothing of its mathematics)"


def map_of(row: Variant, mask: str, vectors: list[list[float]]) -> list[list[Any]]:
    """The weights of self-attention over word vectors, as a worker computes them."""
    job = {"variant": row.to_dict(), "problem": map_problem(row, mask, vectors).to_dict()}
    with LocalEngine(Settings()) as engine:
        answer = engine.ask({"map": job, "words": vectors}, START_LIMIT_S)
    if "error" in answer:
        raise InvalidProblem(f"no map can be drawn: {answer['error']}")
    weights: list[list[Any]] = answer["map"]
    return weights


def map_problem(row: Variant, mask: str, vectors: list[list[float]]) -> Problem:
    """What is asked of a variant for its map; raises, in a sentence, where it can't be."""
    n, width = len(vectors), len(vectors[0])
    problem = Problem(
        heads=1,
        kv_heads=1,
        q_len=n,
        kv_len=n,
        head_dim=width,
        v_head_dim=width,
        mask=Mask.parse(mask),
    )
    missing = why_not(row, this_machine())
    refusal = missing.reason if missing else row.supports(problem)
    if refusal is not None:
        raise InvalidProblem(f"no map can be drawn here: {refusal}")
    return problem


SENTENCE = "I must go back to my ship and to my crew"
FILE = "maps.json"
SCHEMA = 1
DIGITS = 4
ALL_S, EACH_S = 20.0, 4.0
"""For all of them, loading torch included, and for one."""
MASKS = ("causal", "none")
"""The first of these that it takes."""


class MapEngine(Protocol):
    """Whoever asks a worker."""

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer."""


def keep(
    folder: Path, records: Iterable[Record], tables: Sequence[str], watch: Callable[[str], None]
) -> None:
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


def maps(timed: Mapping[str, str], table: impls.Table, engine: MapEngine) -> dict[str, Any]:
    """All maps, and of those that there are none of: why. ``timed``: name -> what it computes."""
    tokens = tokens_of(SENTENCE)
    vectors = vectors_of(tokens, None)
    asking = MapSeries(table, engine, vectors)
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
            found.append(
                {
                    "variant": variant,
                    "computes": timed[variant],
                    "mask": mask,
                    "alike": [],
                    "weights": weights,
                }
            )
    return {
        "schema": SCHEMA,
        "sentence": SENTENCE,
        "words": tokens,
        "maps": found,
        "failed": failed,
    }


class MapSeries:
    """One map after another, within the time there is."""

    def __init__(self, table: impls.Table, engine: MapEngine, vectors: list[list[float]]) -> None:
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
