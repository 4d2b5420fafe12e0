"""``attnbench.show(…)``: the answers of what was measured, for the end of a notebook's cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.features.report.contents import Contents, contents_of
from attnbench.features.report.page import summary
from attnbench.notebook.frames import behind


@dataclass(frozen=True, repr=False)
class Shown:
    """A report's summary: shown as the last value of a cell."""

    contents: Contents

    def __repr__(self) -> str:
        return summary(self.contents)

    _repr_markdown_ = __repr__


def show(what: Any = "results") -> Shown:
    """The answers of what was measured, for the end of a notebook's cell.

    ``what``: a DataFrame of ``run`` or ``load``, or rows of one, which are then all that is looked
    at; a run's folder; several folders. It is the summary of the report; the page, with figures, is
    ``attnbench report RUN``. Raises ``CantBeDone`` for what is no run.

    >>> attnbench.show(df)                                                # doctest: +SKIP
    >>> attnbench.show(df[df["phase"] == "train"])                        # doctest: +SKIP
    >>> df.pivot_table("ms", "seq", "variant").plot(loglog=True)          # doctest: +SKIP
    """
    return Shown(contents_of(behind(what), Path()))
