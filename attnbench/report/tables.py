"""A table as data, and its forms: for a terminal, as HTML and as Markdown.

In a terminal a number that is broken in two reads as two others, so columns of numbers are as wide
as their numbers. Headings and columns of words wrap. A table whose numbers alone are too wide stays
so. Text wraps between words: a path that is too wide stays whole, so that it can be copied.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from html import escape
from typing import IO, Any, Literal, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column as GridColumn
from rich.table import Table as Grid
from rich.text import Text

from attnbench.core.format import NONE, Unchecked, for_terminal

GOOD, BAD, FAINT, BOLD, BEST = "green", "red", "dim", "bold", "bold green"
"""Styles of a cell. A terminal shows all; Markdown shows those that are bold."""
VERDICTS = {"FASTER": GOOD, "SLOWER": BAD, "EQUIVALENT": BOLD, "INCONCLUSIVE": FAINT}


@dataclass(frozen=True)
class Column:
    """A column: its heading, and how its values stand."""

    heading: str
    align: Literal["left", "right"] = "left"
    wrap: bool = False
    """True where values may be broken over lines, as words may and numbers may not."""


def columns(*headings: str, right: Sequence[str] = (), wrap: Sequence[str] = ()) -> list[Column]:
    """Columns of text. ``right`` and ``wrap`` name those that are aligned right, and that wrap."""
    return [Column(h, align="right" if h in right else "left", wrap=h in wrap) for h in headings]


@dataclass(frozen=True)
class Styled:
    """A value with a style."""

    value: Any
    style: str = ""
    rest: str = ""
    """Text behind the value, after a space, that does not have the style."""

    def marked(self, escaped: Callable[[str], str], bold: str) -> str:
        """As markup, bold by a template where its style is."""
        text = escaped(self.value)
        text = bold.format(text) if self.style in (BOLD, BEST) else text
        return f"{text} {escaped(self.rest)}" if self.rest else text


@dataclass(frozen=True)
class Table:
    """Rows of plain values, or of values with a style, under columns. None is shown as a dash."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    caption: str = ""

    def cells(self) -> Iterator[list[Styled]]:
        """Row by row the printed values."""
        for row in self.rows:
            cells = (value if isinstance(value, Styled) else Styled(value) for value in row)
            yield [replace(x, value=NONE if x.value is None else str(x.value)) for x in cells]


@contextmanager
def as_markdown() -> Iterator[None]:
    """Print tables to standard output as Markdown, and all else to standard error."""
    out = sys.stdout
    between = iter([""])  # before the first of several nothing, then an empty line

    def put(table: Table) -> None:
        print(next(between, "\n") + to_markdown(table), file=out)

    _printed.append(put)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _printed.pop()


_printed: list[Callable[[Table], None]] = []
"""The function that prints a table in place of the terminal, if there is one."""


