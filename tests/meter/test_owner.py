"""Whose code a file is, however it is spelled: links, packages inside Python's own folder, code
without its source."""

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import attnbench
import impls
from attnbench.meter import audit
from attnbench.meter.audit import owner_of, owner_of_frame

STDLIB = Path(contextlib.__file__).parent


@pytest.fixture(autouse=True)
def nothing_remembered():
    yield
    audit.real.cache_clear()
    audit.owner_of.cache_clear()


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (attnbench.__file__, "attnbench"),
        (torch.nn.__file__, "torch"),
        (contextlib.__file__, "Python"),
        (pytest.__file__, "library"),
        (impls.__file__, "other"),
        (f"{STDLIB}/site-packages/impls/dense/sdpa.py", "library"),
        (f"{Path(attnbench.__file__).parents[1]}/attnbench_rows/mine.py", "other"),
        ("<frozen os>", "Python"),
        ("<frozen mine>", "other"),
        ("<string>", "other"),
    ],
)
def test_a_file_is_known_by_its_folder_through_a_link_too(tmp_path, file, whose):
    assert owner_of(file) == whose
    if Path(file).exists():
        tmp_path.joinpath("link").symlink_to(Path(file).parent)
        tmp_path.joinpath("one.py").symlink_to(file)
        assert owner_of(str(tmp_path / "link" / Path(file).name)) == whose
        assert owner_of(str(tmp_path / "one.py")) == whose


@pytest.mark.parametrize(("place", "whose"), [("python", "Python"), ("mine", "other")])
def test_code_without_its_source_is_known_by_its_module(tmp_path, monkeypatch, place, whose):
    monkeypatch.setattr(audit, "_PYTHON", (f"{tmp_path}/python/",))
    source = tmp_path / "away.py"
    module = ModuleType("away")
    module.__file__ = str(tmp_path / place / "away.pyc")
    monkeypatch.setitem(sys.modules, "away", module)
    exec(compile("import sys\nframe = sys._getframe()", str(source), "exec"), vars(module))
    assert owner_of_frame(module.frame) == whose
    monkeypatch.delitem(sys.modules, "away")
    assert owner_of_frame(module.frame) == "other"  # its globals are no module's


def test_a_file_of_a_variant_is_not_known_by_the_module_whose_names_it_takes(tmp_path):
    file, names = tmp_path / "mine.py", vars(os)
    file.write_text("")
    exec(compile("import sys\n_frame = sys._getframe()", str(file), "exec"), names)
    assert owner_of_frame(names.pop("_frame")) == "other"
