"""What a page holds packed: it comes out as it went in, and always the same."""

import base64
import json
import re
import zlib
from dataclasses import replace

from attnbench.features.report import html, table
from attnbench.features.report import table as blob


def unpacked(word):
    return json.loads(zlib.decompress(base64.b64decode(word)))


def test_every_record_is_there_without_its_samples(small_contents):
    cells = table.cells(small_contents)
    held = unpacked(blob.packed(small_contents, cells))["cells"]
    assert len(held) == len(cells)
    for cell in cells:
        told = held[str(cell.number)]
        assert told["line"] == cell.line
        assert told["file"] == "../records.jsonl"
        assert told["repeat"].startswith("attnbench run ")
        assert told["record"]["variant"] == cell.record.variant
        assert "samples_s" not in (told["record"]["time"] or {})
    assert held["0"]["record"]["time"]["median_s"] == cells[0].record.time.median_s


def test_numbers_are_kept_to_seven_figures():
    assert blob._short({"a": [1 / 3, {"b": 123456789.123}], "n": 123456789, "t": "x"}) == {
        "a": [0.3333333, {"b": 123456800.0}],
        "n": 123456789,
        "t": "x",
    }


def test_a_record_is_told_in_a_line_for_people(small_contents):
    cells = {(c.record.variant, c.length): c for c in table.cells(small_contents)}
    assert blob.told(cells["sdpa", 64]).replace("\N{NON-BREAKING HYPHEN}", "-") == (
        "3.00 ms [2.94, 3.06] · 9 samples, stopped by its budget · peak 256 KiB · worst error 2e-7"
    )
    told = blob.told(cells["einsum", 256])
    assert told.startswith("out of memory: ") and "samples" not in told


def test_doubts_about_a_record_are_told(small_contents):
    cell = table.cells(small_contents)[0]
    time = cell.record.time.with_(flags=["drifted: much", "contended"], n=1, stop="plateau")
    told = blob.told(replace(cell, record=cell.record.with_(time=time)))
    assert "1 sample, stopped when its interval narrowed no more" in told
    assert told.endswith("in doubt: drifted: much; contended")


def test_every_figures_numbers_are_there(small_contents):
    held = unpacked(blob.packed(small_contents, []))["csv"]
    assert held == {figure.name: figure.csv for figure in small_contents.figures}
    assert held


def test_figures_in_other_units_are_packed_and_the_first_of_each_is_on_the_page(small_contents):
    held = unpacked(blob.packed(small_contents, []))["svg"]
    by_unit = {
        unit: {f.name: f.inline for f in small_contents.figures if f.unit == unit}
        for unit in ("", "ms", "tflops", "share", "baseline")
    }
    assert all(by_unit.values())
    assert held == by_unit["tflops"] | by_unit["share"] | by_unit["baseline"]
    page = html.render(small_contents)
    assert all(svg in page for svg in (by_unit[""] | by_unit["ms"]).values())


def test_the_same_contents_pack_to_the_same_word(small_contents):
    cells = table.cells(small_contents)
    assert blob.packed(small_contents, cells) == blob.packed(small_contents, cells)


def test_of_very_many_cells_only_those_that_the_page_shows_are_held(small_contents, monkeypatch):
    monkeypatch.setattr(table, "MOST", 1)
    page = html.render(small_contents)
    held = unpacked(page.split('id="blob">')[1].split("<")[0])["cells"]
    linked = set(re.findall(r'href="#cell=(\d+)"', page))
    assert linked == set(held)
    assert 1 < len(held) < len(table.cells(small_contents))
