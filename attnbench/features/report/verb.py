"""``attnbench report [RUN …]``: a page that opens with the answer, and the files beside it."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.features.report.files import Made


BESIDE = "report"


class NowhereToPut(CantBeDone):
    """Several runs, and no folder for what is said of all of them."""


def report(given: argparse.Namespace) -> int:
    """``attnbench report [RUN …] [--out DIR]``"""
    from attnbench.core.store import NEWEST, named_run, some_runs
    from attnbench.features.report.files import make

    if "" in (given.out, *given.runs):
        raise NowhereToPut("a run and --out are folders, and one of them has no name")
    runs = [named_run(run) for run in given.runs or NEWEST[:1]]
    out = None if given.out is None else Path(given.out)
    if out is None:
        found = some_runs(runs)
        if len(found) > 1:
            raise NowhereToPut(
                f"these are {len(found)} runs: say where their report is to lie, such as --out "
                f"reports/{'-and-'.join(path.name for path in found[:3])}"
            )
        out = found[0] / BESIDE
    with Progress() as progress:
        made = make(runs, out, progress)
    contents = made.contents
    if given.json:
        answers = [
            {"run": s.run.name, "regime": str(s.regime), "sure": standing.sure}
            | standing.answer.to_dict()
            for s in contents.scenes
            for standing in s.standings
            if standing.answer
        ]
        files = {"index": str(made.index), "files": [str(path) for path in made.files]}
        print(json.dumps({**files, "headlines": list(contents.headlines), "answers": answers}))
    else:
        print(*contents.headlines, sep="\n")
    say(f"the report is {made.index}, with {len(made.files) - 1} files beside it")
    if given.open:
        webbrowser.open(made.index.resolve().as_uri())
    return 0


def report_of(run: Path, progress: Progress | None = None) -> Made | None:
    """A run's own report, at its end; None where it could not be made: the run has lost nothing."""
    from attnbench.features.report.files import make

    try:
        made = make([run], run / BESIDE, progress)
    except Exception as error:  # anything: what was measured is kept, and is what counts
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        (progress.tell if progress else say)(
            f"note: the report could not be made ({said}); the records are whole: 'attnbench "
            f"report {run}' tries again"
        )
        return None
    return made
