"""The check of the import floors: the tree passes, and each kind of violation is found."""

from pathlib import Path

import pytest

from proofs.floors import House, main

ROOT = Path(__file__).resolve().parent.parent

SOUND = {
    "impls/__init__.py": "def table():\n    from impls import outside",
    "impls/outside.py": "from impls import table\nfrom impls.spec import Variant",
    "impls/spec.py": "if TYPE_CHECKING:\n    from impls.problem import Problem",
    "impls/problem.py": "from impls.masks import Mask\nfrom impls.spec import DTYPES",
    "impls/masks.py": "from impls.spec import MASK_KINDS\ndef flex():\n    import torch",
    "impls/dense/__init__.py": "from impls.spec import Variant",
    "impls/dense/common.py": "import torch\nfrom impls.problem import Problem",
    "impls/dense/cost.py": "from impls.problem import Problem",
    "impls/dense/sdpa.py": "from torch import nn\nfrom .common import Attend\nfrom . import cost",
    "impls/dense/bmm.py": "from impls.dense.tiles import Tile\ndef build(problem): ...",
    "impls/dense/tiles.py": "import torch\ndef rebuild(): ...",
    "impls/linear/__init__.py": "",
    "impls/linear/elu.py": "import torch",
    "attnbench/__init__.py": "",
    "attnbench/core/record.py": "from attnbench import __version__",
    "attnbench/gate/oracle.py": "import torch\nfrom attnbench.core.record import Error",
    "attnbench/gate/findings.py": "import math",
    "attnbench/sweep/plan.py": "from impls import table\nfrom attnbench.gate import findings",
    "attnbench/sweep/worker.py": "def run():\n    from attnbench.gate.oracle import compare",
    "attnbench/answer/best.py": "if TYPE_CHECKING:\n    from torch import Tensor",
    "attnbench/features/quality/recall_worker.py": "import torch",
    "attnbench/cli.py": "from attnbench.sweep import plan",
    "attnbench/__main__.py": "from attnbench.cli import main",
    "benchmarks/suite.py": "from attnbench.sweep.worker import run",
}


def violations(root: Path, changed: dict[str, str]) -> list[str]:
    """What is wrong with the sound house once some of its files hold something else."""
    for name, text in (SOUND | changed).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return House(root).violations()


def test_the_tree_stands(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(ROOT)
    said = capsys.readouterr().out
    assert status == 0, said
    modules = sum(1 for top in ("impls", "attnbench") for _ in (ROOT / top).rglob("*.py"))
    assert int(said.split()[1]) >= modules
    assert int(said.split()[3]) > modules


def test_a_fallen_house_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = violations(tmp_path, {"attnbench/core/record.py": "import torch\nimport attnbench.cli"})
    assert main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == wrong
    assert [line.split()[0] for line in wrong[:2]] == [
        f"attnbench/core/record.py:{n}:" for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        (
            "impls/spec.py",
            "import attnbench.core.record",
            "attnbench.core does not stand below",
        ),
        ("impls/problem.py", "def f():\n import impls.dense", "impls.dense does not stand below"),
        ("impls/dense/sdpa.py", "import impls.linear.elu", "impls.linear does not stand below"),
        (
            "impls/dense/sdpa.py",
            "import impls.dense.bmm",
            "it may import what holds no variant",
        ),
        ("impls/dense/sdpa.py", "from . import ROWS", "it may import what holds no variant"),
        ("attnbench/gate/oracle.py", "from attnbench import cli", "attnbench.cli does not stand"),
        (
            "attnbench/core/record.py",
            "if TYPE_CHECKING:\n  from attnbench.gate.oracle import compare",
            "attnbench.gate does not stand below attnbench.core",
        ),
    ],
)
def test_an_import_that_does_not_point_down(
    tmp_path: Path, file: str, text: str, found: str
) -> None:
    (violation,) = violations(tmp_path, {file: text})
    assert violation.startswith(f"{file}:{text.count(chr(10)) + 1}: ")
    assert found in violation


@pytest.mark.parametrize("file", ["attnbench/drawer.py", "attnbench/new/a.py", "impls/drawer.py"])
def test_a_module_in_no_room(tmp_path: Path, file: str) -> None:
    name = file.removesuffix(".py").replace("/", ".")
    assert violations(tmp_path, {file: ""}) == [f"{name}: stands on no floor"]


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("attnbench/core/record.py", "import torch.nn", "must load without torch"),
        ("attnbench/cli.py", "try:\n  import torch\nfinally: ...", "must load without torch"),
        ("attnbench/cli.py", "def f():\n  from torch import nn", "must do without torch"),
        ("impls/dense/__init__.py", "import torch", "must load without torch"),
        (
            "attnbench/sweep/engine.py",
            "from attnbench.gate import oracle",
            "must load without torch",
        ),
    ],
)
def test_torch_where_there_may_be_none(tmp_path: Path, file: str, text: str, found: str) -> None:
    (violation,) = violations(tmp_path, {file: text})
    assert found in violation


@pytest.mark.parametrize("folder", ["attnbench/core", "attnbench/gate"])
def test_a_circle(tmp_path: Path, folder: str) -> None:
    package = folder.replace("/", ".")
    one, two = "statistics", "machine"
    changed = {
        f"{folder}/{one}.py": f"from {package} import {two}",
        f"{folder}/{two}.py": f"from {package}.{one} import mean",
    }
    (violation,) = violations(tmp_path, changed)
    assert "a circle: " in violation
    assert f"{package}.{one} imports {package}.{two}" in violation
    later = {**changed, f"{folder}/{two}.py": f"def f():\n  from {package}.{one} import mean"}
    assert violations(tmp_path, later) == []
