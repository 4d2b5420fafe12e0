"""The page in a real browser: every control does what it says, and nothing leaves the page."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.report.page import filled, html, table
from attnbench.report.page.gather import gather
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
WIDTHS = (360, 768, 1440)
OWN = ("file:", "blob:", "data:", "about:")


class Reader:
    """Somebody who reads the page, and keeps what goes wrong meanwhile."""

    def __init__(self, browser, path, **how):
        self.context = browser.new_context(
            viewport={"width": how.pop("width", 1440), "height": 900}, accept_downloads=True, **how
        )
        self.amiss = []
        self.context.route("**/*", self._let)
        self.page = self.context.new_page()
        self.page.set_default_timeout(5000)
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

    def seen(self, what):
        """The texts of what of this kind is shown."""
        return self.page.locator(what).locator("visible=true").all_inner_texts()

    def rows(self):
        """The variants of the rows that are shown, in their order."""
        return self.page.eval_on_selector_all(
            "#cells tbody tr", "rows => rows.filter(r => !r.hidden).map(r => r.dataset.v)"
        )

    @property
    def hash(self):
        return self.page.evaluate("location.hash")


@pytest.fixture
def reader(browser, page):
    made = []

    def read(path=page, **how):
        made.append(Reader(browser, path, **how))
        return made[-1]

    yield read
    amiss = [line for each in made for line in each.amiss]
    for each in made:
        each.context.close()
    assert not amiss, amiss


@pytest.fixture
def number(small_contents):
    """By a variant's name, how rows and figures call it."""
    return {name: str(look.number) for name, look in small_contents.looks.items()}


