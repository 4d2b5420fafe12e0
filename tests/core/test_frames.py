"""The table of all records: what json_normalize makes of them, in a fraction of its time."""

import gc
import json
import os
import warnings

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbench.core import store
from attnbench.core.disk import HEADER, RECORDS
from attnbench.core.record import SCHEMA, DamagedRun
from attnbench.core.store import load, read_records
from tests.core.records import record, refused, timed, written
from tests.core.test_record import RUNS, records


def same(paths):
    """The table is what pandas makes of whole records."""
    rows = [{**r.to_dict(), "machine": p.parent.name} for p in paths for r in read_records(p)]
    pd.testing.assert_frame_equal(load(paths), pd.json_normalize(rows), check_like=True)


def test_a_table_is_what_json_normalize_makes(monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 10_000)  # of several pieces
    paths = [file.parent for file in RUNS[:2]]
    same(paths)
    assert load(paths).attrs == {"rows": [len(file.read_text().splitlines()) for file in RUNS[:2]]}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records(), max_size=5))
def test_any_records_make_the_table_that_json_normalize_makes(tmp_path, some):
    some = [r.with_(variant=f"v{n}") for n, r in enumerate(some)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRun)  # any time is none that was measured
        same([written(tmp_path, [r.line() for r in some])])


def test_an_option_of_any_types_comes_as_json_normalize_has_it(tmp_path):
    for values in (
        [1, 2.5], [1, "two"], [None, 1], [True, None], [True, 1], [2**70, 1], [2**63, None],
        [[1], None], [{}, 1], [{"x": {"y": 1}}, {"x": 2}], [{"x": [{}]}, {}],
    ):  # fmt: skip
        some = [record(f"v{n}", options={"o": value, "p": 1}) for n, value in enumerate(values)]
        for each in (some, [*some, record()]):
            same([written(tmp_path, [r.line() for r in each])])


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


def test_what_is_no_record_is_refused_as_reading_records_refuses_it(tmp_path):
    for change in (
        {"schema": SCHEMA + 1}, {"schema": None}, {"surprise": 1}, {"status": "fine"},
        {"status": ["measured"]}, {"status": "failed"}, {"time": {"n": 1}}, {"time": 3},
        {"status": "wrong", "reason": "row 1"}, {"memory": {"x": 1}}, {"problem": {"q_len": 1.5}},
    ):  # fmt: skip
        bad = json.dumps({**json.loads(timed().line()), **change})
        path = written(tmp_path, [timed("a").line(), timed("b").line(), bad, timed("c").line()])
        said = refused(lambda path=path: load([path]), str(path / RECORDS), "line 3")
        assert said == refused(lambda path=path: list(read_records(path)))
        assert gc.isenabled(), "as it was"


def test_the_line_of_a_damaged_record_is_counted_over_all_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BATCH_BYTES", 2000)
    lines = [timed(name).line() for name in "abcdefg"]
    path = written(tmp_path, [*lines[:6], "{nonsense", lines[6]])
    with pytest.warns(DamagedRun, match="line 7 of .* can't be read"):
        assert load([path])["variant"].tolist() == list("abcdefg")


@pytest.mark.slow
def test_many_records_load_in_little_more_than_json_takes_to_read_them(tmp_path):
    """By the processor's time, and not the time on the wall, which is others' too."""
    lines = max((file.read_text() for file in RUNS), key=len)
    for number in range(27):
        path = written(tmp_path / str(number % 4) / str(number), [])
        (path / HEADER).write_text('{"schema": 1}')
        (path / RECORDS).write_text(lines)
    ratios = []
    while len(ratios) < 3 and min(ratios, default=9.0) >= 4.0:
        start = sum(os.times()[:4])
        for _ in range(27):
            for line in lines.splitlines():
                json.loads(line)
        parsed = sum(os.times()[:4])
        frame = load([tmp_path])
        ratios.append((sum(os.times()[:4]) - parsed) / (parsed - start))
        assert len(frame) == 27 * len(lines.splitlines()) > 25_000
    assert min(ratios) < 4.0  # 2.3 to 3.2, by the machine
