"""The table of all records, a row each."""

import json

import pandas as pd
import pytest

from attnbench.core import store
from attnbench.core.disk import RECORDS
from attnbench.core.record import SCHEMA, DamagedRun
from attnbench.core.store import load, read_records
from tests.core.records import refused, timed, written
from tests.core.test_record import RUNS


def same(paths):
    """The table is what pandas makes of whole records."""
    rows = [{**r.to_dict(), "machine": p.parent.name} for p in paths for r in read_records(p)]
    pd.testing.assert_frame_equal(load(paths), pd.json_normalize(rows), check_like=True)


def test_a_table_is_what_json_normalize_makes(monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 10_000)  # of several pieces
    paths = [file.parent for file in RUNS[:2]]
    same(paths)
    assert load(paths).attrs == {"rows": [len(file.read_text().splitlines()) for file in RUNS[:2]]}


def test_a_record_of_an_older_form_has_what_was_added_since(tmp_path):
    old = json.loads(timed().line())
    for name in ("ranks", "node", "canary_s"):
        del old[name]
    turned = dict(reversed({**old, "variant": "turned", "schema": 1}.items()))
    path = written(tmp_path, [json.dumps(old), json.dumps(turned), timed("new").line()])
    same([path])
    assert load([path])["schema"].tolist() == [SCHEMA, 1, SCHEMA]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "null"])
def test_a_time_that_is_not_finite_is_taken_back(tmp_path, number):
    line = timed("odd", median=0.125).line().replace("0.125", number, 1)
    path = written(tmp_path, [timed().line(), line])
    with pytest.warns(DamagedRun, match="line 2 .*no finite number"):
        same([path])
        assert load([path])["time.median_s"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": SCHEMA + 1}, {"schema": None}, {"surprise": 1}, {"status": "fine"},
        {"status": ["measured"]}, {"status": "failed"}, {"time": {"n": 1}}, {"time": 3},
        {"status": "wrong", "reason": "row 1"}, {"memory": {"x": 1}}, {"problem": {"q_len": 1.5}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_record_is_refused_as_reading_records_refuses_it(tmp_path, change):
    bad = json.dumps({**json.loads(timed().line()), **change})
    path = written(tmp_path, [timed("a").line(), timed("b").line(), bad, timed("c").line()])
    message = refused(lambda: load([path]), str(path / RECORDS), "line 3")
    assert message == refused(lambda: list(read_records(path)))


def test_the_line_of_a_damaged_record_is_counted_over_all_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 2000)
    lines = [timed(name).line() for name in "abcdefg"]
    path = written(tmp_path, [*lines[:6], "{nonsense", lines[6]])
    with pytest.warns(DamagedRun, match="line 7 of .* can't be read"):
        assert load([path])["variant"].tolist() == list("abcdefg")
