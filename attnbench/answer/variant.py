"""What is known of one variant: its mathematics, and the map it makes of a sentence."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

from attnbench.machine import this_machine, why_not
from attnbench.measure.settings import Settings
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant


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
        heads=1, kv_heads=1, q_len=n, kv_len=n, head_dim=width, v_head_dim=width,
        mask=Mask.parse(mask),
    )  # fmt: skip
    missing = why_not(row, this_machine())
    refusal = missing.reason if missing else row.supports(problem)
    if refusal is not None:
        raise InvalidProblem(f"no map can be drawn here: {refusal}")
    return problem
