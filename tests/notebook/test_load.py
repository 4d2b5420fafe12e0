"""``attnbench.load``, ``show`` and ``choose`` as a notebook meets them: by runs made up."""

import ast
import base64
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

import attnbench
from attnbench.core.machine import this_machine
from attnbench.core.store import read_records
from attnbench.notebook.arguments import BadWord
from impls.errors import CantBeDone
from tests.answer import build as lines
from tests.verbs import chosen_runs as made

ROOT = Path(attnbench.__file__).parents[1]


def test_what_is_loaded_later_is_there_and_is_said_the_same_to_editors():
    stub = ast.parse((ROOT / "attnbench" / "__init__.pyi").read_text())
    told = {
        alias.asname: f"{node.module}:{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == attnbench.LATER
    for name, place in attnbench.LATER.items():
        found, (module, function) = getattr(attnbench, name), place.split(":")
        assert found is getattr(sys.modules[module], function) and found.__doc__
        assert name in dir(attnbench)


@pytest.fixture
def one(tmp_path):
    """A run of two exact variants and another operator over three lengths, one cell unmeasured."""
    records = [
        *lines.line("sdpa", {256: 1e-3, 512: 3e-3, 1024: 9e-3}),
        *lines.line("matmul", {256: 2e-3, 512: 6e-3}),
        lines.untimed("matmul", 1024),
        *lines.line("linear.elu", {256: 5e-3, 512: 6e-3}, computes="its own operator"),
        *lines.line("sdpa", {256: 4e-3}, phase="train"),
    ]
    return made.written(tmp_path / "results" / "box" / "one", records)


@pytest.fixture
def other(tmp_path):
    return made.written(tmp_path / "results" / "box" / "other", lines.line("chunked", {256: 7e-3}))


def test_a_run_is_a_table_with_a_row_for_each_record(one):
    df = attnbench.load(one)
    records = list(read_records(one))
    assert list(df["variant"]) == [r.variant for r in records]
    assert list(df.raw["time.median_s"].dropna()) == [r.time.median_s for r in records if r.time]
    (lost,) = df[df["verdict"] == "out of memory"].to_dict("records")
    assert (lost["variant"], lost["seq"], lost["reason"]) == ("matmul", 1024, "the reason")
    assert df.attrs["run"] == str(one) and "time.samples_s" not in df.raw
    assert "time.samples_s" in attnbench.load(one, samples=True).raw


def test_a_run_has_a_dozen_plain_columns_and_a_verdict_of_each_row(one):
    df = attnbench.load(one)
    assert list(df) == [
        "variant", "phase", "mask", "seq", "ms", "±", "MiB", "error", "vs_best", "verdict",
        "reason",
    ]  # fmt: skip
    forward = df[(df["phase"] == "forward") & (df["seq"] == 512)].set_index("variant")
    assert list(forward.index) == ["sdpa", "matmul", "linear.elu"]
    assert list(forward["verdict"]) == ["use", "slower", "not exact"]
    assert list(forward["ms"]) == pytest.approx([3, 6, 6])
    assert list(forward["vs_best"]) == pytest.approx([1, 2, 2])
    same = [*lines.line("chunked", {512: 3e-3}), *lines.line("sdpa", {512: 3e-3})]
    tied = attnbench.load(made.written(one.parent / "tied", same))
    assert list(tied["verdict"]) == ["tied", "use"]
    fast = df.sort_values("ms")[:2]
    assert list(fast.raw["variant"]) == list(fast["variant"])
    with pytest.raises(BadWord, match="not rows of attnbench"):
        df.reset_index(drop=True).set_index("variant").raw  # noqa: B018


def test_several_runs_are_one_table_that_knows_the_folder_of_each_row(one, other):
    df = attnbench.load(one, other)
    assert list(df.raw["folder"]) == [str(one)] * 9 + [str(other)]
    assert df["run"].nunique() == 2
    assert df["variant"].iloc[-1] == "chunked"
    assert df.attrs["runs"] == [str(one), str(other)]
    pd.testing.assert_frame_equal(df, attnbench.load(one, other, one))
    assert len(attnbench.load(one.parents[1])) == 10


def images(html):
    """The figures in a page's text, each read as the XML that it must be."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [ElementTree.fromstring(base64.b64decode(data)) for data in found]


def test_a_run_shows_its_answers_and_its_figures_which_are_written_as_their_names_say(
    one, tmp_path
):
    shown = attnbench.show(attnbench.load(one))
    assert any("forward at 512 tokens, use sdpa: 3.00 ms" in line for line in shown.headlines)
    assert any("256 to 1,024: at 1,024 sdpa takes 9.00 ms" in line for line in shown.answers)
    names = [picture.name for picture in shown.figures]
    assert names == ["map-0", "r0-exact-time", "r1-exact-time", "r1-others-time"]
    assert "matmul (1): the reason" in shown.missing
    html = shown._repr_html_()
    assert len(images(html)) == len(names)
    assert "512 tokens, use sdpa: 3.00 ms" in html and shown.headlines[0] in repr(shown)
    picture = shown.figures[0]
    (image,) = images(picture._repr_html_())
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    assert f"width:{image.get('viewBox').split()[2]}pt" in picture._repr_html_()
    for suffix, start_ in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".csv", b"regime")):
        picture.save(tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(start_), suffix
    with pytest.raises(BadWord, match=r"as \.svg, \.png or \.csv, not as '\.jpg'"):
        picture.save(tmp_path / "a.jpg")


def test_a_figure_that_fails_costs_itself_alone(one, monkeypatch):
    monkeypatch.setattr("attnbench.report.figures.winner_map.draw", lambda *_: 1 / 0)
    shown = attnbench.show(one, ["map", "closeness"])
    assert [p.name for p in shown.figures] == ["closeness-0"]
    assert any("could not be drawn (Zero" in note for note in shown.notes)


def test_what_can_not_be_shown_is_a_sentence(one):
    df = attnbench.load(one)
    with pytest.raises(BadWord, match="there is no figure pie; there are map, time"):
        attnbench.show(df, "pie")
    with pytest.raises(BadWord, match="has no column folder, variant"):
        attnbench.show(df.raw.groupby("variant")[["time.median_s"]].min())
    with pytest.raises(BadWord, match="has no rows"):
        attnbench.show(df[df["variant"] == "nobody"])


SHAPE = {"heads": 4, "phase": "forward"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "results" / this_machine().name / "one"
    return made.written(folder, made.lines(sdpa=1.0, matmul=2.0))


def test_it_says_who_and_gives_what_to_paste_and_what_proves_it(run):
    found = attnbench.choose(512, **SHAPE, runs=run)
    assert found.variant == "sdpa"
    assert "use sdpa" in str(found) and "use sdpa" in repr(found)
    assert found.code.endswith("is_causal=True)")
    assert found.proof.startswith("attnbench compare sdpa matmul --seq 512")
    assert list(found.to_frame()["variant"]) == ["sdpa", "matmul"]
    shown = found._repr_html_()
    assert "<table" in shown and "use sdpa" in shown and "<pre>" in shown


def test_without_an_answer_it_is_a_sentence(run):
    found = attnbench.choose(512, heads=64, phase="forward", runs=run)
    assert (found.variant, found.code, found.proof) == (None, "", "")
    assert "no answer: outside what was measured" in found._repr_html_()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"seq": [128, 256]}, "--seq has several values"),
        ({"seq": 128, "max_memory": 0}, "is not a size"),
        ({"seq": 128, "max_error": float("nan")}, "is not a number above 0"),
        ({"seq": 128, "runs": "nowhere"}, "there is no nowhere"),
    ],
)
def test_what_can_t_be_asked_is_a_sentence(words, said):
    with pytest.raises(CantBeDone, match=said):
        attnbench.choose(**words)
