"""Repositories of kernels of one's own: their rows, of each commit, and nothing else's."""

import json
import os
import shutil
from contextlib import nullcontext

import pytest

from attnbench.core.checkout import BadCommit, Repository, find_commit
from attnbench.core.settings import Settings
from attnbench.features.commits import rounds
from attnbench.features.commits.rounds import CommitVerdict
from attnbench.features.commits.rows import own_names, rows_of
from attnbench.sweep.engine import open_worker
from tests import calling
from tests.commits import plants
from tests.repositories import PROJECT, ROWS, Kernels, git

LAYOUTS = ["flat", "src"]
SMALL = plants.GRID.with_(seq=("64",), variants=())


def declares_nothing(project):
    return project.partition("[project.entry-points")[0]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Installs a repository's distribution as pip does: a copy, or the work tree's place."""

    def install(kernels, editable=False, package=None):
        package, folder = package or kernels.package, tmp_path / "site"
        info = folder / "my_kernels-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 0.1\n")
        points = "[attnbench.variants]\nmykernels = mykernels.rows:ROWS\n"
        (info / "entry_points.txt").write_text(points)
        url = {"url": kernels.root.as_uri(), "dir_info": {"editable": editable}}
        (info / "direct_url.json").write_text(json.dumps(url))
        if not editable:
            shutil.copytree(package, folder / "mykernels")
        names = [] if editable else sorted(file.name for file in package.glob("*.py"))
        (info / "RECORD").write_text("".join(f"mykernels/{name},,\n" for name in names))
        path = [str(folder), *([str(package.parent)] if editable else [])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        for each in path:
            monkeypatch.syspath_prepend(each)
        return folder

    return install


@pytest.fixture(params=LAYOUTS)
def kernels(request, tmp_path, monkeypatch):
    """A repository whose second commit multiplies thirty times, where we stand."""
    made = Kernels(tmp_path / "my kernels", request.param)
    made.commit("thirty times", times=30)
    monkeypatch.chdir(made.root)
    return made


def compared(kernels, base="HEAD~1", head="HEAD", tables=(), asked=()):
    """As ``history compare`` does it, in few rounds of few calls."""
    opened = open_worker(Settings(threads=1), 0, 0.01, tables)
    return plants.compared(
        kernels.root, head, base, asked, opened=opened, grid=SMALL, tables=tables, margin=0.05
    )


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(rounds, "LOOKS", (2,))
    monkeypatch.setattr(rounds, "PAIRS", 4)


def verdicts(found):
    return {cell.variant: verdict for cell, verdict in found.judged()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "way"),
    [
        ("flat", "a copy is installed"),
        ("src", "the work tree is installed"),
        ("src", "table"),
    ],
    indirect=["kernels"],
)
def test_a_commit_that_is_slower_is_slower(kernels, few, site, way):
    """Whatever is installed besides: a copy of the slow commit, or the work tree."""
    tables = []
    if way == "table":
        (kernels.root / "kernels.py").write_text("import mykernels.core\n" + ROWS)
        (kernels.root / "pyproject.toml").write_text(declares_nothing(PROJECT))
        kernels.commit("rows in a file", times=1)
        kernels.commit("thirty times again", times=30)
        tables = ["kernels.py"]
    site(kernels, editable=way != "a copy is installed")
    (cell,) = compared(kernels, tables=tables).cells
    assert cell.comparison is not None, cell
    assert (cell.variant, cell.comparison.ratio > 3) == ("my.good", True)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["src"], indirect=True)
def test_a_commit_that_is_wrong_at_ragged_lengths_is_wrong(kernels, few):
    """Though it is faster at the length that is timed."""
    kernels.commit("fast, and off by one", times=1, ragged=True)
    found = compared(kernels)
    (cell,) = found.cells
    assert (verdicts(found), found.exit_status) == ({"my.good": CommitVerdict.WRONG}, 1), cell
    assert "key" in cell.why or "row" in cell.why


@pytest.mark.parametrize("kernels", ["flat"], indirect=True)
@pytest.mark.parametrize(
    ("file", "refused"),
    [("mykernels/new.py", True), ("build/lib/mykernels/core.py", False), ("notes.txt", False)],
)
def test_what_an_installer_leaves_is_no_change(kernels, file, refused):
    (kernels.root / file).parent.mkdir(parents=True, exist_ok=True)
    (kernels.root / file).write_text("# new")
    where, head = Repository(kernels.root), find_commit("HEAD", kernels.root)
    with pytest.raises(BadCommit, match=file) if refused else nullcontext():
        where.refuse_dirty([head])


@pytest.mark.parametrize("kernels", ["flat"], indirect=True)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["HEAD"], "compare two commits: 'attnbench history compare BASE HEAD'"),
        (["compare", "HEAD~1", "HEAD"], "has no rows in these commits"),
    ],
)
def test_a_repository_without_rows_is_refused_and_asv_is_for_a_clone(kernels, words, why):
    (kernels.root / "pyproject.toml").write_text(declares_nothing(PROJECT))
    kernels.commit("declares none")
    kernels.commit("nor does this")
    status, _, err = calling.asked("history", *words)
    assert status == 2 and why in err


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["flat"], indirect=True)
def test_rows_that_a_commit_lacks_are_not_those_that_are_installed(kernels, site):
    """The first of these commits has neither code nor entry point; both are installed, under the
    name that the checkout has."""
    site(kernels)
    git(kernels.root, "rm", "-rq", "mykernels", "pyproject.toml")
    git(kernels.root, "commit", "-qm", "nothing")
    git(kernels.root, "checkout", "-q", "HEAD~1", "--", "pyproject.toml")
    where = Repository(kernels.root)
    before, after = (rows_of(find_commit(n, kernels.root), where) for n in ("HEAD", "HEAD~1"))
    assert (before.own, after.own) == ([], ["my.good"])
    assert "my.good" not in before.rows
    with pytest.raises(BadCommit, match="has no rows"):
        own_names([before], where)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["flat"], indirect=True)
def test_code_that_is_not_the_commits_is_refused(kernels, site, monkeypatch):
    """A package in a folder of another name, found where it is installed or worked on."""
    git(kernels.root, "mv", "mykernels", "elsewhere")
    (kernels.root / "lib").mkdir()
    git(kernels.root, "mv", "elsewhere", "lib/mykernels")
    git(kernels.root, "commit", "-qm", "moved")
    where, head = Repository(kernels.root), find_commit("HEAD", kernels.root)
    with pytest.raises(BadCommit, match=r"declares rows in mykernels\.rows:ROWS, and has no such"):
        rows_of(head, where)
    (kernels.root / "kernels.py").write_text(ROWS)
    (kernels.root / "pyproject.toml").write_text(declares_nothing(PROJECT))
    git(kernels.root, "add", "--all")
    git(kernels.root, "commit", "-qm", "a row file")
    where, head = Repository(kernels.root, ("kernels.py",)), find_commit("HEAD", kernels.root)
    for place in (kernels.root / "lib", site(kernels, package=kernels.root / "lib" / "mykernels")):
        monkeypatch.setenv("PYTHONPATH", str(place))
        with pytest.raises(BadCommit, match=r"mykernels\.core is loaded from .*core\.py"):
            rows_of(head, where)
