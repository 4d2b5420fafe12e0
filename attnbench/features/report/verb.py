"""``attnbench report [RUN …]``: a page that opens with the answer, and the files beside it."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import say
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.features.report.page import Report
    from attnbench.report.scenes import ReportRun


BESIDE = "report"


def report(arguments: argparse.Namespace) -> int:
    """``attnbench report [RUN …] [--out DIR]``"""
    from attnbench.core.store import NEWEST, named_run, some_runs
    from attnbench.features.report.page import make

    runs = [named_run(run) for run in arguments.runs or NEWEST[:1]]
    if arguments.out is None:
        folders = some_runs(runs)
        if len(folders) > 1:
            raise CantBeDone(
                f"these are {len(folders)} runs: say where their report is to lie, such as --out "
                f"reports/{'-and-'.join(path.name for path in folders[:3])}"
            )
        out = folders[0] / BESIDE
    else:
        out = Path(arguments.out)
    result = make(runs, out)
    contents = result.contents
    if arguments.json:
        answers = [
            {"run": s.run.name, "regime": str(s.regime), "sure": standing.sure}
            | standing.answer.to_dict()
            for s in contents.scenes
            for standing in s.standings
            if standing.answer
        ]
        files = {"index": str(result.index), "files": [str(path) for path in result.files]}
        print(
            json.dumps(
                {**files, "headlines": list(map(str, contents.headlines)), "answers": answers}
            )
        )
    else:
        print(*contents.headlines, sep="\n")
    say(f"the report is {result.index}, with {len(result.files) - 1} files beside it")
    if arguments.open:
        webbrowser.open(result.index.resolve().as_uri())
    return 0


def report_of(run: ReportRun) -> Report | None:
    """A run's own report, at its end; None where it could not be made: the run has lost nothing."""
    from attnbench.features.report.page import report_on

    try:
        return report_on([run], run.path / BESIDE)
    except Exception as error:  # anything: what was measured is kept, and is what counts
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        say(
            f"note: the report could not be made ({first}); the records are whole: 'attnbench "
            f"report {run.path}' tries again"
        )
        return None
