"""Runs as a report reads them: cut off, with numbers that are none, and what can't be read."""

import json
from pathlib import Path

import pytest

from attnbench.core.disk import StoreError
from attnbench.features.report import provenance
from attnbench.report.scenes import gather
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
NAN, INF = float("nan"), float("inf")


def test_each_record_comes_with_its_line_and_each_run_with_its_number(tmp_path):
    first = runs.written(tmp_path / "m" / "one", runs.small())
    second = runs.written(tmp_path / "m" / "two", runs.small()[:3])
    found = gather([second, tmp_path, first])
    assert [(run.number, run.path.name, len(run.records)) for run in found] == [
        (0, "two", 3),
        (1, "one", len(runs.small())),
    ]
    lines = (first / "records.jsonl").read_text().splitlines()
    for record, line in zip(found[1].records, found[1].lines, strict=True):
        assert json.loads(lines[line - 1]) == record.to_dict()
    assert found[0].notes == ()
    assert found[1].machine == "slow-box-2c"


@pytest.mark.parametrize("tail", [b'{"status":"meas', b"\x00" * 40 + b"\n", b"\x00" * 7])
def test_a_run_that_was_cut_off_is_read_and_said_to_be(tmp_path, tail):
    (run,) = gather([runs.written(tmp_path / "run", runs.small(), tail=tail)])
    assert len(run.records) == len(runs.small())
    (note,) = run.notes
    assert "cut off" in note
    assert "unfinished" in note


def test_what_a_run_did_not_come_to_is_said(tmp_path):
    grid = {
        "seq": ["64", "1x128", 256, "512", "1x1024"],
        "phase": ["forward", "train", "decode"],
        "mask": ["causal"],
        "batch": [1],
    }
    (run,) = gather([runs.written(tmp_path / "run", runs.small(), grid=grid, cells=99)])
    count, length, phase = run.notes
    assert length.endswith("length 512, 1024")
    assert phase.endswith("phase decode")
    assert "--resume" in count


@pytest.mark.parametrize(
    ("cells", "start"), [(4, "2 of the 4 cells"), (2, None), (None, None), ("many", None)]
)
def test_cells_that_were_asked_for_and_never_begun_are_counted(tmp_path, cells, start):
    lines = [runs.timed("sdpa", 1e-3, runs.at(n)) for n in (64, 128)]
    (run,) = gather([runs.written(tmp_path / "run", lines, cells=cells)])
    counted = [note for note in run.notes if "were asked for" in note]
    assert [note[:16] for note in counted] == ([start] if start else [])


@pytest.mark.parametrize("name", ["median_s", "low_s", "high_s", "min_s"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0, -1.0, None, 1e-320, 1e300])
def test_a_time_that_is_none_is_taken_back_with_its_reason(tmp_path, name, value):
    lines = [
        runs.timed("sdpa", 1e-3),
        runs.changed(runs.timed("odd", 1e-3), **{f"time__{name}": value}),
    ]
    (run,) = gather([runs.written(tmp_path / "run", lines)])
    good, bad = run.records
    assert good.time is not None
    assert (bad.time, str(bad.status)) == (None, "implausible")
    assert "finite" in bad.reason
    assert "line 2" in run.notes[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"problem": {}}, "batch"),
        ({"problem__kv_len": "long"}, "kv_len"),
        ({"problem__batch": 0}, "batch"),
        ({"problem__mask": None}, "mask"),
        ({"problem__heads": True}, "heads"),
        ({"colour": "blue"}, "colour"),
        ({"schema": 99}, "schema 99"),
        ({"status": "splendid"}, "splendid"),
        ({"time__median_s": "fast"}, "median_s"),
        ({"time__high_s": 10**400}, "high_s"),
        ({"memory__peak_bytes": NAN}, "peak_bytes"),
        ({"memory__peak_bytes": 4096.5}, "peak_bytes"),
        ({"cost__flops": INF}, "flops"),
        ({"memory__peak_bytes": 10**400}, "peak_bytes"),
        ({"share_of_ceiling": "half"}, "share_of_ceiling"),
        ({"error__forward__relative": 10**400}, "relative"),
        ({"canary_s": "soon"}, "canary_s"),
        ({"time__clock": None}, "clock"),
        ({"time__flags": [1]}, "flags"),
        ({"time__flags": "drifted"}, "flags"),
        ({"time__samples_s": ["a"]}, "samples_s"),
        ({"problem__more": [1]}, "more"),
    ],
)
def test_what_is_no_record_is_a_sentence_with_its_line(tmp_path, change, said):
    lines = [*runs.small()[:2], runs.changed(runs.small()[2], **change), *runs.small()[3:]]
    with pytest.raises(StoreError, match="line 3") as caught:
        gather([runs.written(tmp_path / "run", lines)])
    assert said in str(caught.value)


