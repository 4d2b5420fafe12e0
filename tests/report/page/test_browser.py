"""The report of a small run, and its page in a real browser: opened once, asked many questions."""

import csv
import io
import json
import os
import re
import struct
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from attnbench.core import format
from attnbench.core.record import Energy
from attnbench.features.report import page as html
from tests.report.page import runs

expect = pytest.importorskip("playwright.sync_api").expect  # it waits for what a click does
GOLDEN = Path(__file__).with_name("golden")
WIDE = "document.documentElement.scrollWidth"
LEVELS = "all => all.filter(h => !h.closest('dialog')).map(h => Number(h.tagName[1]))"


@pytest.fixture
def r(opened):
    """The small run's page as it was opened: nothing is chosen, nothing lit, the window is wide."""
    opened.as_at_first(1440, 900)
    yield opened
    amiss, opened.amiss = opened.amiss, []
    assert not amiss


@pytest.fixture(scope="module")
def number(report):
    """By a variant's name, how rows and figures call it."""
    return {name: str(look.number) for name, look in report.contents.looks.items()}


def test_a_report_is_its_page_and_its_texts(report):
    """With GOLDENS=write it writes the texts anew: look at what has changed before it stays."""
    out = report.index.parent
    names = {str(path.relative_to(out)) for path in report.files}
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert names == found.keys() == {"index.html", "summary.md", "data.csv", "table.tex"}
    for name, content in found.items():  # none says where files lie on this machine
        assert str(report.index.parents[3]).encode() not in content, name
    for name in ("summary.md", "data.csv", "table.tex"):
        if os.environ.get("GOLDENS") == "write":
            (GOLDEN / name).write_bytes(found[name])
        assert found[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_answers_and_says_how_sure_it_is(r, width, height):
    r.page.set_viewport_size({"width": width, "height": height})
    assert r.seen(".verdicts tr[data-n] .use .name") == ["sdpa", "sdpa"]
    assert r.seen(".sures") == ["clear", "clear"]
    assert r.seen(".headline")[0].startswith("To train at 256 tokens, use sdpa: 12.0 ms [11.8,")
    said = r.seen(".verdicts .rest")[0]
    assert "3.20× [3.07, 3.33] faster than the next, matmul" in said
    assert ("70\u00a0% fidelity to softmax" in said) == (width == 1440)
    sure, only = r.page.locator("#answer .how-sure").all_inner_texts()
    assert sure.startswith("Confidence: of 6 answers 6 are clear leads; 9 samples a timing")
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on all 6")
    for seen in ("#controls", "#variants summary", ".verdicts tbody:last-child tr:not([hidden])"):
        box = r.page.locator(seen).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] < height, seen
    words = r.page.locator("nav a").all_inner_texts()
    assert words[1:] == r.page.locator("section h2").all_text_contents()


def test_the_length_moves_the_answers_and_the_table(r):
    lengths = r.page.locator("[name=at]")
    lengths.focus()
    r.page.keyboard.press("Home")
    assert r.hash == "#n=64" and r.page.inner_text("#tokens") == "64 tokens"
    assert r.seen(".headline")[0].startswith("To train at 64 tokens, use matmul: 2.40 ms")
    assert r.seen(".verdicts tr[data-n] .use .name") == ["matmul", "matmul"]
    r.page.check("[name=one]")
    assert set(r.seen("#cells tbody td:nth-child(2)")) == {"64"}
    r.go("#n=100")  # which was not measured
    assert r.page.inner_text("#tokens") == "256 tokens"


def test_a_filter_of_regimes_leaves_out_all_of_the_others_and_is_in_the_address(r):
    r.page.select_option("[name=phase]", "forward")
    assert r.hash == "#phase=forward" and len(r.seen(".verdicts tbody")) == 1
    assert [line.split()[1] for line in r.seen(".headline")] == ["run"]
    assert [t[:7] for t in r.seen(".card .regime")] == ["Forward"]
    assert set(r.seen("#cells tbody td:last-child")) == {"forward"}
    assert r.page.inner_text("#count") == "15 rows"
    assert r.seen("#scaling figcaption b") == ["Forward"]
    r.page.click("nav a[href='#table']")  # a place on the page keeps what was chosen
    assert r.page.input_value("[name=phase]") == "forward"
    assert 60 < r.page.locator("#h-table").bounding_box()["y"] < 200
    r.page.click("#clear")
    assert "=" not in r.hash and len(r.seen(".card .regime")) == len(r.seen(".headline")) == 2


