"""A bar where somebody watches."""

import os
import subprocess
import sys

from tests.calling import ROOT

LIVE = """
from attnbench.core.record import Record
from attnbench.command.progress import Progress
from impls.problem import Problem
with Progress(2, best=True) as shown:
    for number, reason in enumerate(("it needs [bold] text", "it raised ValueError: [/x]"), 1):
        problem = Problem().to_dict()
        record = Record(status="failed", reason=reason, variant="mine", problem=problem)
        shown.cell(record, number, 2, 1.0)
"""


def test_the_live_bar_shows_reasons_as_they_are():
    outer, inner = os.openpty()
    none = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": inner}
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([sys.executable, "-c", LIVE], cwd=ROOT, env=environment, **none) as child:
        os.close(inner)
        shown = b""
        try:
            while part := os.read(outer, 1 << 16):
                shown += part
        except OSError:  # nobody holds its other end
            pass
        assert child.wait(60) == 0, shown[-2000:]
    os.close(outer)
    assert b"it needs [bold] text" in shown
    assert b"1/2" in shown and b"fastest so far" in shown
    assert b"it raised ValueError: [/x]" in shown
