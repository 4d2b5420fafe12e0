"""The environments of commits, and asv itself over a small repository: whose ruler, whose impls."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv.environment import EnvironmentUnavailable
from asv.util import UserError

from attnbench.history import command, environment, machine
from attnbench.history.environment import LINK, RUNNING, Shared, shared_folders
from impls.asked import CantBeDone

CHECKOUT = Path(__file__).resolve().parents[2]


def configured(folder):
    """What an environment asks of asv's configuration."""
    return SimpleNamespace(
        env_dir=str(folder / ".asv"), repo_subdir="", install_timeout=60, project="attnbench",
        default_benchmark_timeout=60, build_command=None, install_command=None,
        uninstall_command=None, build_cache_size=2,
    )  # fmt: skip


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
        "site-packages", "dist-packages",
    )  # fmt: skip
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
    asked = command.handed_on(given)
    assert (asked.quick, asked.bench, asked.energy) == (True, ("x",), True)
    name = environment.Machine.hardcoded_machine_name
    assert name in json.loads((tmp_path / ".asv-machine.json").read_text())


def test_a_machine_file_that_cannot_be_read_is_said_as_asv_says_it(monkeypatch):
    def damaged():
        raise CantBeDone("asv's machine file is no JSON")

    monkeypatch.setattr(machine, "ensure_machine", damaged)
    with pytest.raises(UserError, match="is no JSON"):
        environment._hand_on(["run"], Namespace(), {})


def test_arguments_that_are_another_programs_are_left_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pytest", "no-such-command", "-q"])
    monkeypatch.delenv(command.VARIABLE, raising=False)
    environment.setup()
    assert command.VARIABLE not in os.environ


def test_a_processors_counter_counts_only_where_it_can_be_read(tmp_path, monkeypatch):
    assert not environment._counts_energy(tmp_path)
    (tmp_path / "intel-rapl:0").mkdir()
    assert not environment._counts_energy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1")
    assert environment._counts_energy(tmp_path)
    monkeypatch.setattr(os, "access", lambda file, how: False)
    assert not environment._counts_energy(tmp_path)


# ---- asv itself ------------------------------------------------------------------------------

FILES = ("impls", "attnbench", "benchmarks", "asv.conf.json")
MARK = """
import json, os, attnbench, attnbench.record
from pathlib import Path
with open(os.environ["PROOF"], "a") as proof:
    said = [os.environ["ASV_COMMIT"], {word!r}, __file__, attnbench.__file__,
            attnbench.record.PROTOCOL]
    proof.write(json.dumps(said) + "\\n")
"""
LARGER = """
import torch
_plain = build
def build(problem):
    attend = _plain(problem)
    def larger(q, k, v):
        spare = torch.zeros(1 << 20)
        return attend(q, k, v)
    return larger
"""
WRONG = """
_right = build
def build(problem, **options):
    attend = _right(problem, **options)
    return lambda q, k, v: attend(q, k, v) * 1.5
"""
GRID = """
PRESETS["history"] = Preset("a few", ("matmul", "sdpa", "chunked"), seq=("16",), heads=(1,),
                            head_dim=(8,), phase=("forward",), budget=0.01)
"""


