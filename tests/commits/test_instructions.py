"""Two commits by instructions: by a stand-in, and by valgrind itself over a planted change."""

import json
import shutil
import sys

import pytest

from attnbench import cli
from attnbench.core.checkout import Repository
from attnbench.core.machine import this_machine
from attnbench.core.settings import Settings
from attnbench.features.commits import instructions
from attnbench.features.commits.rows import plan_cells
from attnbench.sweep import engine
from tests.commits import plants

STAND_IN = """#!{python}
import json, os
from pathlib import Path
places = [Path(p) / "impls" / "takes.json" for p in os.environ["PYTHONPATH"].split(os.pathsep)]
takes = json.loads(next(file for file in places if file.exists()).read_text())
said, number = [], 0
for job in json.loads(Path("asked").read_text())["jobs"]:
    for noise in (0, 500, -1):
        number += 1
        count = round(1_000_000 * takes.get(job["variant"], 1)) + noise
        Path(f"counted.{{number}}").write_text(f"events: Ir\\n\\nsummary: 7\\ntotals: {{count}}\\n")
    said.append({{"files": [number - 2, number - 1, number]}})
Path("answer").write_text(json.dumps(said))
"""
TWICE = """
_once = build
def build(problem):
    attend = _once(problem)
    def twice(q, k, v):
        return (attend(q, k, v) + attend(q, k, v)) / 2
    return twice
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A valgrind that knows how many instructions a commit's variants take."""
    (tmp_path / "bin").mkdir()
    for name in instructions.NEEDED:
        (tmp_path / "bin" / name).write_text(STAND_IN.format(python=sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


def counted(root, head, asked=(), base="main", opened=None, grid=plants.GRID):
    ends = plants.ends(root, base, head)
    where = Repository(root)
    cells = plan_cells(*ends, asked, grid, this_machine(), where).cells
    found = instructions.count(ends, cells, opened or plants.Opened(), where)
    return {cell.variant: cell for cell in found}


@pytest.mark.parametrize(
    ("base", "head", "change", "status"),
    [("main", "slower", 0.05, 0), ("main", "wrong", None, 1), ("wrong", "main", None, 0)],
)
def test_what_passes_the_gate_is_counted(repository, stand_in, base, head, change, status):
    cells = counted(repository, head, base=base)
    assert (cells["einsum"].base, cells["einsum"].head) == (1_000_000, 1_000_000)
    assert cells["matmul"].change == (change and pytest.approx(change))
    whys = cells["matmul"].why_base, cells["matmul"].why_head
    assert whys == tuple("wrong: row 3 is off" * (side == "wrong") for side in (base, head))
    assert instructions.exit_status([*cells.values()]) == status


def test_the_verb_says_it_as_json(repository, stand_in, monkeypatch, capsys):
    monkeypatch.chdir(repository)
    monkeypatch.setattr(engine, "open_worker", lambda *_, **__: plants.Opened())
    words = "compare main slower --instructions --variant matmul --phase forward --json"
    assert cli.main(["history", *words.split()]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert (cell["base"], cell["head"]) == (1_000_000, 1_050_000)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_sees_work_that_is_done_twice_and_nothing_else(tmp_path):
    root = plants.make(tmp_path / "repository")
    plants.commit(root, "twice", plants.with_("matmul.py", TWICE))
    opened = engine.open_worker(Settings(threads=1), 0, 0.01)
    grid = plants.GRID.with_(seq=("128",), heads=(4,))
    cells = counted(root, "twice", opened=opened, grid=grid)
    assert 0.9 < cells["matmul"].change < 1.2
    assert abs(cells["einsum"].change) < 0.001
