"""A model's attention layers: the choice for each kind, and what all layers take together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import impls
from attnbench.answer.choose import Choice, Wants, choose
from attnbench.answer.ranking import EXACT, Candidate
from attnbench.core.format import time_interval
from attnbench.core.stats import Interval
from attnbench.core.wire import convert
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import Preset

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from impls.problem import Problem

USUAL = "sdpa"
"""The variant that a program calls as it is."""


@dataclass(frozen=True)
class LayerChoice:
    """The choice for a kind of layer, and how many the model has of it."""

    kind: str
    layers: int
    choice: Choice

    @property
    def where(self) -> str:
        """The phase and the tokens, in words."""
        p = self.choice.problem
        tokens = f"{p.kv_len:,} keys" if p.phase == "decode" else f"{p.q_len:,} tokens"
        return f"{p.phase}, {tokens}{f', batch {p.batch}' if p.batch > 1 else ''}"

    @property
    def shape(self) -> str:
        """The problem without these: ``h8/1 d64 f32 window:127,0 sinks``."""
        p = self.choice.problem
        _, heads, _, *words = str(p).split()
        words += [f"on {p.kv_len:,} keys"] * (p.phase != "decode" and p.kv_len != p.q_len)
        return " ".join([heads, *(word for word in words if word != p.phase)])

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": self.kind, "layers": self.layers, **self.choice.to_dict()}


def layer_problems(grid: Preset) -> Iterator[tuple[str, int, str, Problem]]:
    """The kind, how many layers are of it, its operator and each of its problems, of a model's
    grid; nothing of another.
    """
    for part in grid.parts:
        if part.layers:
            for problem in problems(replace(part, device=grid.device)):
                yield part.title, part.layers, part.operator, problem


def layer_choices(records: Sequence[Record], header: Mapping[str, Any]) -> list[LayerChoice]:
    """The choices that a run's records allow, where its grid is a model's; none for another."""
    grid = header.get("grid")
    layers = list(layer_problems(convert(grid, Preset))) if isinstance(grid, Mapping) else []
    if not layers:
        return []
    table = impls.table(header["tables"])
    return [
        LayerChoice(
            kind,
            count,
            choose([r for r in records if r.problem == p], p, Wants(operator=operator), table),
        )
        for kind, count, operator, p in layers
    ]


@dataclass(frozen=True)
class AllLayers:
    """The seconds that all layers take in a phase at a length."""

    where: str
    layers: int
    best: Interval
    """With the choice of each kind."""
    alone: dict[str, Interval]
    """With one variant for all that compute softmax, the fastest first; the others' own choice."""
    softmax: int
    """How many of them compute softmax."""

    @property
    def against(self) -> str:
        """What the choices are held against: torch's own function, or else the fastest alone."""
        return USUAL if USUAL in self.alone else next(iter(self.alone), "")

    def sentence(self) -> str:
        """What all layers take with these choices, and with one variant in their place."""
        best = self.best
        took = time_interval(best.value, best.low, best.high)
        text = f"{self.where}: all {self.layers} layers take {took}"
        if not self.against:
            return text
        other = self.alone[self.against]
        where = "in all of them" if self.softmax == self.layers else "in those of softmax"
        if other == best:
            return f"{text}, with {self.against} {where}"
        longer = Interval(other.value / best.value, other.low / best.high, other.high / best.low)
        time = time_interval(other.value, other.low, other.high)
        return f"{text}; with {self.against} {where} {time}, {longer} of that"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        named = {"best": self.best, **self.alone}
        times = {
            name: {"seconds": t.value, "low_s": t.low, "high_s": t.high}
            for name, t in named.items()
        }
        return {"where": self.where, "layers": self.layers, "takes": times}


def together(choices: Sequence[LayerChoice]) -> Iterator[AllLayers]:
    """What all layers take, where each kind has an answer."""
    kinds = {each.kind for each in choices}
    groups: dict[tuple[str, ...], list[LayerChoice]] = {}
    for each in choices:
        problem = each.choice.problem
        groups.setdefault((each.where, problem.dtype, problem.inputs), []).append(each)
    own = [{key[n] for key in groups} for n in range(3)]
    for key, some in groups.items():
        where = ", ".join([key[0], *(key[n] for n in (1, 2) if len(own[n]) > 1)])
        ranked = [(each, each.choice.ranking) for each in some if each.choice.ranking]
        if {each.kind for each, _ in ranked} != kinds:
            continue
        best = _sum((each.layers, ranking.winner) for each, ranking in ranked)
        exact = [each for each in some if each.choice.wants.operator == EXACT]
        softmax = [each.choice.ranking for each in exact if each.choice.ranking]
        names = [
            name
            for name in (softmax[0].by_name if softmax else ())
            if all(name in ranking.by_name for ranking in softmax)
        ]
        alone = {
            name: _sum(
                (each.layers, ranking.by_name.get(name, ranking.winner)) for each, ranking in ranked
            )
            for name in names
        }
        order = sorted(alone.items(), key=lambda item: item[1].value)
        layers, of_softmax = (sum(each.layers for each in those) for those in (some, exact))
        yield AllLayers(where, layers, best, dict(order), of_softmax)


def _sum(some: Iterator[tuple[int, Candidate]]) -> Interval:
    value = low = high = 0.0
    for layers, candidate in some:
        value += layers * candidate.median_s
        low += layers * candidate.low_s
        high += layers * candidate.high_s
    return Interval(value, low, high)
