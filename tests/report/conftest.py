"""What a view prints where no terminal reads it, and the figures that were drawn."""

import pytest

from attnbench.report.tables import PIPED


@pytest.fixture
def reason():
    """More words than any line has room for."""
    return " ".join(f"[word {n}]" for n in range(60))


@pytest.fixture
def in_a_pipe(shown):
    """What a view prints into a pipe, as one line: no line is too wide, or ends in blanks."""

    def show(function, *given):
        text = shown(function, *given, width=PIPED)
        for line in text.splitlines():
            assert len(line) <= 120, line
            assert line == line.rstrip(), line
        return " ".join(text.split())

    return show


@pytest.fixture
def kept(monkeypatch):
    """The matplotlib figures that are saved from now on, since an SVG says no width of words."""
    from matplotlib.figure import Figure

    found, save = [], Figure.savefig

    def keep(self, *given, **more):
        if self not in found:
            found.append(self)
        return save(self, *given, **more)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found
