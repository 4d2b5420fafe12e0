"""The report of a small run, and its page in a real browser: opened once, asked many questions."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.features.report import page as html
from tests.report.page import runs

expect = pytest.importorskip("playwright.sync_api").expect  # it waits for what a click does
GOLDEN = Path(__file__).with_name("golden")
WIDE = "document.documentElement.scrollWidth"
LEVELS = "all => all.filter(h => !h.closest('dialog')).map(h => Number(h.tagName[1]))"


@pytest.fixture
def r(opened):
    """The small run's page as it was opened: nothing is chosen, nothing lit, the window is wide."""
    opened.page.emulate_media(color_scheme="light", media="screen")
    opened.page.set_viewport_size({"width": 1440, "height": 900})
    opened.page.evaluate("location.hash = '#unit=ms'; localStorage.clear(); scrollTo(0, 0)")
    opened.page.evaluate("history.replaceState(null, '', location.href.split('#')[0])")
    yield opened
    amiss, opened.amiss = opened.amiss, []
    assert not amiss


@pytest.fixture(scope="module")
def number(small_contents):
    """By a variant's name, how rows and figures call it."""
    return {name: str(look.number) for name, look in small_contents.looks.items()}


def test_a_report_is_its_page_its_texts_and_its_figures(report):
    """With GOLDENS=write it writes the texts anew: look at what has changed before it stays."""
    out, figures = report.index.parent, report.contents.figures
    names = {str(path.relative_to(out)) for path in report.files}
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert names == found.keys() - {"figures/figures.json"}
    drawn = {figure.name for figure in figures}
    assert {Path(name).stem for name in names if name.startswith("figures/")} == drawn
    sections = {"map", "scaling", "tradeoffs", "roofline", "closeness", "memory"}
    assert {figure.section for figure in figures} == sections
    assert "could not be drawn" not in str(report.contents.absent)
    for name, content in found.items():  # none says where files lie on this machine
        assert str(report.index.parents[3]).encode() not in content, name
    for name in ("summary.md", "data.csv", "table.tex"):
        if os.environ.get("GOLDENS") == "write":
            (GOLDEN / name).write_bytes(found[name])
        assert found[name] == (GOLDEN / name).read_bytes()


def test_the_first_screen_answers_and_says_how_sure_it_is(r):
    for text in ("To train at 256 tokens, use sdpa", "3.20×"):
        box = r.page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 500, text
    first = r.page.locator(".card li").first
    assert first.locator(".use .name").all_inner_texts() == ["sdpa"]
    for said in ("faster than matmul", "clear", "window?size=8", "70\u00a0%"):
        assert said in first.inner_text()
    sure, only = r.page.locator("#answer .how-sure").all_inner_texts()
    assert sure.startswith("How sure: of 6 answers 6 are clear; 9 samples a time at the median; ")
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on 6 of 6")


def test_what_is_chosen_leaves_that_alone_and_is_in_the_address(r, number):
    every, before = len(number), r.seen(".card li")
    r.page.select_option("[name=phase]", "forward")
    assert [t[:7] for t in r.seen(".card .regime")] == ["Forward"]
    assert set(r.seen("#cells tbody td:last-child")) == {"forward"}
    assert r.hash == "#phase=forward" and "15 cells" in r.seen("#count")[0]
    r.page.click("nav a[href='#table']")  # a place on the page keeps what was chosen
    assert r.page.input_value("[name=phase]") == "forward"
    r.page.select_option("[name=phase]", "")
    r.page.select_option("[name=n]", "64")
    assert set(r.seen("#cells tbody td:nth-child(2)")) == {"64"} and r.hash == "#n=64"
    assert all("64" in text for text in r.seen(".card .span"))
    r.page.select_option("[name=n]", "")
    r.page.fill("[name=q]", "MATM")
    assert set(r.rows()) == {number["matmul"]} and r.seen(".card li") == before
    assert f"1 of {every} variants" in r.seen("#count")[0]
    shown = "e => getComputedStyle(e).display"
    assert r.page.eval_on_selector(f"#scaling .v{number['sdpa']}", shown) == "none"
    r.page.click("#clear")
    assert len(set(r.rows())) == every and r.hash == "" and not r.page.input_value("[name=q]")
    r.page.click("#legend summary")
    r.page.uncheck("[name=family][value=dense]")
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    assert r.hash == "#family=sparse,linear"
    r.page.check("[name=family][value=dense]")
    assert r.hash == ""
    r.page.select_option("[name=computes]", runs.OWN)
    assert set(r.rows()) == {number[runs.MARKUP]}


