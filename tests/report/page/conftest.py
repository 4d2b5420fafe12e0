"""A page of a small run, its markup included, and a browser to read it with."""

import os
import shutil
from functools import partial

import pytest

from attnbench.features.report import files
from tests.report.page import runs

OWN = ("file:", "blob:", "data:", "about:")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The whole report of a small run by hand."""
    folder = tmp_path_factory.mktemp("report") / "box" / "20260102-030405"
    return files.make([runs.written(folder, runs.small())], folder / "report")


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


class Reader:
    """Somebody who reads the page, and keeps what goes wrong meanwhile."""

    def __init__(self, browser, path):
        allowed = ["clipboard-read", "clipboard-write"]
        self.context = browser.new_context(accept_downloads=True, permissions=allowed)
        self.amiss = []
        self.context.route("**/*", self._let)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.amiss.append(m.text) if m.type != "log" else None)
        self.page.on("pageerror", lambda error: self.amiss.append(str(error)))
        self.path = path
        self.go()

    def _let(self, route):
        if route.request.url.startswith(OWN):
            route.continue_()
        else:
            self.amiss.append(f"asked for {route.request.url}")
            route.abort()

    def go(self, hash_=""):
        """To the page afresh."""
        self.page.goto("about:blank")
        self.page.goto(self.path.as_uri() + hash_)

    def close(self):
        """Close the panel that is open, until its part of the address is gone too."""
        self.page.evaluate("""async () => { for (const panel of all("dialog[open]")) {
            const gone = new Promise((done) => panel.addEventListener("close", done));
            panel.close();
            await gone; } }""")

    def as_at_first(self, width, height, hash_=""):
        """The page as it was opened: nothing is chosen beside the hash, nothing lit, all closed."""
        self.page.emulate_media(color_scheme="light", media="screen")
        self.page.set_viewport_size({"width": width, "height": height})
        self.close()
        self.page.evaluate(
            "more(false); $('#variants').open = false; $('#find').value = ''; find()"
        )
        self.page.evaluate("location.hash = '#unit=ms'; localStorage.clear(); scrollTo(0, 0)")
        self.page.evaluate(f"location.hash = '{hash_}'")
        if not hash_:
            self.page.evaluate("history.replaceState(null, '', location.href.split('#')[0])")

    def seen(self, what):
        """The texts of what of this kind is shown; rows are laid out when they are near."""
        if what.startswith("#cells"):
            self.page.locator("#cells").scroll_into_view_if_needed()
            self.settle()
        return self.page.locator(what).locator("visible=true").all_inner_texts()

    def settle(self):
        """Wait until what was done has been drawn."""
        frame = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.page.evaluate(f"new Promise(done => {frame})")

    def rows(self):
        """The variants of the rows that are shown, in their order."""
        return self.page.eval_on_selector_all(
            "#cells tbody tr", "rows => rows.filter(r => !r.hidden).map(r => r.dataset.v)"
        )

    @property
    def hash(self):
        return self.page.evaluate("location.hash")


@pytest.fixture(scope="module")
def page_file(report):
    """The small run's page."""
    return report.index


@pytest.fixture(scope="module")
def opened(browser, page_file):
    """A page that many tests read."""
    reader = Reader(browser, page_file)
    yield reader
    reader.context.close()


@pytest.fixture
def reader(opened):
    """Another page in the same window, as wide as at first."""
    home = opened.path

    def read(path):
        opened.page.set_viewport_size({"width": 1280, "height": 720})
        opened.path = path
        opened.go()
        return opened

    yield read
    opened.path, opened.amiss, amiss = home, [], opened.amiss
    opened.go()
    assert not amiss