def drawn(r):
    """The names of a figure's lines, and what its axis up says."""
    r.page.locator("#scaling figure").first.scroll_into_view_if_needed()
    names = r.page.locator("#scaling figure").first.locator("text[data-v]")
    ticks = r.page.locator("#scaling figure").first.locator("text[text-anchor=end]")
    return set(names.all_text_contents()), ticks.all_text_contents()


def test_any_set_of_variants_is_drawn_alone_on_axes_of_its_own(r, number):
    exact = {"sdpa", "matmul"}
    names, usual = drawn(r)
    assert names == exact and r.page.inner_text("#few") == "the fastest five"
    r.page.click("#variants summary")
    assert r.page.locator("[name=pick]:checked").count() == 2
    r.page.check(f"[name=pick][value='{number['window?size=8']}']")
    r.page.uncheck(f"[name=pick][value='{number['sdpa']}']")
    names, ticks = drawn(r)
    assert names == {"matmul", "window?size=8"} and ticks != usual
    assert set(r.rows()) == {number["matmul"], number["window?size=8"]}
    assert set(r.hash[3:].split(",")) == {"matmul", "window%3Fsize%3D8"}
    assert "At 256 matmul is 16.0× slower than window?size=8." in r.seen("#scaling figcaption")[0]
    r.page.click("[data-pick=all]")
    names, ticks = drawn(r)
    assert len(names) == 4 and r.page.inner_text("#few") == "all"
    r.page.click("[data-pick=exact]")  # the others, which are faster, are pale and stretch no axis
    assert drawn(r) == (exact, usual) and usual != ticks and set(r.rows()) >= {number["sdpa"]}
    r.page.click("[data-pick=five]")
    assert drawn(r) == (exact, usual) and r.hash == ""


def test_an_address_brings_everything_back_and_nonsense_shows_everything(r, number):
    r.go("#v=window%3Fsize%3D8,sdpa&phase=train&unit=tflops&n=128&y=error")
    assert r.page.input_value("[name=phase]") == "train"
    assert r.page.input_value("[name=unit]") == "tflops"
    assert r.page.input_value("[name=y]") == "error"
    assert set(r.rows()) == {number["window?size=8"], number["sdpa"]}
    r.page.click("#clear")
    r.go("#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1&about=none&run=%ff")
    assert len(r.seen(".card .regime")) == 2 and len(set(r.rows())) == len(number)
    assert r.page.input_value("[name=unit]") == "ms" and r.page.locator("dialog[open]").count() == 0


MATMUL = {"ms": 9.6e-3, "tflops": 512 * 128**2 / 9.6e9, "share": 0.42, "baseline": 1.6}
"""By unit, what training with it at 128 tokens is, by hand."""


def test_the_unit_changes_figures_table_and_answers(r):
    heads = {"ms": "time, ms", "tflops": "TFLOP/s", "share": "% of ceiling", "baseline": "× sdpa"}
    labels = {"ms": "median time", "share": "share of the ceiling", "baseline": "time, × sdpa"}
    for unit, head in heads.items():
        r.page.select_option("[name=unit]", unit)
        r.page.locator("#scaling figure").first.scroll_into_view_if_needed()
        label = r.page.locator("#scaling svg").first.get_by_text(labels.get(unit, head), exact=True)
        expect(label).to_be_attached()
        assert head in r.seen("#cells thead")[0]
        assert r.hash == ("" if unit == "ms" else f"#unit={unit}")
        beside = 2 if unit == "ms" else 1  # a time and its share of the ceiling
        assert len(r.seen(".taken .u")) == beside * len(r.seen(".taken"))
        line = f"seriesOf(0, UNITS.{unit}.value).find(l => l.look.name === 'matmul').points[1]"
        found = [r.page.evaluate(f"{line}.{end}") for end in ("y", "low", "high")]
        low, high = (0.98, 1.02) if unit in ("ms", "baseline") else (1 / 1.02, 1 / 0.98)
        assert [x / MATMUL[unit] for x in found] == pytest.approx([1, low, high], 1e-4)


