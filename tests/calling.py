"""The command line, called in this process, or in one of its own."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import attnbench
from attnbench import cli
from attnbench.core import stats
from attnbench.features.report import build
from attnbench.meter.cell import Bench
from attnbench.meter.memory import warm_profiler
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.worker import _answer

ROOT = Path(attnbench.__file__).parents[1]
SENTENCE = "the cat sat on the mat"
VALID = Draft202012Validator(json.loads((ROOT / "attnbench/record.schema.json").read_text()))
INVERTED = """
from impls.spec import Variant

def build(problem):
    import torch

    seen = ~torch.from_numpy(problem.mask.visible(problem.shape))

    def attend(q, k, v):
        scores = (q @ k.mT * problem.scale).masked_fill(~seen, float("-inf"))
        return scores.softmax(-1).nan_to_num(0.0) @ v

    return attend

ROWS = [Variant(name="inverted", title="sees what it must not", family="mine", build=":build",
                operator="softmax", gqa=False)]
"""


def attnbench_(*words, own_process=False, options=(), **more):
    """What became of a command: ``returncode``, ``stdout`` and ``stderr``."""
    if own_process or options or more:
        return subprocess.run(
            [sys.executable, *options, "-m", "attnbench", *map(str, words)],
            cwd=ROOT,
            timeout=120,
            **{"capture_output": True, "text": True, **more},
        )
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
    return subprocess.CompletedProcess(words, status, out.getvalue(), error.getvalue())


def well(*words, status=0, **more):
    """What the command said, when it ended as it should."""
    done = attnbench_(*words, **more)
    assert done.returncode == status, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def asked(*words):
    """The status, data and prose of a command."""
    done = attnbench_(*words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def measured_here():
    """Measure in this process, for starting a worker takes seconds, and draw no figures."""
    warm_profiler()
    bench = Bench()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "ask", lambda _, asked, limit_s: _answer(bench, asked))
        patch.setattr(stats, "DRIFT", 1e9)  # the machine that tests run on is busy
        patch.setattr(build, "draw_all", lambda *_, **__: ([], {}))
        yield


def only_run(out):
    (path,) = out.glob("*/*")
    return path


def told(run, **changes):
    """Change what a run's header says, by the way in it: ``machine__python``."""
    header = json.loads((run / "run.json").read_text())
    for way, value in changes.items():
        *outer, last = way.split("__")
        inner = header
        for name in outer:
            inner = inner[name]
        inner[last] = value
    (run / "run.json").write_text(json.dumps(header))


@pytest.fixture(scope="module")
def inverted(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "inverted.py"
    file.write_text(INVERTED)
    return file
