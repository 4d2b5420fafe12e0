"""A visit to a GPU with every step made up: what is kept, cut off, left out, refused, and gone on
with; packages and caches that are brought along.
"""

import json
import sys
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from proofs import gpu_visit, visit_steps
from proofs.gpu_visit import Stopped, VisitFolder, run_command, visit
from proofs.visit_steps import Room, Step, queue, steps
from tests.machines import WITH_GPU
from tests.processes import gone


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """What a call sets for its steps ends with the test."""
    for name in ("PYTHONPATH", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


class Machine:
    """Runs no command: each takes so long, says so much, and leaves a file in the results."""

    def __init__(self, results, **answers):
        self.results, self.answers, self.seconds, self.asked = results, answers, 0.0, []

    def run(self, command, limit_s, keep):
        name = command[0]
        took, status, said = self.answers.get(name, (10.0, 0, f"{name} is done"))
        self.asked.append((name, limit_s))
        (self.results / name).mkdir(exist_ok=True)
        (self.results / name / f"{name}.txt").write_text(name)
        if took == "killed":
            keep()
            raise KeyboardInterrupt
        if took == "stopped":
            self.seconds += 4
            raise Stopped(said)
        self.seconds += min(took, limit_s)
        return (status if took <= limit_s else None), said

    def now(self):
        return self.seconds


def step(name, least=10.0, limit=100.0, command=None, counts="that counts: .*", calls=(1,)):
    return Step(name, calls, least, limit, command or (lambda room: [name]), counts)


@pytest.fixture
def visited(tmp_path):
    """A call of so many seconds, into one folder; each on a machine that holds nothing."""
    number = iter(range(9))

    def go(todo, seconds, **answers):
        kept = VisitFolder(tmp_path / "out", tmp_path / f"room{next(number)}", "cuda")
        machine = Machine(kept.results, **answers)
        own, more = queue(todo, {name: one["status"] for name, one in kept.steps.items()}, None)
        with suppress(KeyboardInterrupt):
            visit([*own, *more], kept, seconds, machine.run, machine.now)
        summary = json.loads((kept.folder / "summary.json").read_text())["steps"]
        assert summary == kept.steps
        return kept, machine, {name: one["status"] for name, one in summary.items()}

    return go


def archived(folder, name="results.tar.gz"):
    with tarfile.open(folder / name) as archive:
        return {Path(member.name).name for member in archive if member.isfile()}


def test_every_step_is_run_in_turn_and_shown_by_the_line_that_counts(visited):
    said = "first\nthat counts: 74/74\nlast"
    kept, machine, status = visited([step("a"), step("b")], 100, a=(5, 0, said), b=(7, 1, "x\ny"))
    assert [name for name, _ in machine.asked] == ["a", "b"]
    assert status == {"a": "done", "b": "finding"}
    shown = [(one["seconds"], one["line"]) for one in kept.steps.values()]
    assert shown == [(5.0, "that counts: 74/74"), (7.0, "y")]
    assert archived(kept.folder) == {"a.txt", "b.txt"}
    assert "==== a\nfirst" in (kept.folder / "log.txt").read_text()


def test_a_step_gets_its_own_limit_or_what_is_left_of_the_call(visited):
    todo = [step("a", limit=30), step("b", limit=90), step("c")]
    kept, machine, status = visited(todo, 120, a=(999, 0, "half"))
    assert machine.asked == [("a", 30), ("b", 75.0), ("c", 65.0)], "15 s are for packing"
    assert status == {"a": "cut off", "b": "done", "c": "done"}
    assert kept.steps["a"]["line"] == "its time was over; half"


def test_what_time_does_not_reach_is_not_begun_and_the_next_call_begins_there(visited):
    todo = [step("a"), step("b", least=50), step("c", least=5)]
    _, machine, status = visited(todo, 60, a=(20, 0, ""))
    assert status == {"a": "done", "b": "not begun", "c": "done"}
    assert [name for name, _ in machine.asked] == ["a", "c"]
    kept, machine, status = visited(todo, 100)
    assert [name for name, _ in machine.asked] == ["b"]
    assert set(status.values()) == {"done"}
    assert archived(kept.folder) == {"a.txt", "b.txt", "c.txt"}, "of both calls"
    assert (kept.folder / "log.txt").read_text().count("====") == 3


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_visit_that_ends_in_a_step_leaves_what_was_done_and_what_it_was_at(visited, how):
    todo = [step("a"), step("b"), step("c")]
    kept, _, status = visited(todo, 200, b=(how, 0, "half"))
    assert how == "killed" or (kept.folder / "log.txt").read_text().endswith("==== b\nhalf")
    assert status == {"a": "done", "b": "cut off"}
    assert archived(kept.folder) == {"a.txt", "b.txt"}
    _, machine, status = visited(todo, 200)
    assert [name for name, _ in machine.asked] == ["b", "c"]
    assert set(status.values()) == {"done"}


def test_a_sweep_that_its_limit_stopped_is_partly_done_and_goes_on(visited):
    said = "9 of 12 measurements were not begun. Go on with: attnbench run --resume x"
    _, _, status = visited([step("a")], 100, a=(30, 0, f"that counts: 3\n{said}"))
    assert status == {"a": "partly"}
    kept, machine, status = visited([step("a")], 100, a=(20, 0, "that counts: 12"))
    assert (len(machine.asked), status) == (1, {"a": "done"})
    assert kept.steps["a"]["seconds"] == 50.0


def test_a_run_that_can_not_go_on_here_begins_anew_and_the_old_one_stays(tmp_path):
    refusal = "it was measured on an A100, and this is an H100; start a new run"
    kept, asked = VisitFolder(tmp_path / "out", tmp_path / "room", "cpu"), []
    for run in ("nvidia-h100/20261126-110511", "nvidia-a100/20261127-110511"):
        (kept.results / "quick" / run).mkdir(parents=True)
        (kept.results / "quick" / run / "run.json").write_text("{}")

    def run(command, limit_s, keep):
        asked.append(command)
        return (2, refusal) if "--resume" in command else (0, "→ Use sdpa")

    (quick,) = [each for each in steps() if each.name == "quick"]
    visit([quick], kept, 100, run)
    latest = kept.results / "quick" / "nvidia-a100" / "20261127-110511"
    assert asked[0][asked[0].index("--resume") + 1] == str(latest)
    assert "--resume" not in asked[1] and "h200-quick" in asked[1]
    assert kept.steps["quick"]["status"] == "done"
    assert latest.is_dir() and refusal in (kept.folder / "log.txt").read_text()


def test_large_results_are_kept_in_pieces_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_visit, "PIECE_BYTES", 400)
    kept, data = VisitFolder(tmp_path / "out", tmp_path / "one", "cuda"), bytes(range(256)) * 4
    (kept.results / "run" / "report").mkdir(parents=True)
    (kept.results / "run" / "records.jsonl").write_bytes(data)
    (kept.results / "run" / "report" / "index.html").write_text("a page")
    kept.write()
    files = [p for p in kept.folder.iterdir() if p.name.startswith("results")]
    assert 1 < len(files) <= gpu_visit.MOST_PIECES
    assert all(p.stat().st_size <= 400 for p in files)
    assert len(list(kept.folder.iterdir())) <= 8
    back = VisitFolder(tmp_path / "other", tmp_path / "two", "cuda", before=kept.folder)
    assert (back.results / "run" / "records.jsonl").read_bytes() == data
    assert not (back.results / "run" / "report").exists(), "a page can be rendered again"
    (back.results / "run" / "records.jsonl").write_bytes(b"")
    back.folder = kept.folder
    back.write()
    assert len([p for p in kept.folder.iterdir() if p.name.startswith("results")]) == 1