def test_an_address_brings_everything_back_and_nonsense_shows_everything(r, number):
    address = "#v=window%3Fsize%3D8&phase=train&unit=tflops&family=sparse,linear&n=128"
    r.go(address)
    assert r.page.input_value("[name=phase]") == "train"
    assert r.page.input_value("[name=unit]") == "tflops"
    assert not r.page.is_checked("[name=family][value=dense]")
    assert r.seen("#lit") == ["window?size=8 ✕"]
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    r.page.select_option("[name=n]", "")
    assert set(r.hash[1:].split("&")) == set(address[1:].split("&")) - {"n=128"}
    r.go("#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1")
    assert len(r.seen(".card .regime")) == 2 and len(set(r.rows())) == len(number)
    assert r.page.input_value("[name=unit]") == "ms" and r.seen("#lit") == []
    r.page.evaluate("location.hash = 'q=zzz'")
    assert r.seen("#nothing") == ["No variant matches “zzz”. Show all"]
    assert r.seen("figure") == [] and not r.page.is_visible("#table")
    assert r.seen(".card .regime") != []  # no filter of variants changes an answer
    r.page.click("#nothing [data-clear]")
    assert r.hash == "" and r.seen("figure") != []


def test_a_variant_is_lit_everywhere_by_its_name_its_line_and_its_row(r, number):
    r.page.locator(".card .use .name", has_text="sdpa").first.click()
    assert r.hash == "#v=sdpa" and r.seen("#lit") == ["sdpa ✕"]
    expect(r.page.locator(f"#scaling .v{number['matmul']}").first).to_have_css("opacity", "0.12")
    expect(r.page.locator(f"#scaling .v{number['sdpa']}").first).to_have_css("opacity", "1")
    r.page.keyboard.press("Escape")
    assert r.hash == "" and r.seen("#lit") == []
    click = "e => e.dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    r.page.eval_on_selector(f"#scaling .v{number['matmul']}", click)
    assert r.seen("#lit") == ["matmul ✕"]
    r.page.click("#lit")
    assert r.seen("#lit") == []


def test_the_unit_changes_figures_table_and_cards(r):
    heads = {"ms": "time, ms", "tflops": "TFLOP/s", "share": "% of ceiling", "baseline": "× sdpa"}
    for unit, head in heads.items():
        r.page.select_option("[name=unit]", unit)
        shown = r.page.locator("figure[data-unit]").locator("visible=true")
        assert set(shown.evaluate_all("all => all.map(f => f.dataset.unit)")) == {unit}
        expect(shown.last.locator("svg").first).to_be_attached()
        assert head in r.seen("#cells thead")[0]
        assert r.hash == ("" if unit == "ms" else f"#unit={unit}")
        assert len(r.seen(".taken .u")) == len(r.seen(".taken"))


def test_columns_sort_both_ways_and_what_has_no_number_comes_last(r):
    time = r.page.locator("#cells thead th", has_text="time, ms")
    numbers = "rows => rows.map(r => parseFloat(r.querySelector('td a i')?.textContent))"
    for direction in ("ascending", "descending"):
        time.locator("button").click()
        expect(time).to_have_attribute("aria-sort", direction)
        column = r.page.eval_on_selector_all("#cells tbody tr", numbers)
        column = [n for n in column if n == n]
        assert column == sorted(column, reverse=direction == "descending")
        assert r.page.locator("#cells tbody tr").last.locator(".why").count() == 1
    name = r.page.locator("#cells thead th", has_text="variant")
    name.locator("button").press("Enter")
    expect(name).to_have_attribute("aria-sort", "ascending")
    assert r.page.locator("#cells th[aria-sort]").count() == 1
    assert (found := r.seen("#cells tbody th")) == sorted(found, key=str.lower)


