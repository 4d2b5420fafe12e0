"""What a choice reads of records: the same with the fast parser and without, nothing else's."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from attnbench.record import Distance
from attnbench.store import StoreError
from attnbench.store import skim as skimming
from attnbench.store.skim import skim
from impls.loading import load_file

made = load_file(Path(__file__).parents[1] / "verbs" / "chosen_runs.py")


@pytest.fixture
def run(tmp_path):
    far = Distance(relative=0.4, max=1.0, worst_row=1.0, cosine=0.9, skill=0.6)
    near = made.record("lsh", made.problem(128), 1.0, computes="approximates softmax", distance=far)
    return made.written(tmp_path / "run", [*made.lines(("forward", "train"), sdpa=1.0), near])


@pytest.mark.parametrize("bare", [False, True])
def test_what_is_read_is_what_the_records_say(run, bare, monkeypatch):
    if bare:  # a bare checkout has no msgspec
        monkeypatch.setitem(sys.modules, "msgspec", None)
        monkeypatch.setitem(sys.modules, "msgspec.json", None)
    *_, last, near = skim(run, {"phase": "forward"})
    assert (last.variant, last.problem, last.status) == ("sdpa", made.problem(2048), "measured")
    assert last.time.median_s == made.quadratic(made.problem(2048))
    assert (last.memory.peak_bytes, last.setup_s) == (1 << 20, 1e-3)
    assert last.error["forward"].relative == 2e-7
    assert (near.distance.skill, near.computes) == (0.6, "approximates softmax")


def test_other_phases_are_left_out(run):
    assert len(list(skim(run, {}))) == 11
    assert {s.problem.phase for s in skim(run, {"phase": "train"})} == {"train"}
    assert list(skim(run, {"phase": "decode"})) == []


def test_a_file_that_was_written_otherwise_is_read_as_well(run):
    file = run / "records.jsonl"
    lines = [json.dumps(json.loads(x), indent=None) for x in file.read_text().splitlines()]
    assert '"phase": "train"' in lines[5]  # with blanks, as other programs write
    file.write_text("\n".join(lines) + "\n")
    assert len(list(skim(run, {"phase": "train"}))) == 5


def test_a_mask_with_a_brace_in_its_name_is_read_whole(run, tmp_path):
    np.save(tmp_path / "a}b.npy", np.ones((128, 128), bool))
    file = run / "records.jsonl"
    *_, last = file.read_text().splitlines()
    values = json.loads(last)
    lines = []
    for number, phase in enumerate(("forward", "train", "forward")):  # alike up to the brace
        values["problem"] |= {"mask": f"dense:{tmp_path}/a}}b.npy", "phase": phase}
        values["variant"] = f"v{number}"
        lines.append(json.dumps(values, separators=(",", ":")))
    file.write_text("\n".join(lines) + "\n")
    assert [s.problem.phase for s in skim(run, {})] == ["forward", "train", "forward"]
    assert [s.problem.phase for s in skim(run, {"phase": "train"})] == ["train"]


def test_a_problem_is_read_once_for_each_text_that_it_has(run, monkeypatch):
    read, real = [], skimming.Problem.from_dict
    monkeypatch.setattr(skimming.Problem, "from_dict", lambda v: read.append(1) or real(v))
    assert len(list(skim(run, {}))) == 11
    assert len(read) == 10  # 128 tokens forward come twice


@pytest.mark.parametrize("bare", [False, True])
def test_a_time_without_a_number_is_none(run, bare, monkeypatch):
    if bare:
        monkeypatch.setitem(sys.modules, "msgspec.json", None)
    broken = made.record("matmul", made.problem(64), 1.0)
    values = broken.to_dict()
    values["time"]["low_s"] = None  # as numbers that are not finite are said
    file = run / "records.jsonl"
    file.write_text(file.read_text() + json.dumps(values, separators=(",", ":")) + "\n")
    *_, last = skim(run, {})
    assert (last.variant, last.time) == ("matmul", None)


def test_problems_that_are_the_same_are_one_object(run):
    first, *_, last = (s.problem for s in skim(run, {"phase": "forward"}))
    assert first is last  # 128 tokens, by sdpa and by lsh


@pytest.mark.parametrize(
    "line", ["{}", '{"status":"measured","variant":"sdpa","problem":{"batch":0}}']
)
def test_what_is_no_record_is_refused_with_its_line(run, line):
    file = run / "records.jsonl"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(StoreError, match="line 12"):
        list(skim(run, {}))


def test_a_line_that_is_being_written_is_passed_over(run):
    file = run / "records.jsonl"
    file.write_text(file.read_text() + '{"status":"meas')
    assert len(list(skim(run, {}))) == 11
