"""How far two visits lie apart, from runs that are made up."""

import json
from pathlib import Path

import pytest

from attnbench.sweep.presets import PRESETS
from impls.loading import load_file
from proofs.visit_kept import Kept, Place
from proofs.visits_apart import main

runs = load_file(Path(__file__).parents[1] / "report" / "page" / "runs.py")
PLACE = Place("nvidia-h200-a1b2c3", "cuda")


@pytest.fixture
def visit(tmp_path):
    """A visit's folder, with a run of each preset by the factor of its times."""

    def left(name, **factors):
        kept = Kept(tmp_path / name, tmp_path / f"results-{name}", PLACE)
        for preset, factor in factors.items():
            preset = preset.replace("_", "-")
            run = kept.results / "box" / f"20260101-{preset}"
            run.mkdir(parents=True)
            header = {**runs.HEADER, "grid": {"title": PRESETS[preset].title}}
            (run / "run.json").write_text(json.dumps(header))
            timed = [runs.timed(v, 0.1 * n * factor) for n, v in enumerate(("sdpa", "matmul"), 1)]
            (run / "records.jsonl").write_text("".join(r.line() + "\n" for r in timed))
        kept.write()
        return str(kept.folder)

    return left


@pytest.mark.parametrize(("factor", "status"), [(1 / 1.015, 0), (1.03, 1)])
def test_the_middle_cell_is_to_be_within_two_per_cent(visit, capsys, factor, status):
    a, b = visit("a", h200_quick=1.0, h200=1.0), visit("b", h200_quick=factor)
    assert main([a, b]) == status
    apart = 100 * (max(factor, 1 / factor) - 1)
    said = f"2 cells timed in both: the middle one {apart:.1f} % apart"
    assert said in capsys.readouterr().out.splitlines()[0]


def test_two_protocols_are_not_compared(visit, capsys, monkeypatch):
    a = visit("a", h200=1.0)
    monkeypatch.setitem(runs.HEADER, "protocol", 0)
    assert main([a, visit("b", h200=1.0)]) == 2
    assert "numbers of unlike protocols are never compared" in capsys.readouterr().out
