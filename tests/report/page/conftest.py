"""A page of a small run, its markup included, and a browser to read it with."""

import os
import shutil
from functools import partial

import pytest

from attnbench.features.report import page
from tests.report.page import runs

OWN = ("file:", "blob:", "data:", "about:")


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The whole report of a small run by hand."""
    folder = tmp_path_factory.mktemp("report") / "box" / "20260102-030405"
    return page.make([runs.written(folder, runs.small())], folder / "report")


@pytest.fixture
def gathered(tmp_path):
    """Calls with records, a run each, and returns the runs as they are read."""
    return partial(runs.gathered, tmp_path)


@pytest.fixture
def filled(tmp_path):
    """Calls with records, a run each, and returns the contents of their report."""
    return partial(runs.filled, tmp_path)


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


@pytest.fixture
def visit(browser):
    """Opens a page in a tab; an error, or a request to a network, fails the test."""
    allowed = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(accept_downloads=True, permissions=allowed)
    amiss = []

    def guard(route):
        if route.request.url.startswith(OWN):
            route.continue_()
        else:
            amiss.append(f"asked for {route.request.url}")
            route.abort()

    def open_tab(path, hash_="", width=1440, height=900, **media):
        tab = context.new_page()
        tab.on("console", lambda m: amiss.append(m.text) if m.type != "log" else None)
        tab.on("pageerror", lambda error: amiss.append(str(error)))
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(**media)
        tab.goto(path.as_uri() + hash_)
        return tab

    context.route("**/*", guard)
    yield open_tab
    context.close()
    assert not amiss


@pytest.fixture
def small(visit, report):
    """Opens the small run's page."""
    return partial(visit, report.index)
