"""Files of rows for a test to write, and a fresh interpreter to read them in."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import impls
from impls import outside

ROOT = Path(impls.__file__).parents[1]

HEAD = """
from impls.spec import Variant

def row(name, **more):
    plain = {"title": "mine", "family": "mine", "computes": "softmax", "build": ":build"}
    return Variant(name=name, **{**plain, **more})
"""


def write(file, *parts):
    file.write_text("\n".join(textwrap.dedent(part) for part in parts))
    return file


def rows_of(file):
    return list(outside.file_rows([file]))


def python(code, *paths, cwd=ROOT, stdin=None):
    """What a fresh interpreter, with these folders on its path, prints as JSON."""
    path = os.pathsep.join(str(p) for p in (ROOT, *paths))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
        stdin=stdin,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
