"""``attnbench profile``: what lies in its folder afterwards, wherever that goes."""

import json
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.sweep import engine
from impls.loading import load_file

profiles = load_file(Path(__file__).parents[1] / "report" / "profiles.py")


class Engine:
    """A worker that has profiled before it was asked."""

    def __init__(self, settings, limited):
        assert limited  # on a CPU
        self.made = iter([profiles.dense(), profiles.fused()])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, question, limit_s):
        Path(question["trace"]).write_text("{}")
        return {"profile": next(self.made)}


@pytest.fixture
def profiled(monkeypatch, capsys, tmp_path):
    """Its folder, and what was sent."""
    monkeypatch.setattr(engine, "LocalEngine", Engine)
    words = ["profile", "einsum", "--against", "matmul", "--out", str(tmp_path), "--json"]
    assert cli.main(words) == 0
    (folder,) = tmp_path.iterdir()
    return folder, json.loads(capsys.readouterr().out)


def test_what_is_kept_names_its_traces_as_they_lie_beside_it(profiled):
    folder, sent = profiled
    kept = json.loads((folder / "profile.json").read_text())
    assert [p["trace"] for p in kept["profiles"]] == ["trace-einsum.json", "trace-matmul.json"]
    assert all((folder / p["trace"]).exists() for p in kept["profiles"])
    assert [Path(p["trace"]) for p in sent["profiles"]] == [
        folder / p["trace"] for p in kept["profiles"]
    ]
    assert kept["why"] == sent["why"]
    assert {path.name for path in folder.iterdir()} == {
        "profile.json",
        "memory.png",
        "memory.svg",
        "trace-einsum.json",
        "trace-matmul.json",
    }