def show(table: Table) -> None:
    """Print a table to the terminal, below its title and above its notes."""
    if _printed:
        _printed[-1](table)
        return
    out = console()
    if table.title:
        title = Text("\n").append(table.title, BOLD)
        out.print(title.append(f"  {table.caption}") if table.caption else title)
    if table.rows:
        grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for column in table.columns:
            head = Text(column.heading, no_wrap=False)
            grid.add_column(head, justify=column.align, overflow="fold", no_wrap=not column.wrap)
        for row in table.cells():
            rests = (f" {cell.rest}" if cell.rest else "" for cell in row)
            texts = (
                Text().append(for_terminal(x.value), x.style).append(for_terminal(rest))
                for x, rest in zip(row, rests, strict=True)
            )
            grid.add_row(*texts)
        width = _fit(grid, out.width)  # as narrow as the console where that can be
        (out if width <= out.width else console(width)).print(grid)
    for note in table.notes:
        out.print(Text(note), style=FAINT)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names with what is so of each, but for empty ones."""
    show(Table("", columns("", "", wrap=[""]), [fact for fact in facts if fact[1]]))


def to_html(table: Table) -> str:
    """A table that scrolls within its frame; the first cell of a row is its heading.

    Of a value of several lines the second and later ones are remarks.
    """
    kinds = ["" if column.align == "left" else ' class="n"' for column in table.columns]
    heads = zip(table.columns, kinds, strict=True)
    head = "".join(
        f'<th scope="col"{kind}>{escape(c.heading)}</th>' if c.heading else "<td></td>"
        for c, kind in heads
    )
    lines = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="said"><thead><tr>{head}</tr></thead><tbody>'
    ]
    for row in table.cells():
        cells = []
        for cell in row:
            text, *remarks = escape(cell.marked(str, "{}")).split("\n")
            cells.append(text + "".join(f'<p class="remedy">{x}</p>' for x in remarks))
        rest = "".join(f"<td{k}>{x}</td>" for x, k in zip(cells[1:], kinds[1:], strict=True))
        lines.append(f'<tr><th scope="row"{kinds[0]}>{cells[0]}</th>{rest}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def to_markdown(table: Table) -> str:
    """A table as GitHub reads it."""
    lines = [[markdown_text(column.heading) for column in table.columns]]
    lines.append(["---:" if column.align == "right" else "---" for column in table.columns])
    lines += ([cell.marked(markdown_text, "**{}**") for cell in row] for row in table.cells())
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LONG = 2_000  # a reason and a remedy are shorter


def markdown_text(text: str) -> str:
    """Text on one line, with nothing in it that is markup; a very long one is cut."""
    line = " ".join(text.split())
    line = line if len(line) <= LONG else line[:LONG] + "…"
    line = re.sub(r"&(?=#?\w+;)", "&amp;", line)  # elsewhere it is only an ampersand
    safe = re.sub(r"([\\`*_{}\[\]<>#|~!$])", r"\\\1", line)
    return safe.replace("@", "&#64;").replace("\\<", "&lt;")


PIPED = 120
"""Columns where no terminal sets a limit."""
GAP = 2
WORD = 24
"""A longer word, or a longer half of a heading, is folded before a table gets too wide; not in the
last column, where paths and commands stand."""


class _Screen(Console):
    """Breaks lines between words alone; a longer word, or a table, stays as wide as it is. It obeys
    no text's own controls, and a file's lines end without blanks.
    """

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        texts = []
        for each in objects:
            text = self.render_str(each) if isinstance(each, str) else each
            if isinstance(text, Text):
                text = text.copy()
                text.plain = for_terminal(text.plain)
                text = text if soft_wrap else _broken(text, self.width)
            texts.append(text)
        how |= {"soft_wrap": soft_wrap, "overflow": "ignore", "crop": False}
        if self.is_terminal:
            super().print(*texts, **how)
            return
        with self.capture() as printed:
            super().print(*texts, **how)
        self.file.write(re.sub(r"[ \t]+$", "", printed.get(), flags=re.MULTILINE))


def _broken(text: Text, width: int) -> Text:
    """The text in lines of this width, if its words leave it at that."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        places, column = list[int](), 0
        for word in re.finditer(r"[ \t]*[^ \t]+[ \t]*", line.plain):
            if column and column + cell_len(word[0].rstrip()) > width:
                places.append(word.start())
                column = 0
            column += cell_len(word[0])
        lines += line.divide(places)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def console(width: int | None = None) -> Console:
    """Standard output, by default as wide as ``COLUMNS`` says or the terminal is."""
    file = cast(IO[str], Unchecked(sys.stdout))
    if width is None:
        screen = Console(file=file)
        columns = re.fullmatch("0*([1-9][0-9]{0,4})", os.environ.get("COLUMNS", ""))
        width = int(columns[1]) if columns else screen.width if screen.is_terminal else PIPED
    return _Screen(highlight=False, width=width, height=1, file=file)  # else a dumb terminal has 80


def _fit(grid: Grid, room: int) -> int:
    """Give each column its width and return the sum: headings wrap first, then words."""
    least, widths = [], []
    for column in grid.columns:
        texts = [str(cell) for cell in column.cells]
        whole = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
        word = max((cell_len(word) for text in texts for word in text.split()), default=0)
        half = min(_in_two_lines(str(column.header)), WORD)
        least.append(max(whole if column.no_wrap else min(word, WORD), half))
        widths.append(max(cell_len(str(column.header)), whole))
    room -= GAP * (len(widths) - 1)
    if sum(widths) > room:
        for n, column in enumerate(grid.columns):
            if column.no_wrap:
                widths[n] = max(least[n], _in_two_lines(str(column.header)))
    while sum(widths) > room:
        loose = [n for n, width in enumerate(widths) if width > least[n]]
        if not loose:
            break
        widths[max(loose, key=widths.__getitem__)] -= 1
    if widths and not grid.columns[-1].no_wrap:
        widths[-1] = _wrapped(grid.columns[-1], widths[-1])
    for column, width in zip(grid.columns, widths, strict=True):
        column.width = width
    return sum(widths) + GAP * (len(widths) - 1)


def _wrapped(column: GridColumn, width: int) -> int:
    """Wrap the last column, whose long words stay whole, and return its width."""
    column._cells[:] = [_broken(cast(Text, cell), width) for cell in column.cells]
    lines = (line for cell in column.cells for line in str(cell).splitlines())
    return max([width, *map(cell_len, lines)])


def _in_two_lines(heading: str) -> int:
    """The width of a heading that wraps once, where that is best."""
    words = heading.split()
    halves = ((" ".join(words[:n]), " ".join(words[n:])) for n in range(len(words)))
    return min((max(map(cell_len, both)) for both in halves), default=0)
