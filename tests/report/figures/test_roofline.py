"""The roofline: where points lie by hand, whose ceilings are the roof, and that it can be read."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnbench.report.figures import roofline
from impls.loading import load_file

made = load_file(Path(__file__).with_name("drawn.py"))
timed, shown, table = made.timed, made.shown, made.table


def draw(*records, **header):
    (scene,), looks = shown(*records, **header)
    return roofline.draw(scene, looks)


def test_a_point_lies_at_its_work_over_its_bytes_and_over_its_time():
    (row,) = table(draw(timed(median=2e-3, flops=10**8, nbytes=10**6)))
    assert float(row["flop_per_byte"]) == 100
    assert float(row["flop_per_s"]) == pytest.approx(5e10)
    assert float(row["share_of_roof"]) == pytest.approx(0.5)  # of the product's 1e11


def test_below_the_corner_the_roof_is_the_fastest_copy():
    (row,) = table(draw(timed(median=1e-3, flops=10**6, nbytes=10**6)))
    assert float(row["share_of_roof"]) == pytest.approx(1e9 / 8e10)


def test_memory_is_the_largest_copy_and_cache_the_fastest():
    (scene,), _ = shown(timed())
    assert roofline.roof(scene) == roofline.Roof(flops=1e11, memory=2e10, cache=8e10)


def test_the_roof_is_of_the_kind_of_machine_that_measured():
    slow = {"flops": {"float32": 1e9}, "copy": {"8": 1e9}}
    (scene,), _ = shown(timed(node="slow"), nodes={"slow": {"ceilings": slow}})
    assert roofline.roof(scene).flops == 1e9
    (scene,), _ = shown(timed(node="other"), nodes={"slow": {"ceilings": slow}})
    assert roofline.roof(scene).flops == 1e11


def test_of_several_processes_it_is_all_of_their_devices():
    (scene,), _ = shown(timed(world=4))
    assert roofline.roof(scene) == roofline.Roof(4e11, 8e10, 3.2e11)


@pytest.mark.parametrize(
    "ceilings",
    [
        None,
        {},
        {"flops": {"bfloat16": 1e12}, "copy": {"8": 1e9}},
        {"flops": {"float32": 1e11}},
        {"flops": {"float32": None}, "copy": {"8": 1e9}},
        {"flops": {"float32": 1e11}, "copy": {"8": None}},
    ],
)
def test_without_ceilings_there_is_no_roofline(ceilings):
    assert draw(timed(), ceilings=ceilings) is None


def test_without_work_or_time_there_is_none():
    assert draw(timed(flops=None)) is None
    assert draw(timed(median=None)) is None
    assert draw(timed(median=float("nan"))) is None


def test_what_does_next_to_no_work_is_named_and_not_drawn():
    drawn = draw(timed("a"), timed("lazy", flops=100))
    assert {row["variant"] for row in table(drawn)} == {"a", "lazy"}
    assert "v1" not in drawn.svg  # its class
    assert any("not drawn: lazy" in words for words in made.words_of(drawn))


def test_the_sentence_names_the_exact_one_that_comes_nearest():
    drawn = draw(
        timed("a", median=4e-3),
        timed("b", median=2e-3),
        timed("x", median=1.5e-3, computes="its own operator"),
    )
    assert drawn.description.startswith("b comes nearest to the roof of what is exact: it does 50%")
    assert (drawn.section, drawn.name, drawn.regime) == ("roofline", "roofline-r0", 0)


@pytest.mark.parametrize("count", [1, 2, 9, 45])
def test_its_words_can_be_read(monkeypatch, count):
    kept = made.watch(monkeypatch, roofline)
    drawn = draw(*made.many(count))
    made.assert_words_are_readable(kept[0])
    ElementTree.fromstring(drawn.inline)


def test_of_very_many_the_nearest_are_drawn_and_the_rest_is_counted(monkeypatch):
    kept = made.watch(monkeypatch, roofline)
    drawn = draw(
        *(timed(f"v{n}", median=(1 + n / 100) * 1e-3, nbytes=10**5 * (1 + n)) for n in range(200))
    )
    assert len(drawn.inline) < 60_000
    assert len(table(drawn)) == 200
    assert any("140 more in the CSV" in words for words in made.words_of(drawn))
    made.assert_words_are_readable(kept[0])


def test_where_all_are_at_one_intensity_there_is_a_list_of_shares(monkeypatch):
    kept = made.watch(monkeypatch, roofline)
    records = [
        timed("slow", median=4e-3),
        timed("fast", median=2e-3),
        timed("x", median=1e-3, computes="its own operator"),
    ]
    drawn = draw(
        *records, timed("odd", nbytes=10**3), *(timed(f"v{n}", median=1) for n in range(8))
    )
    names = [text.get_text() for text in kept[0].axes[0].texts]
    shares = [word.replace("\xa0", " ") for word in names]
    assert shares[:6] == ["odd", "100 %", "fast", "50 %", "slow", "25 %"]
    assert names.index("x") > names.index("v7")  # what is not exact has a rank of its own
    assert drawn.title.startswith("Share of what the ceilings allow: ")
    bars = [patch.get_width() for patch in kept[0].axes[0].patches]
    assert bars[:3] == pytest.approx([1.0, 0.5, 0.25])
    assert draw(timed("a"), timed("b", nbytes=10**5)).title.startswith("Roofline, ")


def test_of_very_many_at_one_intensity_twenty_are_listed(monkeypatch):
    kept = made.watch(monkeypatch, roofline)
    some = [timed(f"v{n}", median=(1 + n) * 1e-3) for n in range(60)]
    drawn = draw(*some, *(timed(f"x{n}", computes="its own operator") for n in range(60)))
    assert len(kept[0].axes[0].patches) == 20
    assert any("100 more in the CSV" in words for words in made.words_of(drawn))
    assert len(table(drawn)) == 120
    made.assert_words_are_readable(kept[0])


def test_decoding_on_the_slope_can_be_read_too(monkeypatch):
    kept = made.watch(monkeypatch, roofline)
    records = [
        timed(
            f"v{n}", k, 1e-6 * k * (1 + n), flops=k * 200, nbytes=k * 400, q_len=1, phase="decode"
        )
        for n in range(14)
        for k in (128, 1024)
    ]
    assert draw(*records)
    made.assert_words_are_readable(kept[0])


def test_names_stay_text_and_variants_keep_their_class():
    drawn = draw(timed(made.NASTY), timed("b", median=2e-3))
    assert "<script" not in drawn.svg
    titles = [e.text for e in ElementTree.fromstring(drawn.svg).iter() if e.tag.endswith("title")]
    assert any(title.startswith(made.NASTY) for title in titles)
    assert 'class="v v0"' in drawn.svg and 'class="v v1"' in drawn.svg
    assert "var(--dense)" in drawn.inline


def test_the_same_records_give_the_same_bytes():
    records = made.many(12)
    assert draw(*records) == draw(*records)