VALUES = (3.27e-9, 0.0000999, 0.0123, 0.5, 0.99951, 1, 9.995, 12.34, 99.96, 1234.6, 1.5e6, 3.3e10)


def test_numbers_are_worded_as_everywhere_else(r):
    words = {"figures": "figures", "three": "three", "seconds": "duration", "nbytes": "size",
             "joules": "joules", "percent": "percent", "times": "ratio"}  # fmt: skip
    for script, python in words.items():
        told = r.page.evaluate(f"{list(VALUES)}.map({script})")
        assert told == [getattr(format, python)(value) for value in VALUES], script


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
    r.page.click("#record [data-copy]")
    expect(r.page.locator("#told")).to_have_text("copied")
    assert r.page.evaluate("navigator.clipboard.readText()") == command
    r.page.keyboard.press("Escape")
    r.settle()
    assert r.page.locator("dialog[open]").count() == 0 and r.hash == ""
    r.page.evaluate(f"location.hash = '{address}'")
    r.page.wait_for_selector("dialog[open]")
    r.page.click("#record [data-close]")
    r.page.locator(".verdicts tr:not([hidden]) .taken").first.click()
    expect(r.page.locator("#record-title")).to_contain_text("sdpa at 256 tokens")
    r.page.click("#record [data-close]")


SOURCES = (".verdicts .use .name", ".headline button", "#cells .name", "#scaling text")


def test_a_name_opens_what_the_variant_is_how_it_does_and_how_it_is_used(r):
    for source in SOURCES:  # wherever the name stands
        name = r.page.locator(source, has_text=re.compile("^sdpa$")).locator("visible=true").first
        name.scroll_into_view_if_needed()
        r.settle()  # what comes near is laid out, and may move it
        name.click()
        r.page.wait_for_selector("#about[open]")
        assert r.page.inner_text("#about-title") == "sdpa" and r.hash == "#about=sdpa"
        r.page.keyboard.press("Escape")
        r.settle()
        assert r.hash == ""
    r.page.click("#variants summary")
    r.page.locator("#boxes .name").first.click()
    r.page.wait_for_selector("#about[open]")
    r.page.go_back()  # closes it, and the list that it was opened from
    assert r.hash == "" and not r.page.is_visible("#about, #boxes")
    r.go("#about=window%3Fsize%3D8&n=64")  # where another wins, too
    assert r.page.eval_on_selector("#rival", "list => nameOf(list.value)") == "sdpa"
    r.go("#about=matmul&n=128")
    r.page.wait_for_selector("#about[open]")
    said = r.page.inner_text("#about")
    for words in (
        "4 n m d FLOPs",
        "Masks",
        'attention("matmul")',
        'set_attn_implementation("eager")',
    ):
        assert words in said, words
    assert r.page.eval_on_selector("#rival", "list => nameOf(list.value)") == "sdpa"
    assert r.page.inner_text("#about .against").startswith("At 128 tokens, compared with")
    assert r.seen("#about-here li")[0] == "train: 1.60× slower [1.54, 1.67], 1.00× the memory"
    times = [row.split("\t") for row in r.seen("#about .times tbody tr")[:3]]
    assert [row[0] for row in times] == ["64", "128", "256"]
    assert [row[2] for row in times] == ["1.25× faster", "1.60× slower", "3.20× slower"]
    assert r.seen("#about .times .here th") == ["128", "128"]
    command = "attnbench compare matmul sdpa --seq 128 --heads 2 --phase train"
    assert r.page.locator("#about-use code").last.inner_text() == command
    r.page.select_option("#rival", label="window?size=8")
    expect(r.page.locator("#about-use code").last).to_contain_text("compare matmul 'window?size=8'")
    assert "8.00× slower" in r.seen("#about-here li")[0]
    assert "8.00× slower" in r.seen("#about .times tbody tr")[1]
    r.page.evaluate(f"location.hash = '#about={quote(runs.MARKUP)}'")
    r.page.wait_for_selector("#about[open]")
    assert "not built into attnbench" in r.page.inner_text("#about")
    r.page.click("#about [data-close]")
    r.settle()  # it closes a moment later, and takes its part of the address away
    r.page.evaluate("location.hash = '#about=einsum'")
    expect(r.page.locator("#about-times")).to_contain_text("It has no time in this run")
    r.page.click("#about [data-close]")


