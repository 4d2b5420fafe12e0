"""A visit to a GPU: what is kept, cut off, left out and gone on with, and every step's command."""

import json
import sys
from pathlib import Path

import pytest

from attnbench.command.arguments import parser
from proofs import gpu_visit
from proofs.gpu_visit import Room, Step, Visit, main, run_command, steps
from tests.processes import gone


def step(name, least=0.0, limit=100.0, answer=(0, "it is done"), calls=(1,)):
    """A step that would run the word that it is called by."""
    return Step(name, calls, least, limit, lambda room: [name, *answer], "that counts: .*")


@pytest.fixture
def visit(tmp_path, monkeypatch):
    """A visit whose steps run no command: each answers, takes its seconds and is noted."""
    visit, now = Visit(tmp_path, "cuda"), [0.0]
    visit.asked = []

    def run(command, limit_s, log):
        name, status, output, took = (*command, 10.0)[:4]
        visit.asked.append((name, limit_s))
        now[0] += min(took, limit_s)
        if status == "stopped":
            raise KeyboardInterrupt
        return (status if took <= limit_s else None), output

    monkeypatch.setattr(gpu_visit, "run_command", run)
    monkeypatch.setattr(gpu_visit, "monotonic", lambda: now[0])
    visit.ends = lambda: {
        name: (one["status"], one["line"])
        for name, one in json.loads((tmp_path / "summary.json").read_text()).items()
    }
    return visit


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ((0, "first\nthat counts: 74/74\nlast"), ("done", "that counts: 74/74")),
        ((1, "x\ny"), ("finding", "y")),
        ((2, ""), ("failed", "no output")),
        ((-9, "half"), ("failed", "signal 9 ended it; half")),
        ((0, "9 were not begun. Go on with: x"), ("partly", "9 were not begun. Go on with: x")),
        ((0, "half", 31.0), ("cut off", "its time was over; half")),
    ],
)
def test_a_step_is_shown_by_how_it_ended_and_the_line_that_counts(visit, answer, end):
    visit.run([step("a", limit=30.0, answer=answer)], 100)
    assert visit.ends() == {"a": end}


def test_what_time_does_not_reach_is_not_begun_and_the_next_call_begins_there(visit):
    todo = [step("a", answer=(0, "", 20.0)), step("b", least=50), step("c", least=5)]
    visit.run(todo, 60)
    assert [word for word, _ in visit.ends().values()] == ["done", "not begun", "done"]
    assert visit.asked == [("a", 52.0), ("c", 32.0)], "8 s are for the end"
    again = Visit(visit.folder, "cuda")
    assert again.queue(todo, None) == ([todo[1]], [])


def test_a_visit_that_is_stopped_in_a_step_goes_on_with_it(visit):
    todo = [step("a"), step("b", answer=("stopped", "")), step("c")]
    with pytest.raises(KeyboardInterrupt):
        visit.run(todo, 200)
    assert visit.ends()["b"][0] == "cut off"
    assert Visit(visit.folder, "cuda").queue(todo, None)[0] == todo[1:]


def test_a_run_that_can_not_go_on_here_begins_anew_and_the_old_one_stays(tmp_path, monkeypatch):
    asked = []

    def run(command, limit_s, log):
        asked.append(command)
        return (2, "start a new run") if "--resume" in command else (0, "→ Use sdpa")

    monkeypatch.setattr(gpu_visit, "run_command", run)
    (quick,) = [each for each in steps() if each.name == "quick"]
    for run in ("nvidia-h100/20261126-110511", "nvidia-a100/20261127-110511"):
        (folder := tmp_path / "results" / "quick" / run).mkdir(parents=True)
        (folder / "run.json").write_text("{}")
    Visit(tmp_path, "cpu").run([quick], 500)
    assert asked[0][asked[0].index("--resume") + 1] == str(folder), "the latest"
    assert "--resume" not in asked[1] and "h200-quick" in asked[1] and folder.is_dir()


@pytest.mark.parametrize(
    ("call", "statuses", "own", "more"),
    [
        (None, {}, "a", "bc"),
        (2, {}, "bc", "a"),
        (None, {"a": "done", "b": "finding"}, "c", ""),
        (4, {}, "d", "abc"),
        (None, {"a": "left out", "b": "failed", "c": "done"}, "d", "ab"),
        (None, dict.fromkeys("abcd", "done"), "", ""),
    ],
)
def test_a_call_begins_with_its_own_steps_and_leaves_the_last_calls_to_another_machine(
    visit, call, statuses, own, more
):
    todo = [step("a"), step("b", calls=(2,)), step("c", calls=(2, 3)), step("d", calls=(4,))]
    visit.steps = {name: {"status": status} for name, status in statuses.items()}
    found = visit.queue(todo, call)
    assert ["".join(each.name for each in some) for some in found] == [own, more]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_steps_are_words_of_the_command_line(device, tmp_path):
    for one in steps():
        assert one.least_s <= one.limit_s <= 525
        words = one.command(Room(device, tmp_path / one.name, 100.0))
        assert isinstance(words, str) == (one.name == "apart"), "there are no runs yet"
        if "attnbench" in words:
            parser().parse_args(words[words.index("attnbench") + 1 :])


def test_a_process_that_hangs_is_ended_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_visit, "GRACE_S", 0.3)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    status, output = run_command([sys.executable, "-c", code], 1.0, tmp_path / "log.txt")
    assert status is None and gone(output.strip())


@pytest.mark.slow
def test_every_command_works_on_a_cpu(tmp_path, capsys):
    """All but the self-check, which has tests of its own."""
    names = [each.name for each in steps() if each.name != "selfcheck"]
    words = ["--out", str(tmp_path), "--device", "cpu", "--minutes", "15", "--steps", *names]
    assert main(words) in (0, 1)
    ends = json.loads((tmp_path / "summary.json").read_text())
    assert {one["status"] for one in ends.values()} <= {"done", "finding"}, capsys.readouterr().out
    assert sorted(ends) == sorted(names)
    assert len(list(Path(tmp_path, "results", "h200").glob("*/*/run.json"))) == 1
