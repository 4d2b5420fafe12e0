"""Tables as text: where they are printed, in which colors, and how they fit into the width there.

A number that is broken in two reads as two others, so columns of numbers are as wide as their
numbers. Headings and columns of words wrap. A table whose numbers alone are too wide stays so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import IO, Literal, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from attnbench.core.format import Unchecked, for_terminal

GOOD, BAD, FAINT = "green", "red", "dim"
PIPED = 120
"""Columns where no terminal sets a limit."""
GAP = 2
"""Columns between two columns."""
WORD = 24
"""A longer word, or a longer half of a heading, is folded before a table gets too wide."""


class _Harmless:
    """Something to print, without control characters that are not this package's own."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for each in out.render(self.inner, options):
            yield each if each.control else each._replace(text=for_terminal(each.text))


class _Trimmed(_Harmless):
    """The same, also without the blanks at the ends of its lines."""

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in out.render_lines(_Harmless(self.inner), options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()


class _Wrap(RenderHook):
    def __init__(self, kind: type[_Harmless]) -> None:
        self._kind = kind

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [self._kind(each) for each in renderables]


def console(width: int | None = None) -> Console:
    """Standard output, by default as wide as the terminal is; it shows no text's own controls."""
    out = Console(highlight=False, width=width, file=cast(IO[str], Unchecked(sys.stdout)))
    terminal = out.is_terminal
    if not terminal:
        out = Console(highlight=False, width=width or PIPED, file=out.file)
    out.push_render_hook(_Wrap(_Harmless if terminal else _Trimmed))
    return out


def grid(*columns: str, right: Sequence[str] = (), words: Sequence[str] = ()) -> Grid:
    """An empty table. The columns of ``words`` may wrap; the others do in their headings alone."""
    made = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        heading = Text(column, no_wrap=False)
        made.add_column(heading, justify=justify, overflow="fold", no_wrap=column not in words)
    return made


def put(made: Grid) -> None:
    """Print a table, as narrow as the console where that can be."""
    out = console()
    width = _fit(made, out)
    (out if width <= out.width else console(width)).print(made, crop=False)


def _fit(made: Grid, out: Console) -> int:
    """Give each column its width: headings wrap first, then the widest of the words. The sum."""
    ranges = [_range(column, out) for column in made.columns]
    gaps = GAP * (len(ranges) - 1)
    widths = [each.maximum for each in ranges]
    if sum(widths) + gaps > out.width:
        for n, column in enumerate(made.columns):
            if column.no_wrap:
                widths[n] = max(ranges[n].minimum, _in_two_lines(str(column.header)))
    while sum(widths) + gaps > out.width:
        loose = [n for n, each in enumerate(ranges) if widths[n] > each.minimum]
        if not loose:
            break
        widths[max(loose, key=widths.__getitem__)] -= 1
    for column, width in zip(made.columns, widths, strict=True):
        column.width = width
    return sum(widths) + gaps


def _range(column: Column, out: Console) -> Measurement:
    """How narrow a column can be, and how wide it would be."""
    endless = out.options.update(width=10**6)
    cells = [Measurement.get(out, endless, cell) for cell in column.cells]
    whole = max((cell.maximum for cell in cells), default=0)
    word = max((cell.minimum for cell in cells), default=0)
    heading = str(column.header)
    least = whole if column.no_wrap else min(word, WORD)
    least = max(least, min(_in_two_lines(heading), WORD))
    return Measurement(least, max(cell_len(heading), whole))


def _in_two_lines(heading: str) -> int:
    """How wide a heading is that wraps once, where that is best."""
    words = heading.split()
    halves = ((" ".join(words[:n]), " ".join(words[n:])) for n in range(len(words)))
    return min((max(map(cell_len, both)) for both in halves), default=0)