POINTS = {"scaling": 3, "tradeoffs": 1, "memory": 3, "map": 3}


def test_every_point_can_be_read_by_pointer_finger_and_keys(r):
    figure = r.page.locator("#scaling figure").first
    figure.scroll_into_view_if_needed()
    at = figure.evaluate(
        "f => { const p = f.points.find(p => looks[p.v].name === 'matmul' && p.c === 128), b = "
        "f.querySelector('svg').getBoundingClientRect(); return [b.left + p.x, b.top + p.y] }"
    )
    r.page.mouse.move(at[0] + 3, at[1] - 3)
    assert r.seen(".readout")[0].startswith("matmul\n128 tokens: 9.60 ms [9.41, 9.79]\n1.60× the")
    assert r.page.locator("#scaling .cross circle").count() == 1
    r.page.mouse.move(5, 5)
    expect(r.page.locator(".readout").locator("visible=true")).to_have_count(0)
    touch = {"pointerType": "touch", "clientX": at[0], "clientY": at[1], "bubbles": True}
    figure.locator(".plot").dispatch_event("pointerdown", touch)
    assert r.seen(".readout")[0].startswith("matmul")
    for what, many in POINTS.items():
        plot = r.page.locator(f"#{what} .plot").first
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg")).to_be_attached()
        plot.focus()
        found = set()
        for key in ["ArrowRight", *["ArrowLeft"] * 4, *["ArrowRight"] * 4]:
            r.page.keyboard.press(key)
            found |= {r.seen(f"#{what} .readout")[0]}
        assert len(found) >= many and all(" MiB" in text for text in found), what
        for key in ("ArrowUp", "ArrowDown", "ArrowDown"):
            r.page.keyboard.press(key)
            found |= {r.seen(f"#{what} .readout")[0]}
        assert len(found) > many or what == "map", what
        r.page.keyboard.press("Escape")
        assert r.seen(f"#{what} .readout") == []


def test_what_is_drawn_can_be_saved_as_svg_png_and_csv(r, tmp_path):
    r.page.emulate_media(color_scheme="dark")
    r.go("#v=sdpa")
    got = {}
    for what in ("scaling", "map"):
        for kind in ("svg", "png", "csv"):
            save = r.page.locator(f"#{what} [data-save={kind}]").first
            save.scroll_into_view_if_needed()
            with r.page.expect_download() as waiting:
                save.click()
            name = waiting.value.suggested_filename
            assert name.startswith(what) and name.endswith(f".{kind}")
            waiting.value.save_as(tmp_path / kind)
            got[what, kind] = (tmp_path / kind).read_bytes()
    svg, png, table = (got["scaling", kind] for kind in ("svg", "png", "csv"))
    root = ElementTree.fromstring(svg)
    words = {e.text for e in root.iter() if e.text}
    assert "sdpa" in words and "matmul" not in words and b"var(--" not in svg
    assert f"Speed: {r.page.text_content('#scaling figure:not([hidden]) figcaption b')}" in words
    assert b"#1c2129" in svg  # light, whatever the theme
    assert png.startswith(b"\x89PNG") and len(png) > 5000
    wide, high = map(float, root.attrib["viewBox"].split()[2:])
    assert struct.unpack(">II", png[16:24]) == (int(3 * wide), int(3 * high))
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert {(x["variant"], int(x["length"])) for x in rows} == {("sdpa", n) for n in runs.LENGTHS}
    assert float(rows[-1]["s"]) == pytest.approx(12e-3)
    assert got["map", "csv"].startswith(b"winner,")