def test_the_first_screen_answers(reader):
    page = reader().page
    for text in ("To train at 256 tokens, use sdpa", "3.20×"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 500, text
    card = page.locator(".card").first
    assert card.locator("h2").inner_text().startswith("Train")
    first = card.locator("li").first
    assert first.locator(".use .name").all_inner_texts() == ["sdpa"]
    assert "faster than matmul" in first.inner_text() and "clear" in first.inner_text()
    assert "window?size=8" in first.inner_text() and "70\u00a0%" in first.inner_text()


def test_a_phase_chosen_leaves_only_that_phase_and_is_in_the_address(reader):
    r = reader()
    assert len(r.seen(".card .regime")) == 2
    r.page.select_option("[name=phase]", "forward")
    assert [t[:7] for t in r.seen(".card .regime")] == ["Forward"]
    assert set(r.seen("#cells tbody td:last-child")) == {"forward"}
    assert r.hash == "#phase=forward"
    assert "15 cells" in r.seen("#count")[0]
    r.page.select_option("[name=phase]", "")
    assert (r.hash, len(r.seen(".card .regime"))) == ("", 2)


def test_a_length_chosen_leaves_its_rows_and_the_stretches_that_hold_it(reader):
    r = reader()
    r.page.select_option("[name=n]", "64")
    assert set(r.seen("#cells tbody td:nth-child(2)")) == {"64"}
    assert all("64" in text for text in r.seen(".card .span"))
    assert r.hash == "#n=64"


def test_searching_leaves_variants_and_families_of_that_name(reader, number):
    r = reader()
    r.page.fill("[name=q]", "MATM")
    assert set(r.rows()) == {number["matmul"]}
    assert f"1 of {len(number)} variants" in r.seen("#count")[0]
    hidden = r.page.eval_on_selector(
        f"#scaling .v{number['sdpa']}", "e => getComputedStyle(e).display"
    )
    assert hidden == "none"
    r.page.fill("[name=q]", "sparse")
    assert set(r.rows()) == {number["window?size=8"]}
    r.page.click("#clear")
    assert len(set(r.rows())) == len(number) and r.hash == ""
    assert r.page.input_value("[name=q]") == ""


def test_a_family_can_be_left_out_and_taken_in_again(reader, number):
    r = reader()
    r.page.click("#legend summary")
    r.page.uncheck("[name=family][value=dense]")
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    assert r.hash == "#family=sparse,linear"
    r.page.check("[name=family][value=dense]")
    assert len(set(r.rows())) == len(number) and r.hash == ""


def test_what_a_variant_computes_can_be_chosen(reader, number):
    r = reader()
    r.page.select_option("[name=computes]", "its own operator")
    assert set(r.rows()) == {number[runs.MARKUP]}


def test_a_filter_changes_no_answer(reader):
    r = reader()
    before = r.seen(".card li")
    r.page.fill("[name=q]", "matmul")
    assert r.seen(".card li") == before


def test_the_first_screen_says_how_sure_it_is_and_what_to_take_alone(reader):
    page = reader().page
    sure, only = page.locator("#answer .how-sure").all_inner_texts()
    assert sure.startswith("How sure: of 6 answers 6 are clear; 9 samples a time at the median; ")
    assert page.locator(".how-sure a").get_attribute("href") == "#trust"
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on 6 of 6")
    assert page.inner_text("#closeness .lead").startswith("sdpa, within 1.25× of the best on 6 of")
    assert re.search(r"Clear: at least 5\s% faster", page.inner_text(".how"))


@pytest.mark.parametrize("changes", [{"q": "zzz"}, {"family": "none"}])
def test_where_nothing_is_left_that_is_said_and_can_be_undone(reader, number, changes):
    r = reader()
    assert not r.page.is_visible("#nothing")
    ((key, value),) = changes.items()
    r.go(f"#{key}={value}")
    assert r.seen("#nothing") == [
        {
            "q": "No variant matches “zzz”. Show all",
            "family": "No variant matches family none. Show all",
        }[key]
    ]
    assert r.seen("figure") == [] and not r.page.is_visible("#table")
    assert r.seen(".card .regime") != []  # no filter of variants changes an answer
    r.page.click("#nothing [data-clear]")
    assert r.hash == "" and len(set(r.rows())) == len(number)
    assert r.seen("figure") != [] and not r.page.is_visible("#nothing")


def test_a_click_on_a_name_lights_it_everywhere_and_escape_ends_it(reader, number):
    r = reader()
    r.page.locator(".card .use .name", has_text="sdpa").first.click()
    assert r.hash == "#v=sdpa" and r.seen("#lit") == ["sdpa ✕"]
    dimmed = "e => Number(getComputedStyle(e).opacity)"
    r.page.wait_for_timeout(200)  # it fades
    assert r.page.eval_on_selector(f"#scaling .v{number['matmul']}", dimmed) < 0.2
    assert r.page.eval_on_selector(f"#scaling .v{number['sdpa']}", dimmed) == 1
    pressed = r.page.locator("[aria-pressed=true]").evaluate_all("all => all.map(b => b.dataset.v)")
    assert set(pressed) == {number["sdpa"]}
    r.page.keyboard.press("Escape")
    assert r.hash == "" and r.seen("#lit") == []


def test_a_line_and_a_row_light_their_variant_too(reader, number):
    r = reader()
    r.page.eval_on_selector(
        f"#scaling .v{number['matmul']}",
        "e => e.dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    )
    assert r.seen("#lit") == ["matmul ✕"]
    r.page.locator("#cells tbody tr .name", has_text="window").first.click()
    assert r.seen("#lit") == ["window?size=8 ✕"]
    r.page.click("#lit")
    assert r.seen("#lit") == []


@pytest.mark.parametrize(("unit", "head"), [
    ("ms", "time, ms"), ("tflops", "TFLOP/s"), ("share", "% of ceiling"), ("baseline", "× sdpa"),
])  # fmt: skip
def test_the_unit_changes_figures_table_and_cards(reader, unit, head):
    r = reader()
    r.page.select_option("[name=unit]", unit)
    shown = r.page.locator("figure[data-unit]").locator("visible=true")
    assert set(shown.evaluate_all("all => all.map(f => f.dataset.unit)")) == {unit}
    for figure in shown.all():
        figure.locator("svg").first.wait_for(state="visible")
    assert head in r.seen("#cells thead")[0]
    assert r.hash == ("" if unit == "ms" else f"#unit={unit}")
    assert len(r.seen(".taken .u")) == len(r.seen(".taken"))


def test_an_address_brings_everything_back(reader, number):
    r = reader()
    r.go("#v=window%3Fsize%3D8&phase=train&unit=tflops&family=sparse,linear&n=128")
    assert r.page.input_value("[name=phase]") == "train"
    assert r.page.input_value("[name=unit]") == "tflops"
    assert not r.page.is_checked("[name=family][value=dense]")
    assert r.seen("#lit") == ["window?size=8 ✕"]
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    r.page.select_option("[name=n]", "")
    for part in ("v=window%3Fsize%3D8", "phase=train", "unit=tflops", "family=sparse,linear"):
        assert part in r.hash
    assert "n=" not in r.hash.replace("unit=", "")


def test_an_address_that_says_nonsense_shows_everything(reader, number):
    r = reader()
    r.go("#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1")
    assert len(r.seen(".card .regime")) == 2 and len(set(r.rows())) == len(number)
    assert r.page.input_value("[name=unit]") == "ms" and r.seen("#lit") == []


def test_a_place_on_the_page_keeps_what_was_chosen(reader):
    r = reader()
    r.page.select_option("[name=phase]", "train")
    r.page.click("nav a[href='#table']")
    assert r.page.input_value("[name=phase]") == "train"
    assert [t[:5] for t in r.seen(".card .regime")] == ["Train"]


def test_columns_sort_both_ways_and_what_has_no_number_comes_last(reader):
    r = reader()
    time = r.page.locator("#cells thead th", has_text="time, ms")
    numbers = "rows => rows.map(r => parseFloat(r.querySelector('td a i')?.textContent))"

    def column():
        return [n for n in r.page.eval_on_selector_all("#cells tbody tr", numbers) if n == n]

    time.locator("button").click()
    assert time.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    assert r.page.locator("#cells tbody tr").last.locator(".why").count() == 1
    time.locator("button").click()
    assert time.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    assert r.page.locator("#cells tbody tr").last.locator(".why").count() == 1
    name = r.page.locator("#cells thead th", has_text="variant")
    name.locator("button").press("Enter")
    assert name.get_attribute("aria-sort") == "ascending"
    assert r.page.locator("#cells th[aria-sort]").count() == 1
    found = r.seen("#cells tbody th")
    assert found == sorted(found, key=str.lower)


def test_a_number_leads_to_its_record_and_the_command_that_repeats_it(reader):
    r = reader(permissions=["clipboard-read", "clipboard-write"])
    r.page.locator("#cells tbody tr", has_text="matmul").first.locator("a").click()
    r.page.wait_for_selector("dialog[open]")
    assert '"variant": "matmul"' in r.page.inner_text("#json")
    assert re.match(
        r"38\.4 ms \[.*\] · 9 samples, stopped by its budget", r.page.inner_text("#said")
    )
    assert "samples_s" not in r.page.inner_text("#json")
    command = r.page.inner_text("#repeat")
    r.page.set_viewport_size({"width": 360, "height": 800})
    heights = "e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"
    assert r.page.eval_on_selector("#repeat", heights) < 2  # one line, which scrolls
    assert command.startswith("attnbench run matmul --seq 256")
    assert r.page.get_attribute("#file", "href") == "../records.jsonl"
    assert re.fullmatch(r"#cell=\d+", r.hash)
    r.page.click("dialog [data-copy]")
    r.page.wait_for_function("document.querySelector('#told').textContent === 'copied'")
    assert r.page.evaluate("navigator.clipboard.readText()") == command
    address = r.hash
    r.page.keyboard.press("Escape")
    assert r.page.locator("dialog[open]").count() == 0 and r.hash == ""
    r.go(address)
    r.page.wait_for_selector("dialog[open]")
    r.page.click("dialog [data-close]")
    assert r.page.locator("dialog[open]").count() == 0


def open_by(r, number):
    number.scroll_into_view_if_needed()
    r.page.wait_for_timeout(300)  # figures that come near are drawn, and move what is below them
    number.click()
    r.page.wait_for_selector("dialog[open]")


def test_any_number_of_a_row_and_a_cards_time_lead_there_too(reader):
    r = reader()
    open_by(r, r.page.locator("#cells tbody tr", has_text="matmul").first.locator("td").last)
    assert "matmul at 256 tokens" in r.page.inner_text("#record-title")
    r.page.click("dialog [data-close]")
    open_by(r, r.page.locator(".card .taken").first)
    assert "sdpa at 256 tokens" in r.page.inner_text("#record-title")


def test_a_figure_is_saved_as_svg_png_and_csv(reader, small_contents, tmp_path):
    r = reader(color_scheme="dark")
    figure = next(f for f in small_contents.figures if f.section == "scaling")
    got = {}
    for kind in ("svg", "png", "csv"):
        with r.page.expect_download() as waiting:
            r.page.click(f"#{figure.name} [data-save={kind}]")
        assert waiting.value.suggested_filename == f"{figure.name}.{kind}"
        waiting.value.save_as(tmp_path / kind)
        got[kind] = (tmp_path / kind).read_bytes()
    assert got["csv"].decode() == figure.csv
    assert got["svg"].startswith(b"<svg") and b"var(--" not in got["svg"]
    assert b"#ffffff" in got["svg"]  # light, whatever the theme
    assert got["png"].startswith(b"\x89PNG") and len(got["png"]) > 5000


def test_the_theme_follows_the_system_until_somebody_chooses_and_is_remembered(reader):
    ground = "getComputedStyle(document.body).backgroundColor"
    r = reader(color_scheme="dark")
    dark = r.page.evaluate(ground)
    r.page.click("#theme")
    light = r.page.evaluate(ground)
    assert light != dark
    r.go()
    assert r.page.evaluate(ground) == light
    assert reader(color_scheme="light").page.evaluate(ground) == light


def test_print_is_light_and_shows_everything(reader):
    r = reader(color_scheme="dark")
    r.page.emulate_media(media="print")
    assert r.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == (
        "rgb(255, 255, 255)")  # fmt: skip
    assert not r.page.is_visible("#controls") and not r.page.is_visible(".save")
    shown = r.page.eval_on_selector_all(
        ".scroll", "all => all.every(s => s.scrollHeight <= s.clientHeight + 1)"
    )
    assert shown
    rows = r.page.locator("#cells tbody tr")
    assert rows.locator(".why").count() > 0
    assert rows.locator(".why").locator("visible=true").count() == 0
    assert rows.locator("visible=true").count() == rows.count() - rows.locator(".why").count()
    breaks = "all => all.map(f => getComputedStyle(f).breakInside)"
    assert set(r.page.eval_on_selector_all("figure", breaks)) == {"avoid"}


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(reader, width):
    r = reader(width=width)
    wide = "document.documentElement.scrollWidth"
    assert r.page.evaluate(wide) == width
    if width == 360:
        r.page.click("#more")
    r.page.click("#legend summary")
    assert r.page.evaluate(wide) == width
    r.page.locator("#cells tbody a").first.click()
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate(wide) == width


def test_on_a_phone_the_filters_open_and_close(reader):
    r = reader(width=360)
    assert not r.page.is_visible("[name=phase]")
    r.page.click("#more")
    assert r.page.is_visible("[name=phase]")
    assert r.page.get_attribute("#more", "aria-expanded") == "true"
    r.page.click("#more")
    assert not r.page.is_visible("[name=phase]")
    r.page.click("#more")
    r.page.keyboard.press("Escape")
    assert not r.page.is_visible("[name=phase]")
    assert r.page.evaluate("document.activeElement.id") == "more"


LEVELS = "all => all.filter(h => !h.closest('dialog')).map(h => Number(h.tagName[1]))"


def test_no_level_of_headings_is_left_out(reader, plain_page):
    several = plain_page([runs.timed("sdpa", 2e-3)], [runs.timed("matmul", 1e-3)])
    for r in (reader(), reader(several)):
        levels = r.page.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize(("width", "columns"), [(360, 1), (768, 1), (1440, 2)])
def test_figures_are_as_wide_as_can_be_read(reader, width, columns):
    r = reader(width=width)
    boxes = r.page.eval_on_selector_all(
        "#scaling .group:first-of-type figure",
        "all => all.map(f => f.getBoundingClientRect()).map(b => [b.x, b.width]).filter(b => b[1])",
    )
    assert len({x for x, _ in boxes}) == columns
    assert all(wide <= 660 for _, wide in boxes)


def test_what_was_not_made_is_one_quiet_line(reader):
    r = reader()
    for section in ("shares", "attention"):
        box = r.page.locator(f"#{section}").bounding_box()
        assert box["height"] < 30
    assert "unless --no-report." in r.page.inner_text("#attention")


def test_spans_are_explained_only_where_there_are_any(reader, plain_page, small_contents):
    assert html.CROSSED in reader().page.inner_text("#scaling .lead")
    section = next(section for section in html.SECTIONS if section[0] == "scaling")
    uncrossed = [replace(s, regime=replace(s.regime, cells={})) for s in small_contents.scenes]
    lead, _ = html._lead_and_groups(replace(small_contents, scenes=uncrossed), section)
    assert lead == section[3]


@pytest.mark.parametrize(("width", "theme"), [
    (360, "dark"), (1440, "light"), *(pytest.param(*more, marks=pytest.mark.slow)
                                      for more in ((360, "light"), (768, "dark"), (1440, "dark"))),
])  # fmt: skip
def test_axe_finds_nothing_serious(reader, width, theme):
    import axe_playwright_python

    r = reader(color_scheme=theme, width=width)
    folder = Path(axe_playwright_python.__file__).parent
    r.page.evaluate((folder / "axe.min.js").read_text("utf-8"))
    if width == 360:
        r.page.click("#more")
    else:
        r.page.locator(".card .use .name").first.click()
    r.page.wait_for_timeout(200)
    found = r.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    told = [(v["id"], v["impact"], [n["html"][:200] for n in v["nodes"][:3]])
            for v in found if v["impact"] in ("serious", "critical")]  # fmt: skip
    assert not told, told


def test_everything_can_be_reached_by_keyboard(reader):
    r = reader()
    r.page.keyboard.press("Tab")
    targets = []
    while r.page.evaluate("document.activeElement.className") == "skip":
        targets.append(r.page.evaluate("document.activeElement.hash"))
        r.page.keyboard.press("Tab")
    assert targets == ["#answer", "#controls", "#table"]
    r.page.locator(".card .use .name").first.focus()
    r.page.keyboard.press("Enter")
    assert r.seen("#lit") != []
    r.page.locator("#cells tbody a").first.focus()
    r.page.keyboard.press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate("document.activeElement.closest('dialog') !== null")


@pytest.fixture
def plain_page(monkeypatch, tmp_path):
    """The page of some runs, without figures."""

    def made(*records):
        folders = [runs.written(tmp_path / "box" / f"run{n}", r) for n, r in enumerate(records)]
        monkeypatch.setattr(filled, "draw_all", lambda *_: ([], {}))
        path = tmp_path / "index.html"
        path.write_text(html.render(filled.contents_of(gather(folders), tmp_path)), "utf-8")
        return path

    return made


@pytest.mark.parametrize("width", [360, 1440])
def test_one_length_of_one_variant_is_a_page_too(reader, plain_page, width):
    r = reader(plain_page([runs.timed("x" * 80, 1e-3, family="nobody's")]), width=width)
    assert len(r.rows()) == 1 and len(r.seen(".card li")) == 1
    assert "the only one" in r.seen(".card li")[0]
    assert r.page.evaluate("document.documentElement.scrollWidth") == width


def test_where_nothing_was_measured_the_page_says_so_and_why(reader, plain_page):
    r = reader(plain_page([runs.untimed("sdpa", "failed", "it broke")]))
    assert "Nothing was measured" in r.page.inner_text("#answer")
    assert "it broke" in r.page.inner_text("#missing")
    assert len(r.rows()) == 1


def test_several_runs_are_ranked_apart_and_one_can_be_chosen(reader, plain_page):
    r = reader(plain_page([runs.timed("sdpa", 2e-3)], [runs.timed("matmul", 1e-3)]))
    assert r.seen(".of-run") == ["run0 on slow-box-2c", "run1 on slow-box-2c"]
    assert all("the only one" in text for text in r.seen(".card li"))
    r.page.select_option("[name=run]", "run1 on slow-box-2c")
    assert len(r.seen(".card li")) == 1 and "matmul" in r.seen(".card li")[0]
    assert len(r.rows()) == 1


def test_of_very_many_cells_the_page_holds_the_first_and_says_where_the_rest_is(
    reader, plain_page, monkeypatch
):
    monkeypatch.setattr(table, "MOST", 7)
    r = reader(plain_page(runs.many(5, (64, 128))))
    assert len(r.rows()) == 7
    assert "the first 7 of 10 cells" in r.page.inner_text("#table")


def test_markup_in_names_and_reasons_stays_text(reader):
    r = reader()
    assert r.page.locator("img").count() == 0
    assert runs.MARKUP in r.page.text_content("#cells")
    assert runs.MARKUP in r.page.text_content("#missing")
    r.page.locator("#cells tbody tr", has_text=runs.MARKUP).first.locator(".name").click()
    assert r.seen("#lit") == [f"{runs.MARKUP} ✕"]
    r.page.locator("#cells tbody tr", has_text=runs.MARKUP).first.locator("a").click()
    r.page.wait_for_selector("dialog[open]")
    assert json.loads(r.page.text_content("#json"))["variant"] == runs.MARKUP
    assert r.page.locator("img").count() == 0


def test_the_page_is_usable_at_once(reader):
    r = reader()
    ready = r.page.evaluate(
        "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    )
    assert ready < 3000  # ms: 1,000 is what it is to be on a machine that does nothing else


def test_names_in_a_headline_are_bold_and_the_rest_is_text():
    made = html.emphasised("use sdpa.flash, not sdpa: [1.2, 3.4] <b>", {"sdpa", "sdpa.flash"})
    assert made == ("use <b>sdpa.flash</b>, not <b>sdpa</b>: [1.2,\u00a03.4] &lt;b&gt;")
    assert html.emphasised("sdpa-like and xsdpa", {"sdpa"}) == "sdpa-like and xsdpa"
