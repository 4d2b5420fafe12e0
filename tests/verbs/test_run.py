"""What ``attnbench run`` says when all is measured."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.features.run.verb import _conclude
from impls.loading import load_file

runs = load_file(Path(__file__).parents[1] / "report" / "page" / "runs.py")


@pytest.mark.parametrize(("apart", "said"), [(0.04, False), (0.2, True)])
def test_twins_that_came_out_farther_apart_than_the_margin_are_told(capsys, apart, said):
    twins = [
        runs.timed(name, median, kernels=["flash_fwd"])
        for name, median in (("one", 0.1), ("other", 0.1 * (1 + apart)))
    ]
    _conclude(twins, SimpleNamespace(header=runs.HEADER, path=Path("box/run")), as_json=False)
    out = capsys.readouterr().out
    assert ("one and other were one and the same kernel" in out) == said
    assert "the one to use of 2 that tie" in out
