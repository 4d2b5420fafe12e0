"""The environments of commits: what they share, and whose impls lie in them."""

import json
import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.environment import EnvironmentUnavailable
from asv.util import UserError

from attnbench.features.commits import asv, environment, suite
from attnbench.features.commits.environment import LINK, RUNNING, Shared, shared_folders
from impls.asked import CantBeDone

CHECKOUT = Path(__file__).resolve().parents[2]


def configured(folder):
    """What an environment asks of asv's configuration."""
    return SimpleNamespace(
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


def made(folder):
    """An environment on disk."""
    shared = Shared(configured(folder), RUNNING, {}, {})
    shared.create()
    return shared


def project(folder, text):
    """A commit's files: ``impls`` is a module that says a word."""
    (folder / "impls").mkdir(parents=True, exist_ok=True)
    (folder / "impls" / "__init__.py").write_text(f"WORD = {text!r}\n")
    return folder


def said(shared, code):
    return shared.run(["-P", "-c", code]).strip()


def test_the_packages_of_the_running_python_are_shared_and_no_projects_folder(tmp_path):
    site, dist = tmp_path / "a" / "site-packages", tmp_path / "b" / "dist-packages"
    for folder in (site, dist, tmp_path / "editable"):
        folder.mkdir(parents=True)
    missing = tmp_path / "c" / "site-packages"
    path = ["", ".", str(CHECKOUT), str(site), str(tmp_path / "editable"), str(dist), str(missing)]
    found = shared_folders(path)
    assert found[-2:] == [site, dist]
    assert Path(shutil.__file__).parent / "site-packages" in found or found[0].name in (
        "site-packages",
        "dist-packages",
    )
    assert all(f.is_dir() and f.name in environment.PACKAGES for f in found)


def test_the_commits_impls_win_over_those_that_are_installed_or_editable(tmp_path, monkeypatch):
    base = tmp_path / "base" / "site-packages"
    project(base, "installed")
    (base / "only_here.py").write_text("")
    (base / "editable.pth").write_text(f"{project(tmp_path / 'editable', 'editable')}\n")
    monkeypatch.syspath_prepend(str(base))
    monkeypatch.syspath_prepend(str(tmp_path / "editable"))
    shared = made(tmp_path)
    assert said(shared, "import only_here, impls; print(impls.WORD)") == "installed"
    shared._install_project(None, "b" * 40, project(tmp_path / "commit", "the commit's"))
    assert said(shared, "import only_here, impls; print(impls.WORD)") == "the commit's"
    shared._uninstall_project()
    shared._install_project(None, "c" * 40, tmp_path)  # a commit without impls gets none
    assert said(shared, "import impls; print(impls.WORD)") == "installed"


def test_an_environment_has_the_torch_of_the_python_that_runs_asv_and_no_pip(tmp_path):
    shared = made(tmp_path)
    look = "import importlib.util as u; print(u.find_spec('torch').origin, u.find_spec('pip'))"
    import torch

    assert said(shared, look).split()[0] == torch.__file__
    assert not list(Path(shared._path).glob("bin/pip*"))


def test_what_is_there_is_used_again_and_what_is_not_as_it_should_be_is_made_anew(tmp_path):
    shared = made(tmp_path)
    assert shared.name == f"shared-py{RUNNING}"
    assert made(tmp_path).check_presence()
    link = next(Path(shared._path).rglob(LINK))
    link.write_text("/elsewhere\n")  # as another interpreter would have left it
    assert not shared.check_presence()
    made(tmp_path)
    assert link.read_text() != "/elsewhere\n"
    (Path(shared._path) / "bin" / "python").unlink()
    assert not shared.check_presence()
    shutil.rmtree(shared._path)
    assert not shared.check_presence()


def test_another_python_and_a_matrix_of_requirements_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(EnvironmentUnavailable, match=r"no 2\.7; run asv with that Python, or take"):
        Shared(configured(tmp_path), "2.7", {}, {})
    with pytest.raises(EnvironmentUnavailable, match=r"installs no torch; take -E virtualenv"):
        Shared(configured(tmp_path), RUNNING, {"torch": "2.12"}, {})


def test_asv_is_told_of_the_machine_without_asking_and_its_processes_of_the_command(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(environment.Machine, "hardcoded_machine_name", None)
    monkeypatch.setattr(environment, "_counts_energy", lambda: True)
    given = {}
    environment._hand_on(["publish"], Namespace(), given)
    assert given == {}
    assert list(tmp_path.iterdir()) == []
    environment._hand_on(["run", "--quick"], Namespace(quick=True, bench=["x"]), given)
    asked = suite.current_request(given)
    assert (asked.quick, asked.bench, asked.energy) == (True, ("x",), True)
    name = environment.Machine.hardcoded_machine_name
    assert name in json.loads((tmp_path / ".asv-machine.json").read_text())


def test_a_machine_file_that_cannot_be_read_is_said_as_asv_says_it(monkeypatch):
    def damaged():
        raise CantBeDone("asv's machine file is no JSON")

    monkeypatch.setattr(asv, "ensure_machine", damaged)
    with pytest.raises(UserError, match="is no JSON"):
        environment._hand_on(["run"], Namespace(), {})


def test_arguments_that_are_another_programs_are_left_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pytest", "no-such-command", "-q"])
    monkeypatch.delenv(suite.VARIABLE, raising=False)
    environment.setup()
    assert suite.VARIABLE not in os.environ


def test_a_processors_counter_counts_only_where_it_can_be_read(tmp_path, monkeypatch):
    assert not environment._counts_energy(tmp_path)
    (tmp_path / "intel-rapl:0").mkdir()
    assert not environment._counts_energy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1")
    assert environment._counts_energy(tmp_path)
    monkeypatch.setattr(os, "access", lambda file, how: False)
    assert not environment._counts_energy(tmp_path)
