"""What has no time, by reason: nothing is left blank, and one reason is said once."""

from pathlib import Path

import pytest

from attnbench.features.report.contents import missing
from attnbench.report.scenes import gather, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))


@pytest.fixture
def of(tmp_path):
    def found(records):
        return missing(scenes(gather([runs.written(tmp_path / "run", records)])))

    return found


def test_one_reason_is_said_once_for_all_variants_and_lengths(of):
    records = [
        runs.untimed(name, "unavailable", f"{name} runs on cuda", runs.at(n), remedy="a GPU")
        for name in ("a.b", "c?x=1")
        for n in (64, 128)
    ]
    (found,) = of(records)
    assert (found.status, found.reason, found.remedy) == ("unavailable", "runs on cuda", "a GPU")
    assert (found.variants, found.cells, found.where) == (("a.b", "c?x=1"), 4, ("everywhere",))


def test_reasons_that_differ_in_numbers_alone_are_said_once_and_so_called(of):
    records = [
        runs.untimed("a", "out_of_memory", f"it asked for {n * 3.5} GiB", runs.at(n))
        for n in (64, 128)
    ] + [runs.timed("b", 1.0, runs.at(n)) for n in (32, 64, 128)]
    found = {each.status: each for each in of(records)}
    assert found["out_of_memory"].cells == 2
    assert found["out_of_memory"].reason.startswith("it asked for 224.0 GiB (with other numbers")
    (where,) = found["out_of_memory"].where
    assert where.endswith(": 64; 128")
    assert "forward" in where


def test_everywhere_is_said_only_where_it_is_true_of_each(of):
    records = [runs.untimed("a", "failed", "no", runs.at(n)) for n in (64, 128)]
    records += [runs.untimed("b", "failed", "no"), runs.timed("b", 1.0, runs.at(128))]
    (found,) = of(records)
    assert (found.variants, found.cells) == (("a", "b"), 3)
    assert found.where[0].endswith(": all lengths")


def test_remedies_and_statuses_part_what_has_the_same_reason(of):
    records = [
        runs.untimed("a", "failed", "no", remedy="x"),
        runs.untimed("b", "failed", "no"),
        runs.untimed("c", "crashed", "no"),
        runs.timed("d", 1.0),
    ]
    assert [(f.status, f.remedy, f.variants) for f in of(records)] == [
        ("failed", "x", ("a",)),
        ("failed", "", ("b",)),
        ("crashed", "", ("c",)),
    ]


def test_a_cell_without_a_record_is_not_run_and_says_so(of):
    records = [runs.timed(name, 1.0, runs.at(n)) for name, n in (("a", 64), ("a", 128), ("b", 64))]
    (found,) = of(records)
    assert (found.status, found.variants, found.cells) == ("not run", ("b",), 1)
    assert "--resume" in found.remedy
    assert found.where[0].endswith(": 128")


def test_what_was_only_checked_says_so(of):
    record = runs.untimed("a", "measured", "")
    (found,) = of([record])
    assert "no time was taken" in found.reason


def test_every_cell_is_timed_or_missing(of):
    records = runs.small()
    total = {(r.variant, r.problem.phase, n) for r in records for n in runs.LENGTHS}
    forward = {cell for cell in total if cell[:2] != ("einsum", "forward")}
    timed = sum(r.time is not None for r in records)
    assert sum(each.cells for each in of(records)) + timed == len(forward)
