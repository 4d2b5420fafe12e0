"""The page as it is read and used, in a real browser: each opened page answers many questions."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.features.report import page as html
from tests.report.page import runs

WIDE = "document.documentElement.scrollWidth"
LEVELS = "all => all.filter(h => !h.closest('dialog')).map(h => Number(h.tagName[1]))"


def test_the_first_screen_answers_and_says_how_sure_it_is(reader):
    page = reader().page
    for text in ("To train at 256 tokens, use sdpa", "3.20×"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 500, text
    card = page.locator(".card").first
    assert card.locator("h2").inner_text().startswith("Train")
    first = card.locator("li").first
    assert first.locator(".use .name").all_inner_texts() == ["sdpa"]
    for said in ("faster than matmul", "clear", "window?size=8", "70\u00a0%"):
        assert said in first.inner_text()
    sure, only = page.locator("#answer .how-sure").all_inner_texts()
    assert sure.startswith("How sure: of 6 answers 6 are clear; 9 samples a time at the median; ")
    assert page.locator(".how-sure a").get_attribute("href") == "#trust"
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on 6 of 6")
    assert page.inner_text("#closeness .lead").startswith("sdpa, within 1.25× of the best on 6 of")
    assert re.search(r"Clear: at least 5\s% faster", page.inner_text(".how"))
    crossed = "Shaded spans are where one variant overtakes another."
    assert crossed in page.inner_text("#scaling .lead")
    for section in ("shares", "attention"):  # what was not made is one quiet line
        assert page.locator(f"#{section}").bounding_box()["height"] < 30
    assert "unless --no-report." in page.inner_text("#attention")
    event = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert page.evaluate(event) < 3000  # ms: 1,000 on a machine that does nothing else


def test_what_is_chosen_leaves_that_alone_and_is_in_the_address(reader, number):
    r = reader()
    every, before = len(number), r.seen(".card li")
    assert len(r.seen(".card .regime")) == 2
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
    r.page.fill("[name=q]", "sparse")
    assert set(r.rows()) == {number["window?size=8"]}
    r.page.click("#clear")
    assert len(set(r.rows())) == every and r.hash == "" and not r.page.input_value("[name=q]")
    r.page.click("#legend summary")
    r.page.uncheck("[name=family][value=dense]")
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    assert r.hash == "#family=sparse,linear"
    r.page.check("[name=family][value=dense]")
    assert len(set(r.rows())) == every and r.hash == ""
    r.page.select_option("[name=computes]", runs.OWN)
    assert set(r.rows()) == {number[runs.MARKUP]}


def test_an_address_brings_everything_back_and_nonsense_shows_everything(reader, number):
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
    r.go("#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1")
    assert len(r.seen(".card .regime")) == 2 and len(set(r.rows())) == len(number)
    assert r.page.input_value("[name=unit]") == "ms" and r.seen("#lit") == []
    for address, said in (("q=zzz", "“zzz”"), ("family=none", "family none")):
        assert not r.page.is_visible("#nothing")
        r.go(f"#{address}")
        assert r.seen("#nothing") == [f"No variant matches {said}. Show all"]
        assert r.seen("figure") == [] and not r.page.is_visible("#table")
        assert r.seen(".card .regime") != []  # no filter of variants changes an answer
        r.page.click("#nothing [data-clear]")
        assert r.hash == "" and r.seen("figure") != []


def test_a_variant_is_lit_everywhere_by_its_name_its_line_and_its_row(reader, number):
    r = reader()
    r.page.locator(".card .use .name", has_text="sdpa").first.click()
    assert r.hash == "#v=sdpa" and r.seen("#lit") == ["sdpa ✕"]
    r.page.wait_for_timeout(200)  # it fades
    dimmed = "e => Number(getComputedStyle(e).opacity)"
    assert r.page.eval_on_selector(f"#scaling .v{number['matmul']}", dimmed) < 0.2
    assert r.page.eval_on_selector(f"#scaling .v{number['sdpa']}", dimmed) == 1
    pressed = r.page.locator("[aria-pressed=true]").evaluate_all("all => all.map(b => b.dataset.v)")
    assert set(pressed) == {number["sdpa"]}
    r.page.keyboard.press("Escape")
    assert r.hash == "" and r.seen("#lit") == []
    click = "e => e.dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    r.page.eval_on_selector(f"#scaling .v{number['matmul']}", click)
    assert r.seen("#lit") == ["matmul ✕"]
    r.page.locator("#cells tbody tr .name", has_text="window").first.click()
    assert r.seen("#lit") == ["window?size=8 ✕"]
    r.page.click("#lit")
    assert r.seen("#lit") == []


def test_the_unit_changes_figures_table_and_cards(reader):
    r = reader()
    heads = {"ms": "time, ms", "tflops": "TFLOP/s", "share": "% of ceiling", "baseline": "× sdpa"}
    for unit, head in heads.items():
        r.page.select_option("[name=unit]", unit)
        shown = r.page.locator("figure[data-unit]").locator("visible=true")
        assert set(shown.evaluate_all("all => all.map(f => f.dataset.unit)")) == {unit}
        for figure in shown.all():
            figure.locator("svg").first.wait_for(state="visible")
        assert head in r.seen("#cells thead")[0]
        assert r.hash == ("" if unit == "ms" else f"#unit={unit}")
        assert len(r.seen(".taken .u")) == len(r.seen(".taken"))


def test_columns_sort_both_ways_and_what_has_no_number_comes_last(reader):
    from playwright.sync_api import expect  # it waits until the page has got to a click

    r = reader()
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


def test_a_number_leads_to_its_record_and_the_command_that_repeats_it(reader):
    r = reader(permissions=["clipboard-read", "clipboard-write"])
    r.page.locator("#cells tbody tr", has_text="matmul").first.locator("a").click()
    r.page.wait_for_selector("dialog[open]")
    said = r.page.inner_text("#said")
    assert re.match(r"38\.4 ms \[.*\] · 9 samples, stopped by its budget", said)
    raw = r.page.inner_text("#json")
    assert '"variant": "matmul"' in raw and "samples_s" not in raw
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
    r.page.set_viewport_size({"width": 1440, "height": 900})
    row = r.page.locator("#cells tbody tr", has_text="matmul").first.locator("td").last
    for place, title in (
        (row, "matmul at 256 tokens"),
        (r.page.locator(".card .taken"), "sdpa at 256"),
    ):
        place.first.scroll_into_view_if_needed()
        r.page.wait_for_timeout(300)  # figures that come near are drawn, and move what is below
        place.first.click()
        r.page.wait_for_selector("dialog[open]")
        assert title in r.page.inner_text("#record-title")
        r.page.click("dialog [data-close]")


def test_a_figure_is_saved_as_svg_png_and_csv_looked_at_or_not(reader, small_contents, tmp_path):
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
    undrawn = "figures => figures.map(f => f.id)"
    name = r.page.eval_on_selector_all("figure:has(.later:empty)", undrawn)[-1]
    with r.page.expect_download() as waiting:
        r.page.eval_on_selector(f"#{name} [data-save=svg]", "button => button.click()")
    assert waiting.value.suggested_filename == f"{name}.svg"


def test_the_theme_follows_the_system_until_somebody_chooses_and_print_is_light(reader):
    ground = "getComputedStyle(document.body).backgroundColor"
    r = reader(color_scheme="dark")
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
    breaks = "all => all.map(f => getComputedStyle(f).breakInside)"
    assert set(r.page.eval_on_selector_all("figure", breaks)) == {"avoid"}


@pytest.mark.parametrize(("width", "columns"), [(360, 1), (1440, 2)])
def test_nothing_is_wider_than_the_window_and_figures_can_be_read(reader, width, columns):
    r = reader(width=width)
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
        assert r.page.evaluate("document.activeElement.id") == "more"
        r.page.click("#more")
    r.page.click("#legend summary")
    assert r.page.evaluate(WIDE) == width
    # by its key: figures that come near are drawn, and move what is below them
    r.page.locator("#cells tbody a").first.press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate(WIDE) == width


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1440, "light")])
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
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert not serious, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in serious]
    levels = r.page.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


def test_everything_can_be_reached_by_keyboard_and_markup_stays_text(reader):
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
    for section in ("#cells", "#missing"):
        assert runs.MARKUP in r.page.text_content(section)
    row = r.page.locator("#cells tbody tr", has_text=runs.MARKUP).first
    row.locator(".name").click()
    assert r.seen("#lit") == [f"{runs.MARKUP} ✕"]
    row.locator("a").press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate("document.activeElement.closest('dialog') !== null")
    assert json.loads(r.page.text_content("#json"))["variant"] == runs.MARKUP
    assert r.page.locator("img").count() == 0


def test_a_page_of_little_of_nothing_and_of_too_much(reader, plain_page, monkeypatch, tmp_path):
    monkeypatch.setattr(html, "MOST", 7)
    nothing = [runs.untimed("sdpa", "failed", "it broke")]
    r = reader(
        plain_page(nothing, [runs.timed("x" * 80, family="nobody's")], runs.many(5, (64, 128)))
    )
    assert "the first 7 of 12 cells" in r.page.inner_text("#table") and len(r.rows()) == 7
    assert "it broke" in r.page.inner_text("#missing")
    levels = r.page.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
    assert all(after <= before + 1 for before, after in pairwise(levels))
    names = ["run1 on slow-box-2c", "run2 on slow-box-2c"]
    assert r.seen(".of-run") == names
    r.page.select_option("[name=run]", names[0])
    assert len(r.seen(".card li")) == 1 and "the only one" in r.seen(".card li")[0]
    r.page.set_viewport_size({"width": 360, "height": 800})
    assert r.page.evaluate(WIDE) == 360


def test_names_in_a_headline_are_bold_and_the_rest_is_text():
    made = html.emphasised("use sdpa.flash, not sdpa: [1.2, 3.4] <b>", {"sdpa", "sdpa.flash"})
    assert made == ("use <b>sdpa.flash</b>, not <b>sdpa</b>: [1.2,\u00a03.4] &lt;b&gt;")
    assert html.emphasised("sdpa-like and xsdpa", {"sdpa"}) == "sdpa-like and xsdpa"
