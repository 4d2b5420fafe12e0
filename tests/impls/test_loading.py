"""A row's code by its path: a file is run once, and is a module of its own."""

import pytest

from impls.loading import load_function
from tests.impls.row_files import write


def test_a_file_is_run_once_however_often_its_functions_are_asked_for(tmp_path):
    file = write(tmp_path / "once.py", "def f(): ...\ndef g(): return f")
    assert load_function(f"{file}:g")() is load_function(f"{file}:f")


def test_a_file_that_raised_is_run_again_when_it_is_asked_for_again(tmp_path):
    file = write(tmp_path / "mended.py", "raise ValueError")
    with pytest.raises(ValueError):
        load_function(f"{file}:f")
    write(file, "def f(): return 'mended now'")
    assert load_function(f"{file}:f")() == "mended now"


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "rows.py", f"def f(): return {folder!r}")
    assert [load_function(f"{tmp_path}/{x}/rows.py:f")() for x in "ab"] == ["a", "b"]
