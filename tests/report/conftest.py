"""The figures that were drawn."""

import pytest


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
