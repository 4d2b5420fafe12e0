"""Run tests as if on another machine: ``python -m tests.disguise [--OPTION …] [PYTEST'S WORDS …]``.

The checkout is a copy that can't be written to, in a deep folder with spaces in its name, where the
temporary files lie too. There is no HOME, the language is C, the processor has another name and
other cores, and COLUMNS is set.
"""

import argparse
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG_NAME = "Intel(R) Xeon(R) Platinum 8481C Processor, its name has 80 letters, @ 2.7000 GHz"
DEEP = "a user's own folder/with projects of this year/and of the years before/all about attention"
LEFT_BEHIND = shutil.ignore_patterns(".venv", "__pycache__", ".*_cache")
HIDDEN = ("HOME", "USER", "LOGNAME", "LANGUAGE", "LC_", "XDG_")
SEEN = """
from pathlib import Path
import attnbench
from attnbench.core.machine import this_machine
from attnbench.report.tables import console
root = Path(attnbench.__file__).parents[1]
print(this_machine().cpu, this_machine().cores, console().width, root, sep=", ", end=", ")
try:
    Path("a file").touch()
except OSError as error:
    print(type(error).__name__)
"""
"""Prints what a program sees of the machine."""
DROP_CAPABILITY, WRITE_ANYWHERE, READ_ANYWHERE = 24, 1, 2
"""As Linux numbers them."""


def main():
    """Exit with pytest's status."""
    parser = argparse.ArgumentParser(prog="python -m tests.disguise", allow_abbrev=False)
    parser.add_argument("--cpu", default=LONG_NAME, help="the processor's name; '' for none")
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--columns", type=int, default=40)
    options, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="disguise") as top:
        try:
            sys.exit(run(Path(top, DEEP), options, words))
        finally:
            subprocess.run(["chmod", "-R", "u+w", top], check=True)


def run(place, options, words):
    """The status of pytest, called with these words."""
    checkout, temporary = place / "attnbench", place / "temporary files"
    shutil.copytree(ROOT, checkout, ignore=LEFT_BEHIND, symlinks=True)
    temporary.mkdir()
    subprocess.run(["chmod", "-R", "a-w", checkout], check=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)}
    variables |= {
        "DISGUISE_CPU": options.cpu,
        "DISGUISE_CORES": str(options.cores),
        "COLUMNS": str(options.columns),
        "LANG": "C",
        "TMPDIR": str(temporary),
        "PYTHONPATH": f"{checkout / 'tests/disguise'}:{checkout}",
    }
    more = {"cwd": checkout, "env": variables, "preexec_fn": obey_permissions}
    seen = subprocess.run([sys.executable, "-c", SEEN], **more, capture_output=True, text=True)
    name = options.cpu or platform.processor() or platform.machine()
    wanted = f"{name}, {options.cores}, {options.columns}, {checkout}, PermissionError\n"
    if seen.stdout != wanted:
        sys.exit(f"the disguise does not hold: {seen.stdout}{seen.stderr} is not {wanted}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, **more).returncode


def obey_permissions():
    """Take from root what lets it write to any file; others never could, and change nothing."""
    for capability in (WRITE_ANYWHERE, READ_ANYWHERE):
        ctypes.CDLL(None).prctl(DROP_CAPABILITY, capability, 0, 0, 0)


if __name__ == "__main__":
    main()