def test_the_theme_follows_the_system_until_somebody_chooses(r):
    ground = "getComputedStyle(document.body).backgroundColor"
    r.page.emulate_media(color_scheme="dark")
    dark = r.page.evaluate(ground)
    r.page.click("#theme")
    light = r.page.evaluate(ground)
    r.go()
    assert r.page.evaluate(ground) == light != dark
    r.page.click("#theme")
    r.page.evaluate("delete document.documentElement.dataset.theme")


def test_print_is_light_has_the_answers_and_the_figures_and_few_pages(reader):
    committed = reader(Path(__file__).parents[3] / "reports" / "cpu" / "index.html").page
    committed.emulate_media(media="print", color_scheme="dark")
    for gone in ("#controls", "nav", ".save", "#table", "#missing"):
        assert not committed.locator(gone).first.is_visible(), gone
    paper = "getComputedStyle(document.querySelector('.card')).backgroundColor"
    assert committed.evaluate(paper) == "rgb(255, 255, 255)"
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", committed.pdf(format="A4"))) <= 12  # sheets
    figures = committed.locator("figure[data-key]")
    assert all(figures.evaluate_all("all => all.map(f => f.querySelector('svg') !== null)"))
    committed.emulate_media(media="screen")
    committed.set_viewport_size({"width": 390, "height": 900})
    assert committed.evaluate(WIDE) == 390


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_is_wider_than_the_window(r, width):
    r.page.set_viewport_size({"width": width, "height": 900})
    expect(r.page.locator("#scaling svg").first).to_be_attached()
    assert r.page.evaluate(WIDE) == width
    if width == 390:  # on a phone the filters open and close
        assert not r.page.is_visible("[name=phase]")
        r.page.click("#more")
        r.page.focus("[name=unit]")
        r.page.keyboard.press("Escape")
        assert r.page.get_attribute("#more", "aria-expanded") == "false"
        assert r.page.evaluate("document.activeElement.id") == "more"
        r.page.click("#more")
        assert r.page.get_attribute("#more", "aria-expanded") == "true"
        r.page.keyboard.press("Escape")
        assert not r.page.is_visible("[name=phase]")
        r.page.click("#more")
    r.page.click("#variants summary")
    box = r.page.locator(".list").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    for open_ in ("openRecord(1)", "change({about: 'sdpa'}); openAbout(looks[0])"):
        r.page.evaluate(open_)
        r.page.wait_for_selector("dialog[open]")
        assert r.page.evaluate(WIDE) == width
        assert r.page.evaluate("all('dialog[open]').every(d => d.scrollWidth <= d.clientWidth)")
        r.page.evaluate("$('dialog[open]').close()")


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1440, "light")])
def test_axe_finds_nothing(r, width, theme):
    import axe_playwright_python

    r.page.emulate_media(color_scheme=theme)
    r.page.set_viewport_size({"width": width, "height": 900})
    r.page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8"))
    r.page.evaluate("more(innerWidth < 700); $('#variants').open = true; $('#find').focus()")
    whole = "{exclude: [['#cells tbody tr:nth-child(n+4)']]}"
    for state, part in (("unit=ms", whole), ("about=sdpa", "'#about'")):
        r.page.evaluate(f"location.hash = '{state}'")
        r.page.wait_for_timeout(200)
        found = r.page.evaluate(f"axe.run({part}, {{resultTypes: ['violations']}})")["violations"]
        assert not found, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found]
    levels = r.page.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


def test_everything_can_be_reached_by_keyboard_and_markup_stays_text(r):
    r.go()
    r.page.keyboard.press("Tab")
    targets = []
    while r.page.evaluate("document.activeElement.className") == "skip":
        targets.append(r.page.evaluate("document.activeElement.hash"))
        r.page.keyboard.press("Tab")
    assert targets == ["#answer", "#table"]
    assert runs.MARKUP in r.page.text_content("#missing")
    row = r.page.locator("#cells tbody tr", has_text=runs.MARKUP).first
    row.locator(".name").press("Enter")
    expect(r.page.locator("#about-title")).to_have_text(runs.MARKUP)
    r.page.keyboard.press("Escape")
    row.locator("a").press("Enter")
    r.page.wait_for_selector("dialog[open]")
    assert r.page.evaluate("document.activeElement.closest('dialog') !== null")
    assert json.loads(r.page.text_content("#json"))["variant"] == runs.MARKUP
    r.page.keyboard.press("Escape")
    assert r.page.locator("img").count() == 0


