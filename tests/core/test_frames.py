"""The table of all records: what json_normalize makes of them, in a fraction of its time."""

import json
import os
import warnings
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbench.core import store
from attnbench.core.disk import RECORDS
from attnbench.core.record import SCHEMA, DamagedRun
from attnbench.core.store import load, read_records
from impls.loading import load_file

written = load_file(Path(__file__).with_name("records.py")).written
records = load_file(Path(__file__).with_name("test_record.py")).records


def slowly(paths):
    """The table by way of whole records, as pandas flattens them."""
    rows = [
        {**record.to_dict(), "machine": path.parent.name}
        for path in paths
        for record in read_records(path)
    ]
    return pd.json_normalize(rows)


def same(paths):
    pd.testing.assert_frame_equal(load(paths), slowly(paths), check_like=True)


def test_a_table_is_what_json_normalize_makes(tmp_path, made, monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 10_000)  # of several pieces
    paths = [
        written(tmp_path / str(seed), [r.line() for r in made.sweep_like(60, seed)])
        for seed in range(3)
    ]
    same(paths)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records(), max_size=5))
def test_any_records_make_the_table_that_json_normalize_makes(tmp_path, some):
    some = [r.with_(variant=f"v{n}") for n, r in enumerate(some)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRun)  # any time is none that was measured
        same([written(tmp_path, [r.line() for r in some])])


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [1, "two"],
        [None, None],
        [None, 1],
        [True, None],
        [True, False],
        [True, 1],
        [2**70, 1],
        [2**63, 1.5],
        [2**63, None],
        ["a", None],
        [[1], None],
        [{}, 1],
        [{"x": {"y": 1}}, {"x": 2}],
        [0, -1],
        [{"x": [{}]}, {}],
        ["", "a"],
    ],
    ids=repr,
)
def test_an_option_of_any_types_comes_as_json_normalize_has_it(tmp_path, made, values):
    some = [made.record(f"v{n}", options={"o": value, "p": 1}) for n, value in enumerate(values)]
    same([written(tmp_path / "all", [r.line() for r in some])])
    same([written(tmp_path / "none", [r.line() for r in [*some, made.record()]])])


def test_a_record_of_an_older_form_has_what_was_added_since(tmp_path, made):
    old = json.loads(made.timed().line())
    for name in ("ranks", "node", "canary_s"):
        del old[name]
    del old["time"]["audit_s"]
    turned = dict(reversed({**old, "variant": "turned", "schema": 1}.items()))
    path = written(tmp_path, [json.dumps(old), json.dumps(turned), made.timed("new").line()])
    same([path])
    assert load([path])["schema"].tolist() == [SCHEMA, 1, SCHEMA]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_missing(tmp_path, made, number):
    line = made.timed("odd", median=0.125).line().replace("0.125", number)
    path = written(tmp_path, [made.timed().line(), line])
    with pytest.warns(DamagedRun, match="line 2 .*can't be true"):
        same([path])
        assert load([path])["time.median_s"].tolist()[0] == 0.25
        assert load([path])["time.median_s"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": SCHEMA + 1},
        {"schema": None},
        {"schema": "1"},
        {"surprise": 1},
        {"status": "fine"},
        {"status": ["measured"]},
        {"reason": "it went well"},
        {"status": "failed"},
        {"time": {"n": 1}},
        {"time": 3},
        {"status": "wrong", "reason": "row 1"},
        {"error": []},
        {"memory": {"x": 1}},
    ],
    ids=str,
)
def test_what_is_no_record_is_refused_as_reading_records_refuses_it(
    tmp_path, made, refused, change
):
    bad = json.dumps({**json.loads(made.timed().line()), **change})
    good = [made.timed(name).line() for name in "abc"]
    path = written(tmp_path, [*good[:2], bad, good[2]])
    said = refused(lambda: load([path]), str(path / RECORDS), "line 3")
    assert said == refused(lambda: list(read_records(path)))


def test_the_line_of_a_damaged_record_is_counted_over_all_batches(tmp_path, made, monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 2000)
    lines = [made.timed(name).line() for name in "abcdefg"]
    path = written(tmp_path, [*lines[:6], "{nonsense", lines[6]])
    with pytest.warns(DamagedRun, match="line 7 of .* can't be read"):
        assert load([path])["variant"].tolist() == list("abcdefg")


def test_a_torn_last_line_is_left_out_of_the_table(folder, made):
    folder.append(made.timed("whole"))
    with (folder.path / RECORDS).open("a") as more:
        more.write(made.timed("torn").line()[:-20])
    assert load([folder.path])["variant"].tolist() == ["whole"]


def test_no_record_makes_an_empty_table(folder):
    assert load([folder.path]).empty
    assert list(load([folder.path]).columns) == []


def test_the_garbage_collector_is_as_it_was(folder, made, refused):
    import gc

    folder.append(made.timed())
    load([folder.path])
    assert gc.isenabled()
    with (folder.path / RECORDS).open("a") as more:
        more.write("[]\n")
    refused(lambda: load([folder.path]))
    assert gc.isenabled()


def processor_s():
    """What this process and those that it has ended took of the processors."""
    return sum(os.times()[:4])


@pytest.mark.slow
def test_a_hundred_thousand_records_load_in_little_more_than_json_takes_to_read_them(
    tmp_path, made
):
    """Both processes counted, and not the time on the wall, which is others' too."""
    lines = "".join(record.line() + "\n" for record in made.sweep_like(2500))
    assert 1700 < len(lines) / 2500 < 2100
    for number in range(40):
        path = written(tmp_path / str(number % 4) / str(number), [])
        (path / RECORDS).write_text(lines)
    ratios = []
    for _ in range(3):
        start = processor_s()
        for _ in range(10):
            for line in lines.splitlines():
                json.loads(line)
        parsed, start = 4 * (processor_s() - start), processor_s()
        frame = load([tmp_path])
        ratios.append((processor_s() - start) / parsed)
        assert len(frame) == 100_000
        del frame
    assert min(ratios) < 2.5
