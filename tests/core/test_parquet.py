"""The one flat file of all records: there and back, and what can't be written."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import attnbench
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import export, load

ROOT = Path(attnbench.__file__).parents[1]


@pytest.fixture
def run(tmp_path, made):
    """A run as a sweep leaves it."""
    new = RunFolder.create(tmp_path / "results", "box", {})
    for each in made.sweep_like(80):
        new.append(each)
    new.close()
    return new.path


def test_a_table_comes_back_as_it_went(run, tmp_path):
    file = tmp_path / "all.parquet"
    assert export([run], file) == 80
    back, went = pd.read_parquet(file), load([run])
    assert list(back.columns) == list(went.columns)
    for name in went.columns:
        if name == "options.normalise":
            continue
        for one, other in zip(back[name], went[name], strict=True):
            if hasattr(one, "tolist"):
                assert one.tolist() == other, name
            else:
                assert one == other or (pd.isna(one) and pd.isna(other)), name
    assert {p.name for p in tmp_path.iterdir()} == {"results", "all.parquet"}


def test_an_option_of_several_types_becomes_text(run, tmp_path):
    export([run], tmp_path / "all.parquet")
    back, went = (
        x["options.normalise"] for x in (pd.read_parquet(tmp_path / "all.parquet"), load([run]))
    )
    assert set(map(repr, went.dropna())) == {"True", "'rows'"}
    assert set(back.dropna()) == {"true", "rows"}
    assert (back.isna() == went.isna()).all()


def test_samples_are_lists_of_numbers(run, tmp_path):
    from pyarrow import parquet

    export([run], tmp_path / "all.parquet")
    kinds = {field.name: str(field.type) for field in parquet.read_schema(tmp_path / "all.parquet")}
    assert kinds["time.samples_s"].startswith("list<")
    assert "double" in kinds["time.samples_s"]
    assert "string" in kinds["status"]


@pytest.mark.parametrize("place", ["no/such/all.parquet", "results", "/proc/all.parquet"])
def test_a_file_that_can_not_be_written_is_named(run, tmp_path, refused, place):
    refused(lambda: export([run], tmp_path / place), "can't write", place)
    assert {p.name for p in tmp_path.iterdir()} == {"results"}


def test_where_there_is_no_record_nothing_is_written(tmp_path, refused):
    RunFolder.create(tmp_path / "results", "box", {}).close()
    refused(lambda: export([tmp_path / "results"], tmp_path / "all.parquet"), "no record")
    assert not (tmp_path / "all.parquet").exists()


def test_without_pyarrow_it_says_how_to_install_it(run, tmp_path, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refused(lambda: export([run], tmp_path / "all.parquet"), "pyarrow", "pip install")
    assert "attnbench[parquet]" in said


def test_pyarrow_is_not_imported_unless_it_is_asked_for():
    code = "import sys, json, attnbench.core.store; print(json.dumps('pyarrow' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout) is False