def test_a_number_leads_to_its_record_and_the_command_that_repeats_it(r):
    r.go()  # unsorted
    row = r.page.locator("#cells tbody tr", has_text="matmul").first
    row.locator("a").press("Enter")
    r.page.wait_for_selector("dialog[open]")
    said = r.page.inner_text("#said")
    assert re.match(r"38\.4 ms \[.*\] · 9 samples, stopped by its budget", said)
    raw = r.page.inner_text("#json")
    assert '"variant": "matmul"' in raw and "samples_s" not in raw
    command = r.page.inner_text("#repeat")
    assert command.startswith("attnbench run matmul --seq 256")
    assert r.page.get_attribute("#file", "href") == "../records.jsonl"
    address = r.hash
    assert re.fullmatch(r"#cell=\d+", address)
    r.page.click("dialog [data-copy]")
    expect(r.page.locator("#told")).to_have_text("copied")
    assert r.page.evaluate("navigator.clipboard.readText()") == command
    r.page.keyboard.press("Escape")
    assert r.page.locator("dialog[open]").count() == 0 and r.hash == ""
    r.page.evaluate(f"location.hash = '{address}'")
    r.page.wait_for_selector("dialog[open]")
    r.page.click("dialog [data-close]")
    r.page.locator(".card .taken").first.click()
    expect(r.page.locator("#record-title")).to_contain_text("sdpa at 256 tokens")
    r.page.click("dialog [data-close]")


def test_a_figure_is_saved_as_svg_png_and_csv_looked_at_or_not(r, small_contents, tmp_path):
    r.page.emulate_media(color_scheme="dark")
    figure = next(f for f in small_contents.figures if f.section == "scaling")
    unseen = [f.name for f in small_contents.figures if f.unit == "tflops"][-1]
    got = {}
    r.go()  # no other unit was looked at
    for name, kind in ((figure.name, "svg"), (figure.name, "png"), (figure.name, "csv"),
                       (unseen, "svg")):  # fmt: skip
        with r.page.expect_download() as waiting:
            r.page.eval_on_selector(f"#{name} [data-save={kind}]", "button => button.click()")
        assert waiting.value.suggested_filename == f"{name}.{kind}"
        waiting.value.save_as(tmp_path / kind)
        got[name, kind] = (tmp_path / kind).read_bytes()
    svg, png, csv, other = got.values()
    assert csv.decode() == figure.csv and other.startswith(b"<svg")
    assert svg.startswith(b"<svg") and b"var(--" not in svg
    assert b"#ffffff" in svg  # light, whatever the theme
    assert png.startswith(b"\x89PNG") and len(png) > 5000


def test_the_theme_follows_the_system_until_somebody_chooses_and_print_is_light(r):
    ground = "getComputedStyle(document.body).backgroundColor"
    r.page.emulate_media(color_scheme="dark")
    dark = r.page.evaluate(ground)
    r.page.click("#theme")
    light = r.page.evaluate(ground)
    r.go()
    assert r.page.evaluate(ground) == light != dark
    r.page.click("#theme")
    r.page.emulate_media(media="print")
    card = "getComputedStyle(document.querySelector('.card')).backgroundColor"
    assert r.page.evaluate(card) == "rgb(255, 255, 255)"
    assert not r.page.is_visible("#controls") and not r.page.is_visible(".save")
    whole = "all => all.every(s => s.scrollHeight <= s.clientHeight + 1)"
    assert r.page.eval_on_selector_all(".scroll", whole)
    rows = r.page.locator("#cells tbody tr")
    untimed = rows.locator(".why").count()
    assert rows.locator("visible=true").count() == rows.count() - untimed < rows.count()
    r.page.evaluate("delete document.documentElement.dataset.theme")


