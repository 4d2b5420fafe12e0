"""The answer as cards, one a regime: what to use at which lengths, by how much, and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.answer.standing import Standing, Stretch
from attnbench.answer.verdict import Answer
from attnbench.report import numbers
from attnbench.report.figures.looks import Look
from attnbench.report.page.beside import Beside, beside
from attnbench.report.page.headlines import lead
from attnbench.report.page.table import Cell
from attnbench.report.scenes import Scene

NAMED = 3
"""Of variants that can't be told from the winner, so many are named; the rest is counted."""
DOUBTS = 3


@dataclass(frozen=True)
class Row:
    """One stretch of lengths."""

    stretch: Stretch
    winner: Look | None
    """None where nothing exact has a time."""
    tied: Sequence[Cell]
    """Those that can't be told from it, as far as they are named."""
    more: int
    """How many tie besides."""
    cell: Cell | None
    """The winner's at the longest of these lengths."""
    beside: Beside | None
    other: Look | None
    """Of what stands in ``beside``."""

    @property
    def badges(self) -> Sequence[tuple[str, str]]:
        """How sure it is: marks (clear, tie, only, doubt) with their words, of all lengths."""
        answer = self.stretch.last.answer
        if answer is None:
            return ()
        doubt = [("doubt", "in doubt")] * bool(self.doubts)
        if answer.equal:
            return [("tie", f"a tie of {len(answer.equal) + 1}"), *doubt]
        if answer.next is None:
            return [("only", "the only one"), *doubt]
        return doubt or [("clear", "clear")]

    @property
    def lead(self) -> str:
        """``1.31× [1.28, 1.34] faster than chunked``"""
        return _lead(self.stretch.last)

    @property
    def memory(self) -> str:
        """What the winner needs, and what needs much less."""
        answer = self.stretch.last.answer
        return _memory(answer) if answer else ""

    @property
    def doubts(self) -> Sequence[str]:
        """What was amiss, at any of these lengths."""
        return self.stretch.doubts

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

    @property
    def linked(self) -> list[Cell]:
        """Those whose numbers stand on it, and lead to their records."""
        return [c for row in self.rows for c in (row.cell, *row.tied) if c is not None]


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
    at = scene.regime.cells[last.length]
    cells = {name: of.get(id(at.get(name))) for name in last.leaders}
    winner = last.leaders[0] if last.leaders else ""
    tied = [cell for name, cell in cells.items() if cell is not None and name != winner]
    said = beside(last)
    other = looks[said.found.variant] if said and said.found else None
    more = max(0, len(tied) - NAMED)
    return Row(stretch, looks.get(winner), tied[:NAMED], more, cells.get(winner), said, other)


def _lead(standing: Standing) -> str:
    answer = standing.answer
    if answer is None:
        return ""
    if answer.next is not None:
        return f"{lead(standing)} faster than {answer.next}"
    return "none that is exact is slower for sure" if answer.equal else "nothing exact beside it"


def _memory(answer: Answer) -> str:
    if answer.memory_bytes is None:
        return ""
    text = numbers.nbytes(answer.memory_bytes)
    if answer.frugal:
        name, least, slower = answer.frugal
        text += f" ({name}: {numbers.nbytes(least)} at {numbers.ratio(slower)} the time)"
    return text
