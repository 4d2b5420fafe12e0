"""From a number to its record, and figures that are saved, in a real browser."""

import re
from pathlib import Path

from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
WIDTHS = (360, 768, 1440)


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


def test_a_figure_that_nobody_has_looked_at_is_saved_too(reader, small_contents):
    r = reader()
    undrawn = r.page.eval_on_selector_all(
        "figure:has(.later:empty)", "figures => figures.map(f => f.id)"
    )
    with r.page.expect_download() as waiting:
        r.page.eval_on_selector(f"#{undrawn[-1]} [data-save=svg]", "button => button.click()")
    assert waiting.value.suggested_filename == f"{undrawn[-1]}.svg"
