"""A visit to a GPU: every step's command."""

import json
from pathlib import Path

import pytest

from attnbench.command.arguments import parser
from proofs.gpu_visit import Room, main, steps


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_steps_are_words_of_the_command_line(device, tmp_path):
    for one in steps():
        assert one.least_s <= one.limit_s <= 525
        words = one.command(Room(device, tmp_path / one.name, 100.0))
        if "attnbench" in words:
            parser().parse_args(words[words.index("attnbench") + 1 :])


@pytest.mark.slow
def test_every_command_works_on_a_cpu(tmp_path, capsys):
    """All but two that have tests of their own, and those that are like another."""
    others = ("env", "selfcheck", "million", "shapes", "cross-fla")
    names = [each.name for each in steps() if each.name not in others]
    words = ["--out", str(tmp_path), "--device", "cpu", "--minutes", "15", "--steps", *names]
    assert main(words) in (0, 1)
    ends = json.loads((tmp_path / "summary.json").read_text())
    assert {one["status"] for one in ends.values()} <= {"done", "finding"}, capsys.readouterr().out
    assert sorted(ends) == sorted(names)
    assert len(list(Path(tmp_path, "results", "h200").glob("*/*/run.json"))) == 1
