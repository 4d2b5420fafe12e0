"""The environments of commits: what they share, and whose impls lie in them."""

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from asv.util import UserError

from attnbench.core import machine
from attnbench.features.commits import asv_interface, environment, suite
from attnbench.features.commits.environment import RUNNING, Shared
from impls.errors import CantBeDone


def made(folder, python=RUNNING, requirements=()):
    """An environment on disk."""
    conf = SimpleNamespace(
        env_dir=str(folder / ".asv"),
        repo_subdir="",
        install_timeout=60,
        project="attnbench",
        default_benchmark_timeout=60,
        build_command=None,
        install_command=None,
        uninstall_command=None,
        build_cache_size=2,
    )
    shared = Shared(conf, python, dict(requirements), {})
    shared.create()
    return shared


def project(folder, text):
    """A commit's files: ``impls`` is a module that says a word."""
    (folder / "impls").mkdir(parents=True, exist_ok=True)
    (folder / "impls" / "__init__.py").write_text(f"WORD = {text!r}\n")
    return folder


def test_the_commits_impls_win_over_those_that_are_installed_or_editable(tmp_path, monkeypatch):
    base = tmp_path / "base" / "site-packages"
    project(base, "installed")
    (base / "editable.pth").write_text(f"{project(tmp_path / 'editable', 'editable')}\n")
    monkeypatch.syspath_prepend(str(base))
    monkeypatch.syspath_prepend(str(tmp_path / "editable"))
    shared = made(tmp_path)

    def word():
        return shared.run(["-P", "-c", "import impls; print(impls.WORD)"]).strip()

    assert word() == "installed"
    shared._install_project(None, "b" * 40, project(tmp_path / "commit", "the commit's"))
    assert word() == "the commit's"
    shared._uninstall_project()
    shared._install_project(None, "c" * 40, tmp_path)  # a commit without impls gets none
    assert word() == "installed"
    look = "import importlib.util as u; print(u.find_spec('torch').origin)"
    assert shared.run(["-P", "-c", look]).strip() == torch.__file__
    assert not list(Path(shared._path).glob("bin/pip*"))


def test_asv_is_told_of_the_machine_without_asking_and_its_processes_of_the_command(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(environment.Machine, "hardcoded_machine_name", None)
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    assert not environment._counts_energy()
    counter.parent.mkdir()
    counter.write_text("1")
    (counter.parent / "name").write_text("psys")
    assert not environment._counts_energy()
    (counter.parent / "name").write_text("package-0")
    given = {}
    environment._hand_on(Namespace(quick=True, bench=["x"]), given)
    asked = suite.current_request(given)
    assert (asked.quick, asked.bench, asked.energy) == (True, ("x",), True)
    name = environment.Machine.hardcoded_machine_name
    assert name in json.loads((tmp_path / ".asv-machine.json").read_text())

    def damaged():
        raise CantBeDone("asv's machine file is no JSON")

    monkeypatch.setattr(asv_interface, "ensure_machine", damaged)
    with pytest.raises(UserError, match="is no JSON"):
        environment._hand_on(Namespace(), {})
