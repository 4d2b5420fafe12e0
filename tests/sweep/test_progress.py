"""Progress: plain lines where nobody watches, a bar where somebody does."""

import os
import subprocess
import sys
from pathlib import Path

import attnbench
from attnbench.core.record import Record, Status
from attnbench.sweep.sweep import PlainLines, watcher
from impls.problem import Problem

ROOT = Path(attnbench.__file__).parents[1]
PROBLEM = Problem(heads=2, kv_heads=2, q_len=32, kv_len=32)

LIVE = """
from attnbench.core.record import Record
from attnbench.sweep.sweep import LiveBar, watcher
from impls.problem import Problem
with watcher(2) as shown:
    assert isinstance(shown, LiveBar)
    for number, reason in enumerate(("it needs [bold] text", "it raised ValueError: [/x]"), 1):
        problem = Problem().to_dict()
        record = Record(status="failed", reason=reason, variant="mine", problem=problem)
        shown.cell(record, number, 2, 1.0)
"""


def _parts(terminal):
    """What is written to a terminal, until nobody holds its other end."""
    while True:
        try:
            yield os.read(terminal, 1 << 16)
        except OSError:
            return


def test_plain_lines_where_there_is_no_terminal(capsys):
    with watcher(3) as shown:
        assert isinstance(shown, PlainLines)
        record = Record(
            status=Status.FAILED, reason="it raised [/x]", variant="mine", problem=PROBLEM.to_dict()
        )
        shown.cell(record, 2, 3, 75.0)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    for word in ("2/3", "75 s left", "mine", "n32", "forward", "failed: it raised [/x]"):
        assert word in said.err


def test_the_live_bar_shows_reasons_as_they_are():
    outer, inner = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", LIVE],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=inner,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as child:
        os.close(inner)
        shown = b"".join(_parts(outer)).decode(errors="replace")
        status = child.wait(60)
    os.close(outer)
    assert status == 0, shown[-2000:]
    assert "it needs [bold] text" in shown
    assert "it raised ValueError: [/x]" in shown