@pytest.mark.parametrize(("width", "columns"), [(360, 1), (1440, 2)])
def test_nothing_is_wider_than_the_window_and_figures_can_be_read(r, width, columns):
    r.page.set_viewport_size({"width": width, "height": 900})
    assert r.page.evaluate(WIDE) == width
    boxes = r.page.eval_on_selector_all(
        "#scaling .group:first-of-type figure",
        "all => all.map(f => f.getBoundingClientRect()).map(b => [b.x, b.width]).filter(b => b[1])",
    )
    assert len({x for x, _ in boxes}) == columns and all(wide <= 660 for _, wide in boxes)
    if width == 360:  # on a phone the filters open and close
        assert not r.page.is_visible("[name=phase]")
        r.page.click("#more")
        assert r.page.get_attribute("#more", "aria-expanded") == "true"
        r.page.keyboard.press("Escape")
        assert not r.page.is_visible("[name=phase]")
        r.page.click("#more")
    r.page.click("#legend summary")
    # by its key: figures that come near are drawn, and move what is below them
    r.page.locator("#cells tbody a").first.press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate(WIDE) == width


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1440, "light")])
def test_axe_finds_nothing_serious(r, width, theme):
    import axe_playwright_python

    r.page.emulate_media(color_scheme=theme)
    r.page.set_viewport_size({"width": width, "height": 900})
    r.page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8"))
    if width == 360:
        r.page.evaluate("more(true)")
    r.page.evaluate("location.hash = 'v=sdpa'")
    expect(r.page.locator("#lit")).to_be_visible()
    alike = "{exclude: [['#cells tbody tr:nth-child(n+8)'], ['.group + .group']]}"
    some = ", runOnly: ['color-contrast', 'target-size']" * (width == 360)
    options = f"{{resultTypes: ['violations']{some}}}"
    found = r.page.evaluate(f"axe.run({alike}, {options})")["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert not serious, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in serious]
    levels = r.page.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


def test_everything_can_be_reached_by_keyboard_and_markup_stays_text(r):
    r.go()
    r.page.keyboard.press("Tab")
    targets = []
    while r.page.evaluate("document.activeElement.className") == "skip":
        targets.append(r.page.evaluate("document.activeElement.hash"))
        r.page.keyboard.press("Tab")
    assert targets == ["#answer", "#controls", "#table"]
    assert runs.MARKUP in r.page.text_content("#missing")
    row = r.page.locator("#cells tbody tr", has_text=runs.MARKUP).first
    row.locator(".name").press("Enter")
    assert r.seen("#lit") == [f"{runs.MARKUP} ✕"]
    row.locator("a").press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate("document.activeElement.closest('dialog') !== null")
    assert json.loads(r.page.text_content("#json"))["variant"] == runs.MARKUP
    assert r.page.locator("img").count() == 0


def test_a_page_of_little_of_nothing_and_of_too_much(reader, filled, monkeypatch, tmp_path):
    monkeypatch.setattr(html, "MOST", 7)
    nothing, one = [runs.untimed("sdpa", "failed", "it broke")], runs.timed("x" * 80, family="his")
    page = html.render(filled(nothing, [one], runs.many(5, (64, 128))))
    (tmp_path / "index.html").write_text(page, "utf-8")
    r = reader(tmp_path / "index.html")
    assert "the first 7 of 12 cells" in r.page.inner_text("#table") and len(r.rows()) == 7
    assert "it broke" in r.page.inner_text("#missing")
    names = ["run1 on slow-box-2c", "run2 on slow-box-2c"]
    assert r.seen(".of-run") == names
    r.page.select_option("[name=run]", names[0])
    assert len(r.seen(".card li")) == 1 and "the only one" in r.seen(".card li")[0]
    r.page.set_viewport_size({"width": 360, "height": 800})
    assert r.page.evaluate(WIDE) == 360
