"""Is a variant right on inputs of every kind? One that is not may be timed, and is never advised.

A program brings whatever inputs it has, and a timing has those of its problem. So a variant that
passed the gate makes a call on each other kind of inputs, on a short problem like its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnbench.gate.findings import Wrong
from attnbench.gate.gate import check_values, results
from attnbench.gate.inputs import Attend, Call, make
from attnbench.gate.reference import Defines, Judged, defined, judge
from impls.masks import Mask, Part
from impls.problem import INPUTS, InvalidProblem, Problem
from impls.spec import Variant

OTHERS = INPUTS[1:]
SHORT = 192
"""Tokens: enough for the largest of some thousand scores to be extreme, and half a block more than
blocks of 128 hold, so that there is padding."""
HEADS = 2
"""Of keys and values: a fault of some values is one of every head that has them."""
FEW_SCORES = 1 << 20
"""A problem of a mask in a file is tried as it is where it has no more."""

Build = Callable[[Problem], tuple[Attend, Defines | None]]


def shortened(problem: Problem) -> Problem | None:
    """A short problem of the same kind; None where its mask, in a file, has no shorter one."""
    normal = problem.with_(inputs="normal")
    if any(part.file for part in problem.mask.parts):
        scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
        return normal if scores <= FEW_SCORES else None
    queries, keys = min(problem.q_len, SHORT), min(problem.kv_len, SHORT)
    mask = problem.mask.of(_part(p, keys) for p in problem.mask.parts)
    short = normal.with_(batch=1, q_len=queries, kv_len=keys, mask=mask)
    if problem.level != "core":  # a layer is as wide as its heads together
        return short
    kv_heads = min(problem.kv_heads, HEADS)
    return short.with_(kv_heads=kv_heads, heads=kv_heads * problem.group)


def _part(part: Part, keys: int) -> Part:
    """The condition as it fits so many keys."""
    match part.kind:
        case "document" | "blocks" if sum(part.numbers) != keys:
            own = max(1, keys * 2 // 5)
            return replace(part, numbers=(own, keys - own) if keys > own else (own,))
        case "padding" | "prefix":
            return replace(part, numbers=(min(part.numbers[0], keys),))
    return part


class OtherInputs:
    """What was found of the variants that were tried, for as long as a worker lives."""

    def __init__(self) -> None:
        self._found: dict[Any, str] = {}
        self._judged: tuple[tuple[Problem, int], list[Judged]] | None = None

    def wrong_on(self, row: Variant, problem: Problem, seed: int, build: Build) -> str:
        """The first kind on which it is wrong, and how: ``peaky: 3 rows are not finite …``; empty
        where it is right on all, or where there is no short problem that it takes.
        """
        try:
            short = shortened(problem)
        except InvalidProblem:
            short = None
        if short is None:
            return ""
        key = row.label, seed, short.with_(q_len=1, kv_len=1, mask=Mask()), short.mask.kinds
        if key not in self._found:
            self._found[key] = self._tried(row, short, seed, build)
        return self._found[key]

    def _tried(self, row: Variant, short: Problem, seed: int, build: Build) -> str:
        try:
            attend, define = build(short)
        except Exception:  # it may be made for longer problems alone
            return ""
        for shared in self._all_judged(short, seed):
            judged = shared.of(row.operator)
            reference = judged.softmax
            try:
                if define is not None:
                    reference = defined(judged.problem, judged.inputs, reference, define)
                call = Call(judged.problem, attend, judged.inputs)
                check_values(judged, call, results(call, reference.dout), reference)
            except Wrong as wrong:
                return f"{judged.problem.inputs}: {wrong}"
            except Exception as error:
                return f"{judged.problem.inputs}: it raised {type(error).__name__}: {error}"
        return ""

    def _all_judged(self, short: Problem, seed: int) -> list[Judged]:
        """Every other kind of inputs; kept for the next variant of such a problem."""
        if self._judged is None or self._judged[0] != (short, seed):
            problems = [short.with_(inputs=kind) for kind in OTHERS]
            self._judged = (short, seed), [judge(p, make(p, seed), seed) for p in problems]
        return self._judged[1]