def test_a_median_outside_its_own_interval_is_none(tmp_path):
    odd = runs.changed(runs.timed("odd", 1e-3), time__median_s=2e-3)
    (run,) = gather([runs.written(tmp_path / "run", [odd])])
    assert (run.records[0].time, str(run.records[0].status)) == (None, "implausible")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\ud800b"])
def test_what_has_no_place_in_a_name_is_marked_in_it(tmp_path, name):
    (run,) = gather(
        [runs.written(tmp_path / "run", [runs.changed(runs.timed("x", 1e-3), variant=name)])]
    )
    assert run.records[0].variant.startswith("a\N{REPLACEMENT CHARACTER}")
    run.records[0].variant.encode()


@pytest.mark.parametrize(
    "header",
    [
        {"machine": ["x"]},
        {"settings": "fast"},
        {"grid": 3},
        {"nodes": [1]},
        {"ceilings": "high"},
        {"tables": 1},
        {"variants": "all"},
    ],
)
def test_a_part_of_a_header_that_is_none_is_a_sentence(tmp_path, header):
    with pytest.raises(StoreError, match=next(iter(header))):
        gather([runs.written(tmp_path / "run", runs.small(), **header)])


@pytest.mark.parametrize("noise", [{}, 0.02, None])
def test_noise_as_older_headers_hold_it_stops_no_report(tmp_path, noise):
    (run,) = gather([runs.written(tmp_path / "run", runs.small(), noise=noise)])
    assert any(line.startswith("noise floor: not measured") for line in provenance.about(run).trust)


def test_garbage_in_the_middle_is_left_out_and_said_with_its_line(tmp_path):
    lines = [runs.small()[0], "no json\n", runs.small()[1]]
    (run,) = gather([runs.written(tmp_path / "run", lines)])
    assert list(run.lines) == [1, 3]
    assert any("line 2 of" in note and "can't be read" in note for note in run.notes)


def test_no_run_no_records_and_no_folder_are_sentences(tmp_path):
    with pytest.raises(StoreError, match="there is no "):
        gather([tmp_path / "nothing"])
    with pytest.raises(StoreError, match=r"there is no run in .*run\.json"):
        gather([tmp_path])
    empty = runs.written(tmp_path / "empty", [])
    with pytest.raises(StoreError, match="holds no record"):
        gather([empty])
    (empty / "records.jsonl").unlink()
    with pytest.raises(StoreError, match="holds no record"):
        gather([tmp_path])


def test_an_empty_run_among_others_is_left_out_and_named(tmp_path):
    runs.written(tmp_path / "empty", [])
    runs.written(tmp_path / "full", runs.small())
    (run,) = gather([tmp_path])
    assert run.path.name == "full"
    assert "empty" in run.notes[0]


@pytest.mark.parametrize("header", ["[]", "{}", "not json", '{"schema": 99}', '{"schema": "x"}'])
def test_a_header_that_is_none_is_a_sentence(tmp_path, header):
    folder = runs.written(tmp_path / "run", runs.small())
    (folder / "run.json").write_text(header)
    with pytest.raises(StoreError, match="run"):
        gather([folder])


def test_what_torch_chose_is_said_once_a_variant_the_most_frequent_backend_first(tmp_path):
    ran = ("FlashAttention-2 (aten::_a)", "cuDNN (aten::_b)", "cuDNN (aten::_b)", "")
    records = [
        record.with_(note=f"own; torch chose {name}" if name else "own")
        for record, name in zip(runs.small(), ran, strict=False)
    ]
    records = [
        record.with_(variant="sdpa", problem=record.problem.with_(batch=number))
        for number, record in enumerate(records, 1)
    ]
    (run,) = gather([runs.written(tmp_path / "run", records)])
    assert [note for note in run.notes if "own choice" in note] == [
        "sdpa was torch's own choice of backend: cuDNN in 2, FlashAttention-2 in 1 cells"
    ]
