"""Commits that change one thing each, and workers that do as their commit's file says."""

import json
from contextlib import contextmanager
from pathlib import Path

import impls
from attnbench.core.checkout import Repository, find_commit
from attnbench.core.machine import this_machine
from attnbench.features.commits.rounds import compare_in_rounds
from attnbench.features.commits.rows import CellPlan, plan_cells
from attnbench.sweep.engine import Refused
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from tests.calling import ROOT
from tests.repositories import copied, git

GRID = Preset("one problem", ("matmul", "einsum"), seq=("16",), heads=(1,), phase=("forward",))
FRESH = '\n\nROWS.append(_row("fresh", "new", "matmul:build", "two_matrices"))\n'
GONE = '\n\nROWS[:] = [row for row in ROWS if row.name != "einsum"]\n'
NARROW = '\n\nROWS[:] = [r for r in ROWS if r.name != "einsum"]\nROWS.append(_row("einsum", "t", '
NARROW += '"einsum:build", "einsum", masks=("none",)))\n'


def commit(root, branch, files, base="main"):
    """A commit on a branch of its own, with what some variants take."""
    git(root, "checkout", "--quiet", "-b", branch, base)
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "-m", branch)
    git(root, "checkout", "--quiet", base)


def with_(name, more):
    return {f"impls/dense/{name}": (ROOT / "impls" / "dense" / name).read_text() + more}


def rows_alone(folder, names):
    """What is not copied: of families that nobody calls here all but their rows."""
    some = Path(folder).name not in ("impls", "dense")
    return [name for name in names if name == "__pycache__" or (some and name != "__init__.py")]


def make(root):
    """Branches that change one thing each; ``takes.json`` is what the workers go by."""
    copied(ROOT / "impls", root / "impls", ignore=rows_alone)
    git(root, "init", "--quiet", "--initial-branch", "main")
    (root / "impls" / "takes.json").write_text("{}")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "as it is")
    takes = {
        "slower": {"matmul": 1.05},
        "faster": {"matmul": 0.9},
        "same": {},
        "wrong": {"matmul": ["wrong", "row 3 is off"], "einsum": 1.0},
        "broken": {"matmul": ["failed", "it raised ModuleNotFoundError"]},
    }
    for branch, said in takes.items():
        commit(root, branch, {"impls/takes.json": json.dumps(said)})
    commit(root, "fresh", with_("__init__.py", FRESH))
    fails = {"impls/takes.json": json.dumps({"fresh": ["failed", "it raised"]})}
    commit(root, "fresh-fails", {**with_("__init__.py", FRESH), **fails})
    commit(root, "gone", with_("__init__.py", GONE))
    commit(root, "narrow", with_("__init__.py", NARROW))
    commit(root, "door", with_("__init__.py", "\n\nimport nowhere_to_be_found\n"))
    commit(root, "touched", with_("online.py", "\n\n# other\n"))
    return root


class Worker:
    """Takes a millisecond, or as many times that as its commit's file says."""

    def __init__(self, folder, luck=1.0):
        self.takes = json.loads((folder / "impls" / "takes.json").read_text())
        self.rows = {"matmul", "einsum", "online"}
        plate = (folder / "impls" / "dense" / "__init__.py").read_text()
        self.rows |= {"fresh"} if FRESH in plate else set()
        self.rows -= {"einsum"} if GONE in plate else set()
        self.narrow, self.luck, self.held = NARROW in plate, luck, ""
        self.places = self.samples = 0

    def hold(self, variant, problem):
        if variant not in self.rows:
            raise Refused(f"there is no variant {variant!r}")
        if variant == "einsum" and self.narrow:
            raise Refused("unsupported: einsum takes no causal mask", "unsupported")
        said = self.takes.get(variant, 1.0)
        if isinstance(said, list):
            raise Refused(f"{said[0]}: {said[1]}", said[0])
        self.held = variant
        return self

    def beside(self, folder):
        return type(self)(folder, self.luck)

    def fresh(self):
        self.places += 1

    def sample(self):
        self.samples += 1
        return 1e-3 * self.takes.get(self.held, 1.0) * self.luck


class Opened:
    """Opens stand-ins, and counts them."""

    def __init__(self, luck=(), kind=Worker):
        """``luck``: of each process in turn, how much slower it is."""
        self.folders, self.luck, self.kind, self.workers = [], list(luck), kind, []

    @contextmanager
    def __call__(self, folder):
        self.folders.append(folder)
        self.workers.append(self.kind(folder, self.luck.pop(0) if self.luck else 1.0))
        yield self.workers[-1]


def ends(root, base, head):
    return find_commit(base, root), find_commit(head, root)


def compared(root, head, base="main", asked=(), opened=None, grid=GRID, tables=(), **more):
    """As ``history compare`` does it: the tables of both commits are read."""
    both = ends(root, base, head)
    where = Repository(root, tuple(tables))
    plan = plan_cells(*both, asked, grid, this_machine(), where)
    more = {"margin": 0.01, "budget_s": 60.0, "repository": where, **more}
    return compare_in_rounds(*both, plan, opened or Opened(), **more)


def in_rounds(root, head, opened, *names, **more):
    """The same of cells that are known."""
    rows = Table({name: impls.table().rows[name] for name in names})
    cells = make_plan(rows, names, GRID, this_machine()).cells * more.pop("times", 1)
    more = {"margin": 0.01, "budget_s": 60.0, "repository": Repository(root), **more}
    return compare_in_rounds(*ends(root, "main", head), CellPlan(cells), opened, **more)
