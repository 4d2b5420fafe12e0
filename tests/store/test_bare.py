"""A checkout beside which the fast parser is not installed reads the same, if more slowly."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

import attnbench
from attnbench.store import frames, load

ROOT = Path(attnbench.__file__).parents[1]
RESULTS = ROOT / "results"
WITHOUT = """
import json, sys
sys.modules["msgspec"] = None
from pathlib import Path
from attnbench.store import find_runs, read_records
runs = list(find_runs([Path(sys.argv[1])]))
print(json.dumps([r.key for run in runs for r in read_records(run)]))
"""


def test_without_the_fast_parser_the_table_is_the_same(monkeypatch):
    fast = load([RESULTS])
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    plain = load([RESULTS])
    assert len(plain) == len(fast) > 200
    assert set(plain.columns) <= set(fast.columns)
    for name in ("status", "variant", "time.median_s", "problem.kv_len", "machine"):
        pd.testing.assert_series_equal(plain[name], fast[name])


def test_without_the_fast_parser_records_are_read_all_the_same():
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(RESULTS)], capture_output=True,
                          text=True, cwd=ROOT, check=True)  # fmt: skip
    keys = json.loads(done.stdout)
    assert len(keys) == len(load([RESULTS]))
    assert all(key.count("{") == 1 for key in keys)
