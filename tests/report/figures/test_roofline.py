"""The roofline: where points lie by hand, whose ceilings are the roof, and what is left out."""

import pytest

from attnbench.core.record import Ranks
from attnbench.report.figures import roofline
from tests.report.page import runs
from tests.report.page.runs import Work, rows

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
        {"flops": {"float32": 1e11}, "copy": {"8": None}},
    ],
)
def test_without_ceilings_or_work_there_is_no_roofline(ceilings):
    assert draw(timed(), ceilings=ceilings) is None
    assert draw(timed(flops=None)) is None
