"""The roofline: where points lie by hand, whose ceilings are the roof, and what is left out."""

import pytest

from attnbench.core.record import Ranks
from attnbench.report.figures import roofline
from tests.report.page import runs
from tests.report.page.runs import OWN, Work, rows, words

CEILINGS = {"flops": {"float32": 1e11}, "copy": {"1024": 4e10, "4096": 8e10, "65536": 2e10}}


def timed(name="a", median=1e-3, flops=10**8, nbytes=10**6, **more):
    return runs.timed(name, median, cost=Work(flops=flops, bytes=nbytes) if flops else None, **more)


def draw(*records, **header):
    (scene,), looks = runs.staged(*records, **{"ceilings": CEILINGS, **header})
    return roofline.draw(scene, looks)


@pytest.mark.parametrize(
    ("median", "flops", "intensity", "rate", "share"),
    [(2e-3, 10**8, 100, 5e10, 0.5), (1e-3, 10**6, 1, 1e9, 1e9 / 8e10)],
    ids=["below the product", "below the corner, the fastest copy"],
)
def test_a_point_lies_at_its_work_over_its_bytes_and_over_its_time(
    median, flops, intensity, rate, share
):
    (row,) = rows(draw(timed(median=median, flops=flops)))
    assert float(row["flop_per_byte"]) == intensity
    assert float(row["flop_per_s"]) == pytest.approx(rate)
    assert float(row["share_of_roof"]) == pytest.approx(share)


def test_the_roof_is_of_the_kind_of_machine_that_measured_and_of_all_its_processes():
    def roof(record, **header):
        (scene,), _ = runs.staged(record, ceilings=CEILINGS, **header)
        return roofline.roof(scene)

    slow = {"nodes": {"slow": {"ceilings": {"flops": {"float32": 1e9}, "copy": {"8": 1e9}}}}}
    four = Ranks(world=4, time_s=[], peak_bytes=[], sent_bytes=[], backend="gloo")
    assert roof(timed()) == roofline.Roof(flops=1e11, memory=2e10, cache=8e10)
    assert roof(timed(node="slow"), **slow).flops == 1e9
    assert roof(timed(node="other"), **slow).flops == 1e11
    assert roof(timed(ranks=four)) == roofline.Roof(4e11, 8e10, 3.2e11)


@pytest.mark.parametrize(
    "ceilings",
    [
        None,
        {"flops": {"bfloat16": 1e12}, "copy": {"8": 1e9}},
        {"flops": {"float32": 1e11}},
        {"flops": {"float32": 1e11}, "copy": {"8": None}},
    ],
)
def test_without_ceilings_or_work_there_is_no_roofline(ceilings):
    assert draw(timed(), ceilings=ceilings) is None
    assert draw(timed(flops=None)) is None


def test_what_does_next_to_no_work_is_named_and_not_drawn():
    drawn = draw(timed("a"), timed("lazy", flops=100))
    assert {row["variant"] for row in rows(drawn)} == {"a", "lazy"}
    assert "v v1" not in drawn.svg
    assert any("not drawn: lazy" in said for said in words(drawn))


def test_the_sentence_names_the_exact_one_that_comes_nearest():
    drawn = draw(timed("a", 4e-3), timed("b", 2e-3), timed("x", 1.5e-3, computes=OWN))
    assert drawn.description.startswith("b comes nearest to the roof of what is exact: it does 50%")
    assert "Nearest to the ceilings of what is exact: b, 50% of what they allow" in words(drawn)
    assert (drawn.section, drawn.name, drawn.regime) == ("roofline", "roofline-r0", 0)


def test_where_all_are_at_one_intensity_there_is_a_list_of_shares(kept):
    some = [timed("slow", 4e-3), timed("fast", 2e-3), timed("x", computes=OWN)]
    drawn = draw(*some, timed("odd", nbytes=10**3), *(timed(f"v{n}", 1.0) for n in range(8)))
    names = [text.get_text().replace("\xa0", " ") for text in kept[0].axes[0].texts]
    assert names[:6] == ["odd", "100 %", "fast", "50 %", "slow", "25 %"]
    assert names.index("x") > names.index("v7")  # what is not exact has a rank of its own
    assert drawn.title.startswith("Share of what the ceilings allow: ")
    bars = [patch.get_width() for patch in kept[0].axes[0].patches]
    assert bars[:3] == pytest.approx([1.0, 0.5, 0.25])
    assert draw(timed("a"), timed("b", nbytes=10**5)).title.startswith("Roofline, ")


def test_of_very_many_at_one_intensity_twenty_are_listed(kept):
    some = [timed(f"v{n}", (1 + n) * 1e-3) for n in range(60)]
    drawn = draw(*some, *(timed(f"x{n}", computes=OWN) for n in range(60)))
    assert len(kept[0].axes[0].patches) == 20 and len(rows(drawn)) == 120
    assert any("100 more in the CSV" in said for said in words(drawn))
    runs.assert_words_are_readable(kept[0])
