"""A page of a small run, its markup included, and a browser to read it with."""

import os
import shutil
from pathlib import Path

import pytest

from attnbench.report.page import html
from attnbench.report.page.filled import contents_of
from attnbench.report.page.gather import gather
from impls.loading import load_file

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def small_contents(tmp_path_factory):
    """Of the small run by hand, with its figures."""
    runs = load_file(HERE / "runs.py")
    folder = tmp_path_factory.mktemp("small") / "slow-box-2c"
    run = runs.written(folder / "20260102-030405", runs.small())
    return contents_of(gather([run]), run / "report")


@pytest.fixture(scope="session")
def page(small_contents, tmp_path_factory):
    """Its file."""
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(html.render(small_contents), "utf-8")
    return path


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium; without one its tests are left out, but not where every check is made."""
    program = shutil.which("chromium")
    if program is None:
        missing = "no chromium on this machine: apt-get install chromium"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
