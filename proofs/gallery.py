"""The gallery is what the code makes of committed runs: ``python proofs/gallery.py [--write]``.

Each report under ``reports/`` is made again from its run under ``results/`` and held against what
is committed, byte by byte; ``--write`` puts the new one in its place and photographs the first
screen of the page, for which it needs Chromium and Playwright.
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
FOLDER = "evidence"
"""Beside a machine's runs: what a report also says."""
REPORTS = {
    "reports/cpu": "results/amd-epyc-2c/20261128-073342",
    "reports/h200": "results/nvidia-h200/20261126-164647",
}
PICTURE = "first-screen.png"
SCREEN = {"width": 1440, "height": 900}


@contextmanager
def made(report: str, run: str) -> Iterator[Path]:
    """A report made anew, in a copy of the tree's own shape: its links are relative to the run."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shutil.copytree(ROOT / run, root / run)
        beside = Path(run).parent / FOLDER
        if (ROOT / beside).is_dir():
            shutil.copytree(ROOT / beside, root / beside)
        command = [sys.executable, "-m", "attnbench", "report", run, "--out", report]
        done = subprocess.run(command, cwd=root, env=_environment(), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        yield root / report


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def different(report: str, new: Path) -> list[str]:
    """The files that are not as they are committed, or not there on one side."""
    old = ROOT / report
    names = {str(p.relative_to(base)) for base in (old, new) for p in base.rglob("*.*")}
    return sorted(n for n in names - {PICTURE} if _bytes(old / n) != _bytes(new / n))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def photograph(page: Path, picture: Path) -> None:
    """The first screen, as a reader has it who opens the page."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SCREEN, color_scheme="light")  # type: ignore[arg-type]
        tab.goto(page.as_uri())
        tab.screenshot(path=picture)
        browser.close()


def main(words: list[str]) -> int:
    status = 0
    for report, run in REPORTS.items():
        with made(report, run) as new:
            if words == ["--write"]:
                shutil.rmtree(ROOT / report, ignore_errors=True)
                shutil.copytree(new, ROOT / report)
                photograph(ROOT / report / "index.html", ROOT / report / PICTURE)
                print(f"{report}: made from {run}")
            else:
                found = different(report, new)
                print(f"{report}: {len(found)} files differ from what {run} makes: {found[:5]}")
                status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
