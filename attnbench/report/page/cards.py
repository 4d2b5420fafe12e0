"""The answer as cards, one a regime: what to use at which lengths, by how much, and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.answer.standing import Stretch
from attnbench.answer.verdict import Answer
from attnbench.report import numbers
from attnbench.report.figures.looks import Look
from attnbench.report.page.beside import Beside, beside
from attnbench.report.page.table import Cell
from attnbench.report.scenes import Scene

NAMED = 4
"""Of variants that tie, so many are named; the rest is counted."""
DOUBTS = 3
SHORTER = {"the only one measured": "the only one", "nothing exact was measured": ""}
MARKS = {"clear": "clear", "in doubt": "doubt", "the only one": "only"}


@dataclass(frozen=True)
class Row:
    """One stretch of lengths."""

    stretch: Stretch
    leaders: Sequence[Look]
    """Those that are named, the winner first."""
    more: int
    """How many tie besides."""
    cell: Cell | None
    """The winner's at the longest of these lengths."""
    beside: Beside | None
    other: Look | None
    """Of what stands in ``beside``."""

    @property
    def sure(self) -> str:
        """In a word or two: of all lengths together, the least sure of them."""
        told = [standing.sure for standing in self.stretch.standings]
        word = next((word for word in told if word == "in doubt"), told[-1])
        return SHORTER.get(word, word)

    @property
    def mark(self) -> str:
        """The same as one of a few words: clear, tie, doubt, only."""
        return MARKS.get(self.sure, "tie")

    @property
    def lead(self) -> str:
        """``1.31× [1.28, 1.34] ahead of chunked``"""
        answer = self.stretch.last.answer
        return _lead(answer) if answer else ""

    @property
    def memory(self) -> str:
        """What the winner needs, and what needs much less."""
        answer = self.stretch.last.answer
        return _memory(answer) if answer else ""

    @property
    def doubts(self) -> Sequence[str]:
        """What was amiss, at any of these lengths."""
        told = [flag for s in self.stretch.standings if s.answer for flag in s.answer.flags]
        return list(dict.fromkeys(told))

    @property
    def doubted(self) -> str:
        """The same as a line, the first of them named."""
        told, rest = self.doubts[:DOUBTS], len(self.doubts) - DOUBTS
        return "; ".join(told) + f"; {rest} more" * (rest > 0)


@dataclass(frozen=True)
class Card:
    """One regime."""

    scene: Scene
    rows: Sequence[Row]
    """The longest lengths first: they are what is asked about."""
    untimed: int
    """Cells of it that have no time."""
    cells: int


def cards(scenes: Sequence[Scene], looks: Mapping[str, Look], cells: Sequence[Cell]) -> list[Card]:
    """One for each regime in which anything has a time."""
    of = {id(cell.record): cell for cell in cells}
    made = []
    for scene in scenes:
        if scene.timed:
            rows = [_row(scene, stretch, looks, of) for stretch in reversed(scene.stretches)]
            records = scene.regime.records
            untimed = sum(record.time is None for record in records)
            made.append(Card(scene, rows, untimed, len(records)))
    return made


def _row(scene: Scene, stretch: Stretch, looks: Mapping[str, Look],
         of: Mapping[int, Cell]) -> Row:  # fmt: skip
    last = stretch.last
    leaders = [looks[name] for name in last.leaders]
    winner = scene.regime.cells[last.length].get(last.leaders[0]) if leaders else None
    cell = of.get(id(winner)) if winner else None
    more = max(0, len(leaders) - NAMED)
    said = beside(last)
    other = looks[said.found.variant] if said and said.found else None
    return Row(stretch, leaders[:NAMED], more, cell, said, other)


def _lead(answer: Answer) -> str:
    if answer.next is not None and answer.lead is not None:
        spread = f" [{answer.lead_low:.2f}, {answer.lead_high:.2f}]"
        return f"{answer.lead:.2f}×{spread} ahead of {answer.next}"
    return "none that is exact is slower for sure" if answer.equal else "nothing exact beside it"


def _memory(answer: Answer) -> str:
    if answer.memory_bytes is None:
        return ""
    text = numbers.nbytes(answer.memory_bytes)
    if answer.frugal:
        name, least, slower = answer.frugal
        text += f" ({name}: {numbers.nbytes(least)} at {numbers.ratio(slower)} the time)"
    return text