class Repository:
    """A checkout with a history, and asv in it."""

    def __init__(self, folder):
        self.root, self.proof = folder / "repository", folder / "proof"
        self.environment = {
            **os.environ, "HOME": str(folder), "PROOF": str(self.proof), "GIT_CONFIG_GLOBAL": "",
            **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER")
               for what in ("NAME", "EMAIL")},
        }  # fmt: skip
        self.environment.pop(command.VARIABLE, None)
        self.root.mkdir()
        for name in FILES:
            source = CHECKOUT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            extra = {"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}
            copy(source, self.root / name, **extra)
        self.add("attnbench/sweep/presets.py", GRID)
        self.git("init", "-q", "-b", "main")

    def git(self, *words):
        done = subprocess.run(["git", *words], cwd=self.root, env=self.environment, check=True,
                              capture_output=True, text=True)  # fmt: skip
        return done.stdout.strip()

    def add(self, file, text):
        with (self.root / file).open("a") as opened:
            opened.write(text)

    def commit(self, subject):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def asv(self, *words, status=0):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "asv", *words], cwd=self.root, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def results(self, sha):
        """What asv keeps of a commit: by benchmark, variant and figure."""
        (file,) = (self.root / "results" / "asv").glob(f"*/{sha[:8]}-shared-*.json")
        kept = json.loads(file.read_text())
        columns = kept["result_columns"]
        return {
            name: dict(zip(columns, row, strict=False)) for name, row in kept["results"].items()
        }

    def figure(self, sha, figure):
        """Values by variant."""
        row = self.results(sha)[f"attention.{figure}"]
        if row["result"] is None:
            return {}
        return {v.strip("'"): x for v, x in zip(row["params"][0], row["result"], strict=True)}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Commits measured by one ``asv run``: the repository, their hashes, and what asv said."""
    found = Repository(tmp_path_factory.mktemp("history"))
    shas = {}
    found.add("impls/dense/matmul.py", MARK.format(word="first"))
    shas["first"] = found.commit("the first")
    found.add("impls/dense/matmul.py", LARGER + MARK.format(word="larger"))
    found.add("attnbench/record.py", "raise RuntimeError('this is the ruler of a commit')\n")
    found.add("benchmarks/attention.py", "raise RuntimeError('this is the suite of a commit')\n")
    shas["larger"] = found.commit("more memory, and another ruler")
    found.add("impls/dense/sdpa.py", "raise RuntimeError('it is not finished')\n")
    found.add("impls/dense/chunked.py", WRONG)
    shas["broken"] = found.commit("a variant that is wrong, and one that can't be loaded")
    spec = found.root / "impls" / "spec.py"
    spec.write_text(spec.read_text().replace("\nINTERFACE = ", "\nINTERFACE = 99"))
    shas["contract"] = found.commit("another contract")
    found.git("checkout", "-q", shas["first"], "--", "impls")
    (found.root / "impls" / "asked.py").rename(found.root / "impls" / "words.py")
    for file in (found.root / "impls").rglob("*.py"):
        file.write_text(file.read_text().replace("impls.asked", "impls.words"))
    shas["older"] = found.commit("a table that calls things otherwise")
    (found.root / "impls" / "words.py").unlink()
    shas["torn"] = found.commit("a table that can't be loaded")
    shutil.rmtree(found.root / "impls")
    shas["bare"] = found.commit("nothing to measure")
    found.git("checkout", "-q", shas["first"], "--", *FILES)
    found.add("attnbench/record.py", "\nPROTOCOL = 77\n")  # no commit has this ruler
    hashes = found.root.parent / "hashes"
    order = ("contract", "bare", "older", "torn", "first", "larger", "broken")
    hashes.write_text("\n".join(shas[name] for name in order))
    told = found.asv("run", f"HASHFILE:{hashes}", "--show-stderr", "--record-samples", status=2)
    return found, shas, told


@pytest.mark.slow
def test_the_ruler_is_the_checkouts_and_what_is_measured_the_commits(history):
    found, shas, _ = history
    lines = [json.loads(line) for line in found.proof.read_text().splitlines()]
    words = {sha: {w for s, w, *_ in lines if s == sha} for sha in shas.values()}
    assert words[shas["first"]] == {"first"}
    assert words[shas["larger"]] == words[shas["broken"]] == {"first", "larger"}
    for _, _, impls_file, ruler_file, protocol in lines:
        assert found.root not in Path(impls_file).parents
        assert Path(ruler_file) == found.root / "attnbench" / "__init__.py"
        assert protocol == 77
    for name in ("first", "larger"):
        assert {row["version"] for row in found.results(shas[name]).values()} == {"protocol 77"}


@pytest.mark.slow
def test_the_figures_are_those_of_each_commit(history):
    found, shas, _ = history
    before, after = (found.figure(shas[name], "memory") for name in ("first", "larger"))
    assert after["matmul"] - before["matmul"] == pytest.approx(4 << 20, rel=0.01)
    assert {v: x for v, x in after.items() if v != "matmul"} == {
        v: x for v, x in before.items() if v != "matmul"
    }
    for figure in ("time", "error"):
        assert all(0 < x < 1 for x in found.figure(shas["first"], figure).values())


@pytest.mark.slow
def test_the_medians_and_intervals_are_asvs_own_of_the_samples(history):
    found, shas, _ = history
    row = found.results(shas["first"])["attention.time"]
    for index, samples in enumerate(row["samples"]):
        assert len(samples) == row["stats_repeat"][index] >= 7
        assert min(samples) <= row["result"][index] <= max(samples)


@pytest.mark.slow
def test_a_variant_that_fails_costs_its_own_rows_and_is_never_given_a_time(history):
    found, shas, told = history
    for figure in ("time", "memory", "error"):
        values = found.figure(shas["broken"], figure)
        assert values["matmul"] > 0
        assert values["sdpa"] is None
        assert values["chunked"] is None
    assert "it is not finished" in told
    assert "chunked at 16, forward, is wrong: " in told


@pytest.mark.slow
def test_a_commit_of_another_contract_or_without_impls_is_skipped_in_a_sentence(history):
    found, shas, told = history
    for name in ("contract", "bare"):
        values = found.figure(shas[name], "time").values()
        assert len(values) == 3
        assert all(x != x for x in values), "skipped, not failed: NaN and not None"
    assert f"the table of commit {shas['contract'][:8]} has version 99" in told
    assert f"commit {shas['bare'][:8]} has no folder impls" in told


@pytest.mark.slow
def test_a_table_that_the_ruler_cannot_ask_is_skipped_and_one_that_is_broken_fails(history):
    found, shas, told = history
    skipped, failed = (found.results(shas[n])["attention.time"] for n in ("older", "torn"))
    assert len(skipped["result"]) == 3
    assert all(x != x for x in skipped["result"])
    assert failed["result"] is None
    said = f"commit {shas['older'][:8]} lacks what this attnbench asks of a table (No module named"
    assert said in told
    assert "No module named 'impls.words'" in told


@pytest.mark.slow
def test_asv_compares_two_commits_and_makes_pages_of_all(history):
    found, shas, _ = history
    said = found.asv("compare", shas["first"], shas["larger"], "--factor", "1.5", "--split")
    worse = said.partition("got worse")[2]
    assert "attention.memory('matmul', 16, 'forward')" in worse
    assert "attention.memory('sdpa', 16, 'forward')" not in worse
    found.asv("publish")
    index = json.loads((found.root / "reports" / "asv" / "index.json").read_text())
    assert set(index["benchmarks"]) == {f"attention.{x}" for x in ("time", "memory", "error")}
    assert {"gpu", "torch", "cuda", "driver"} <= set(index["params"])


@pytest.mark.slow
def test_two_commits_in_turns_are_measured_anew_in_each_round(history):
    found, shas, _ = history
    found.proof.unlink()
    said = found.asv(
        "continuous", "--interleave-rounds", shas["first"], shas["larger"],
        "--bench", "time.*matmul", "--factor", "1000",
    )  # fmt: skip
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in said
    order = [json.loads(line)[0] for line in found.proof.read_text().splitlines()]
    runs = [sha for i, sha in enumerate(order) if i == 0 or order[i - 1] != sha]
    a, b = shas["first"], shas["larger"]
    assert runs in ([a, b, a], [b, a, b])  # there and back: the middle one twice in a row
    for sha in (a, b):
        row = found.results(sha)["attention.time"]
        samples = next(s for s in row["samples"] if s)
        assert len(samples) >= 14, "of both rounds"
        assert len(set(samples)) > len(samples) / 2, "and not one round's twice"
