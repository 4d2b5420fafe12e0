"""The gallery is what the code makes of committed runs: ``python -m proofs.gallery [--write]``.

Each report under ``reports/`` is made again from its run under ``results/`` and held against what
is committed, byte by byte; ``--write`` puts the new one in its place and photographs the first
screen of the page, for which it needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = {
    "reports/cpu": "results/amd-epyc-2c/20261128-073342",
    "reports/h200": "results/nvidia-h200/20261126-164647",
}
PICTURE = "first-screen.png"
SCREEN = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1440,900")


@contextmanager
def new_report(report: str, run: str) -> Iterator[Path]:
    """A new report, in a copy of the tree's own shape: its links are relative to the run."""
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for folder in (Path(run), Path(run).parent / "evidence"):
            if (ROOT / folder).is_dir():
                shutil.copytree(ROOT / folder, root / folder)
        command = [sys.executable, "-m", "attnbench", "report", run, "--out", report]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        yield root / report


def different(report: str, new: Path) -> list[str]:
    """The files that are not as they are committed, or not there on one side."""
    old, fresh = (
        {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*.*") if p.is_file()}
        for base in (ROOT / report, new)
    )
    return sorted(n for n in {*old, *fresh} - {PICTURE} if old.get(n) != fresh.get(n))


def main(words: list[str]) -> int:
    """A line for each report; 1 where one is not what its run makes."""
    status = 0
    for report, run in REPORTS.items():
        with new_report(report, run) as new:
            if words == ["--write"]:
                shutil.rmtree(ROOT / report, ignore_errors=True)
                shutil.copytree(new, ROOT / report)
                picture, page = ROOT / report / PICTURE, ROOT / report / "index.html"
                command = ["chromium", *SCREEN, f"--screenshot={picture}", page.as_uri()]
                subprocess.run(command, check=True, capture_output=True)
                print(f"{report}: made from {run}")
            else:
                files = different(report, new)
                print(f"{report}: {len(files)} files differ from what {run} makes: {files[:5]}")
                status |= bool(files)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
