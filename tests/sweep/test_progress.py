"""A bar where somebody watches."""

import sys

from attnbench.command.progress import Progress
from attnbench.core.record import Record
from impls.problem import Problem


def test_the_live_bar_shows_reasons_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    reasons = ["it needs [bold] text", "it raised ValueError: [/x]"]
    with Progress(2, best=True) as shown:
        for number, reason in enumerate(reasons, 1):
            record = Record(status="failed", reason=reason, variant="mine", problem=Problem())
            shown.cell(record, number, 2, 1.0)
    said = capsys.readouterr().err
    assert all(reason in said for reason in reasons)
    assert "1/2" in said and "fastest so far" in said