JOULES = Energy(joules=0.5, method="rapl counter")
BROKE = runs.untimed("sdpa", "failed", "it broke")
LATER = dict.fromkeys(("memory", "error", "cost", "share_of_ceiling", "distance"))
"""What an older attnbench left out."""
ODD = {
    "nothing measured": [[BROKE]],
    "an older record": [[runs.timed("x" * 80, family="", **LATER)]],
    "nothing exact, energy": [[runs.other("gla", n, n, energy=JOULES) for n in (64, 128)]],
    "five hundred variants": [runs.many(500, (64, 128))],
    "markup": [runs.crowd(12), [*map(runs.timed, ("a,b&c=d#'\"%", "*all"), (1e-3, 2e-3))], [BROKE]],
}


@pytest.mark.parametrize("odd", ODD)
def test_whatever_was_measured_there_is_a_page_and_no_empty_frame(reader, filled, odd, tmp_path):
    records = ODD[odd]
    (tmp_path / "index.html").write_text(html.render(filled(*records)), "utf-8")
    r = reader(tmp_path / "index.html")
    timed = any(record.time for some in records for record in some)
    assert timed == (len(r.seen(".verdicts tbody")) > 0) and r.seen(".headline") != []
    assert timed or ("it broke" in r.page.inner_text("#missing") and r.seen("#controls") == [])
    assert (r.page.locator("#energy figure").count() > 0) == ("joules" in str(records))
    for plot in r.page.locator("section.drawn .plot").all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg").first).to_be_visible()
    for name in r.page.evaluate("timed.slice(-3).map(({ name }) => name)"):
        r.page.evaluate("name => pick(looks.filter((look) => look.name === name))", name)
        assert r.page.evaluate("read(), only.map(({ name }) => name)") == [name]
    r.page.set_viewport_size({"width": 360, "height": 800})
    assert r.page.evaluate(WIDE) == 360


FLASH = ["aten::_scaled_dot_product_flash_attention_for_cpu"]


def test_one_length_is_bars_and_one_kernel_one_of_them(reader, filled, tmp_path):
    ran = [
        runs.timed("sdpa", 1e-3, kernels=FLASH),
        runs.timed("sdpa.flash", 1.01e-3, kernels=FLASH),
        runs.timed("matmul", 3e-3),
    ]
    (tmp_path / "index.html").write_text(html.render(filled(ran)), "utf-8")
    drawn = reader(tmp_path / "index.html")
    drawn.page.locator("#scaling figure").first.scroll_into_view_if_needed()
    bars = drawn.page.locator("#scaling svg text[data-v]")
    expect(bars).to_have_text(["sdpa (flash)", "matmul"])
    caption = drawn.page.locator("#scaling figcaption span").first
    expect(caption).to_have_text("At 64: sdpa (flash), 1 ms. One length was measured.")
    widths = drawn.page.eval_on_selector_all(
        "#scaling svg rect", "all => all.map(each => Number(each.getAttribute('width')))"
    )
    assert widths[1] / widths[0] == pytest.approx(3, rel=0.02), "they begin at zero"
    assert drawn.seen("#cells tbody th") == ["sdpa", "sdpa.flash", "matmul"]


def test_a_table_of_too_much_says_so_and_without_its_script_the_page_answers(
    browser, filled, monkeypatch, tmp_path
):
    monkeypatch.setattr(html, "MOST", 7)
    contents = filled(runs.small())
    page = html.render(contents)
    assert page == html.render(contents)  # to the last byte
    (tmp_path / "index.html").write_text(page, "utf-8")
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((tmp_path / "index.html").as_uri())
    assert "the first 7 of 31 measurements" in tab.inner_text("#table")
    assert tab.locator(".verdicts tr[data-n]").locator("visible=true").count() == 2
    headline = tab.locator(".headlines:not([hidden]) .headline").first.inner_text()
    assert headline.startswith("To train at 256 tokens, use sdpa")
    assert "drawn by the page's script" in tab.inner_text("#scaling") and not tab.is_visible(
        "#controls"
    )
    context.close()
