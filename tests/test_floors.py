"""The check of the import floors: the tree passes, and each kind of violation is found."""

from pathlib import Path

import pytest

from proofs.floors import House, main

SOUND = {
    "impls/__init__.py": "def table():\n    from impls import outside",
    "impls/outside.py": "from impls import table\nfrom impls.spec import Variant",
    "impls/spec.py": "if TYPE_CHECKING:\n    from impls.problem import Problem",
    "impls/problem.py": "from impls.masks import Mask\nfrom impls.spec import DTYPES",
    "impls/masks.py": "from impls.spec import MASK_KINDS\ndef flex():\n    import torch",
    "impls/dense/__init__.py": "from impls.spec import Variant",
    "impls/dense/cost.py": "from impls.problem import Problem",
    "impls/dense/sdpa.py": "from torch import nn\nfrom . import cost",
    "impls/dense/bmm.py": "def build(problem): ...",
    "impls/linear/__init__.py": "",
    "impls/linear/elu.py": "import torch",
    "attnbench/__init__.py": "",
    "attnbench/core/record.py": "from attnbench import __version__",
    "attnbench/gate/oracle.py": "import torch\nfrom attnbench.core.record import Error",
    "attnbench/sweep/worker.py": "def run():\n    from attnbench.gate.oracle import compare",
    "attnbench/answer/best.py": "if TYPE_CHECKING:\n    from torch import Tensor",
    "attnbench/features/report/verb.py": "from attnbench.features.report import page",
    "attnbench/features/report/page.py": "",
    "attnbench/features/run/verb.py": "from attnbench.features.report.verb import report_of",
    "attnbench/cli.py": "import attnbench.sweep",
    "attnbench/__main__.py": "from attnbench.cli import main",
    "benchmarks/suite.py": "from attnbench.sweep.worker import run",
}


def violations(root: Path, changed: dict[str, str]) -> list[str]:
    """What is wrong with the sound house once some of its files hold something else."""
    for name, text in (SOUND | changed).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return House(root).violations()


RUN, REPORT = "attnbench/features/run/verb.py", "attnbench.features.report"
SHARED = "what two features share lies lower"
BELOW, ROWS, TORCH = "does not stand below", "it may import what holds no variant", "without torch"


def test_a_violation_is_found(tmp_path: Path) -> None:
    for file, text, found in (
        ("impls/spec.py", "import attnbench.core.record", f"attnbench.core {BELOW}"),
        ("impls/problem.py", "def f():\n import impls.dense", f"impls.dense {BELOW}"),
        ("impls/dense/sdpa.py", "import impls.linear.elu", f"impls.linear {BELOW}"),
        ("impls/dense/sdpa.py", "import impls.dense.bmm", ROWS),
        ("impls/dense/sdpa.py", "from . import ROWS", ROWS),
        ("attnbench/gate/oracle.py", "from attnbench import cli", f"attnbench.cli {BELOW}"),
        ("attnbench/drawer.py", "", "attnbench.drawer: stands on no floor"),
        ("attnbench/core/record.py", "import torch.nn", f"must load {TORCH}"),
        (RUN, f"from {REPORT}.verb import report_of, report", SHARED),
        (RUN, f"import {REPORT}.page", SHARED),
        (RUN, f"def f():\n  from {REPORT} import page", SHARED),
        (RUN, "from ..report import page", SHARED),
        ("attnbench/features/show/verb.py", f"from {REPORT}.verb import report_of", SHARED),
        ("attnbench/cli.py", "try:\n  import torch\nfinally: ...", f"must load {TORCH}"),
        ("attnbench/cli.py", "def f():\n  from torch import nn", f"must do {TORCH}"),
        ("attnbench/sweep/engine.py", "from attnbench.gate import oracle", f"must load {TORCH}"),
    ):
        (violation,) = violations(tmp_path, {file: text})
        assert found in violation
        (tmp_path / file).unlink()


def test_the_status_tells_what_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the tree itself ``proofs/floors.py`` is called before each commit."""
    assert violations(tmp_path, {}) == []
    assert (main(tmp_path), capsys.readouterr().out.split()[1]) == (0, str(len(SOUND)))
    (tmp_path / "attnbench/drawer.py").write_text("")
    assert main(tmp_path) == 1 and "stands on no floor" in capsys.readouterr().out


def test_a_circle(tmp_path: Path) -> None:
    one, two = "from attnbench.core import b", "from attnbench.core.a import mean"
    files = {"attnbench/core/a.py": one, "attnbench/core/b.py": two}
    (violation,) = violations(tmp_path, files)
    assert "a circle: " in violation
    assert "attnbench.core.a imports attnbench.core.b" in violation
    later = {**files, "attnbench/core/b.py": f"def f():\n  {two}"}
    assert violations(tmp_path, later) == []
