"""The steps of a visit: their order, and the words that each is begun with."""

import json
from pathlib import Path

import pytest

from attnbench.command.arguments import parser
from attnbench.sweep.presets import PRESETS
from proofs import visit_steps

ROOT = Path(visit_steps.__file__).parents[1]


@pytest.fixture(autouse=True)
def with_gpu(monkeypatch):
    """With all that the tests of our kernels need besides."""
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "")
    monkeypatch.setattr(visit_steps, "find_spec", lambda name: name)
    monkeypatch.setattr(visit_steps, "has_c_compiler", lambda: True)


def words(name, out, seconds=100.0):
    (found,) = [s for s in visit_steps.steps() if s.name == name]
    return found.command(out, seconds)


def test_a_sweep_is_begun_with_a_limit_and_gone_on_with_where_one_lies(tmp_path):
    told = words("quick", tmp_path)
    assert told[told.index("--limit") + 1] == "85s"
    for run, title in (("1", PRESETS["h200-quick"].title), ("2", "another")):
        (tmp_path / "box" / run).mkdir(parents=True)
        (tmp_path / "box" / run / "run.json").write_text(json.dumps({"grid": {"title": title}}))
    told = words("quick", tmp_path)
    assert told[told.index("--resume") + 1] == str(tmp_path / "box" / "1")
    assert "--preset" not in told


def test_the_words_of_all_steps_are_words_of_the_command_line(tmp_path):
    for one in visit_steps.steps():
        told = one.command(tmp_path, 100.0)
        if isinstance(told, list) and "attnbench" in told:
            parser().parse_args(told[told.index("attnbench") + 1 :])


def test_every_file_of_tests_that_need_a_gpu_is_run_by_a_step(monkeypatch, tmp_path):
    files = {f"tests/gpu/{file.name}" for file in (ROOT / "tests" / "gpu").glob("test_*.py")}
    told = [word for name in visit_steps.TESTS for word in words(name, tmp_path)]
    assert {word for word in told if word.startswith("tests/gpu/")} == files
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "there is none")
    assert {words(name, tmp_path) for name in visit_steps.TESTS} == {"there is none"}