# ---- the machine, and the steps' words ----


def test_the_steps_for_a_gpu_are_words_of_the_command_line(tmp_path, monkeypatch):
    from attnbench.command.arguments import parser

    monkeypatch.setattr(visit_steps, "find_spec", lambda name: name)
    monkeypatch.setattr(visit_steps, "has_c_compiler", lambda: True)
    monkeypatch.setattr(visit_steps.shutil, "which", lambda name: f"/bin/{name}")
    h200 = replace(WITH_GPU, gpus=(replace(WITH_GPU.gpus[0], name="NVIDIA H200"),))
    h200 = replace(h200, versions={**h200.versions, "torch": "2.11.0"}, torch_cuda="13.0")
    monkeypatch.setattr(visit_steps, "this_machine", lambda: h200)
    calls = {1: [], 2: [], 3: [], 4: []}
    for one in steps():
        assert one.least_s <= one.limit_s <= 525
        words = one.command(Room("cuda", tmp_path, one.name, 100.0))
        if one.name == "apart":
            assert isinstance(words, str), "there are no runs yet"
        else:
            assert isinstance(words, list), words
        if isinstance(words, list) and "attnbench" in words:
            parser().parse_args(words[words.index("attnbench") + 1 :])
        for call in one.calls:
            calls[call].append(one.name)
    assert calls[2] == ["quick", "claim", "h200"]
    assert calls[3][0] == "h200"
    assert calls[4][0] == "again"


# ---- a step's process ----


def test_a_process_that_hangs_or_is_interrupted_is_ended_with_all_it_started(monkeypatch):
    monkeypatch.setattr(gpu_visit, "GRACE_S", 0.3)
    monkeypatch.setattr(gpu_visit, "KEEP_EVERY_S", 0.4)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    kept = []

    def keep():
        kept.append(1)
        if len(kept) == 4:
            raise KeyboardInterrupt

    status, output = run_command([sys.executable, "-c", code], 1.0, keep)
    assert status is None
    assert len(kept) >= 2
    assert gone(output.strip())
    with pytest.raises(Stopped) as stopped:
        run_command([sys.executable, "-c", code], 60.0, keep)
    assert gone(stopped.value.output.strip())
