"""A visit to a GPU with every step made up: what is kept, cut off, left out, refused, and gone on
with; and the real steps: their order, and the words that each is begun with.
"""

import json
import signal
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from attnbench.command.arguments import parser
from attnbench.sweep.presets import PRESETS
from proofs import gpu_visit, visit_called, visit_kept, visit_steps
from proofs.gpu_visit import main, visit
from proofs.visit_called import Stopped, called
from proofs.visit_kept import Kept, NoVisit, Place
from proofs.visit_steps import Step
from tests.processes import gone, handling

PLACE = Place("nvidia-h200-a1b2c3", "cuda")
FASTEST = "512 tokens: sdpa.flash is the fastest exact variant, at 1 ms"


class Machine:
    """Runs no command: each takes so long, says so much, and may leave a file in the results."""

    def __init__(self, results, **answers):
        self.results, self.answers, self.seconds, self.asked = results, answers, 0.0, []

    def run(self, command, limit_s, keep):
        name = command[0]
        took, status, said = self.answers.get(name, (10.0, 0, f"{name} is done"))
        self.asked.append((name, limit_s))
        (self.results / "box").mkdir(exist_ok=True)
        (self.results / "box" / f"{name}.txt").write_text(name)
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


def step(name, least=10.0, limit=100.0, command=None, counts="that counts: .*"):
    return Step(name, least, limit, command or (lambda out, seconds: [name]), counts)


@pytest.fixture
def visited(tmp_path):
    """A visit of so many seconds, into one folder; each on a machine that holds nothing."""
    number = iter(range(9))

    def go(todo, seconds, **answers):
        kept = Kept(tmp_path / "out", tmp_path / f"results{next(number)}", PLACE)
        machine = Machine(kept.results, **answers)
        with suppress(KeyboardInterrupt):
            visit(todo, kept, seconds, machine.run, machine.now)
        summary = json.loads((kept.folder / "summary.json").read_text())["steps"]
        assert summary == kept.steps
        return kept, machine, {name: one["status"] for name, one in summary.items()}

    return go


def archived(folder):
    with tarfile.open(folder / "results.tar.gz") as archive:
        return {Path(name).name for name in archive.getnames()}


def test_every_step_is_run_in_turn_and_told_by_the_line_that_counts(visited):
    said = "first\nthat counts: 74/74\nlast"
    kept, machine, status = visited([step("a"), step("b")], 100, a=(5, 0, said), b=(7, 1, "x\ny"))
    assert [name for name, _ in machine.asked] == ["a", "b"]
    assert status == {"a": "done", "b": "finding"}
    told = [(one["seconds"], one["line"]) for one in kept.steps.values()]
    assert told == [(5.0, "that counts: 74/74"), (7.0, "y")]
    assert archived(kept.folder) == {"a.txt", "b.txt"}
    assert "==== a\nfirst" in (kept.folder / "log.txt").read_text()


def test_a_step_gets_its_own_limit_or_what_is_left_of_the_visit(visited):
    todo = [step("a", limit=30), step("b", limit=90), step("c")]
    kept, machine, status = visited(todo, 120, a=(999, 0, "half"))
    assert machine.asked == [("a", 30), ("b", 75.0), ("c", 65.0)], "15 s are for packing"
    assert status == {"a": "cut off", "b": "done", "c": "done"}
    assert kept.steps["a"]["line"] == "it was still running after 30 s"


def test_what_time_does_not_reach_is_not_begun_and_the_next_visit_begins_there(visited):
    todo = [step("a"), step("b", least=50), step("c", least=5)]
    _, machine, status = visited(todo, 60, a=(20, 0, ""))
    assert status == {"a": "done", "b": "not begun", "c": "done"}
    assert [name for name, _ in machine.asked] == ["a", "c"]
    kept, machine, status = visited(todo, 100)
    assert [name for name, _ in machine.asked] == ["b"]
    assert set(status.values()) == {"done"}
    assert archived(kept.folder) == {"a.txt", "b.txt", "c.txt"}, "of both visits"
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
    _, _, status = visited([step("a")], 100, a=(30, 0, f"{FASTEST}\n{said}"))
    assert status == {"a": "partly"}
    kept, machine, status = visited([step("a")], 100, a=(20, 0, FASTEST))
    assert (len(machine.asked), status) == (1, {"a": "done"})
    assert kept.steps["a"]["seconds"] == 50.0


def test_the_exit_status_is_of_the_steps_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "there is none")
    monkeypatch.setattr(gpu_visit, "gpu_warnings", lambda machine: ["nothing is here"])
    out = ["--out", str(tmp_path / "none")]
    assert main([*out, "--steps", "tests, timer,sweep"]) == 2  # they need one
    told = json.loads((tmp_path / "none" / "summary.json").read_text())
    assert (told["amiss"], told["device"]) == (["nothing is here"], "cuda")
    monkeypatch.setattr(gpu_visit, "steps", lambda device: [step("a"), step("b")])
    for status, exits in ((0, 0), (1, 1), (None, 2)):
        answer = (lambda *_, status=status: (status, "said"), gpu_visit.monotonic)
        monkeypatch.setattr(visit, "__defaults__", answer)
        out = ["--out", str(tmp_path / str(status))]
        assert main([*out, "--steps", "a"]) == exits
        assert main([*out, "--minutes", "0.1"]) == 2, "b is not begun"
        assert main([*out, "--minutes", "0.1", "--steps", "a"]) == exits


def test_large_results_are_kept_in_pieces_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_kept, "PIECE_BYTES", 400)
    kept, data = Kept(tmp_path / "out", tmp_path / "one", PLACE), bytes(range(256)) * 4
    (kept.results / "run" / "report").mkdir(parents=True)
    (kept.results / "run" / "records.jsonl").write_bytes(data)
    (kept.results / "run" / "report" / "index.html").write_text("a page")
    kept.write()
    files = [p for p in kept.folder.iterdir() if p.name.startswith("results")]
    assert 1 < len(files) <= visit_kept.MOST_PIECES
    assert all(p.stat().st_size <= 400 for p in files)
    back = Kept(tmp_path / "other", tmp_path / "two", PLACE, before=kept.folder)
    assert (back.results / "run" / "records.jsonl").read_bytes() == data
    assert not (back.results / "run" / "report").exists(), "a page can be rendered again"
    (back.results / "run" / "records.jsonl").write_bytes(b"")
    back.folder = kept.folder
    back.write()
    assert len([p for p in kept.folder.iterdir() if p.name.startswith("results")]) == 1


def summary(seconds=2.0, **changes):
    steps = {"env": {"status": "done", "seconds": seconds, "line": "it is done"}}
    told = {"machine": PLACE.machine, "device": PLACE.device, "steps": steps}
    return json.dumps({**told, "amiss": [], **changes}).encode()


def test_what_was_done_elsewhere_is_not_gone_on_with(tmp_path):
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    for other, places in (({"machine": "another"}, (new, there)), ({"device": "cpu"}, (there,))):
        (there / "summary.json").write_bytes(summary(**other))
        with pytest.raises(NoVisit, match=f"{there} holds a visit to "):
            Kept(places[0], tmp_path / "results", PLACE, *places[1:])


def test_a_folder_that_no_visit_left_is_refused_and_left_as_it_is(tmp_path):
    for name, data in (
        ("summary.json", b"{"),
        ("results.tar.gz", b"nonsense"),
        ("summary.json", summary(seconds="2")),
        ("letters", b""),  # somebody's own files
    ):
        (tmp_path / name).write_bytes(data)
        assert main(["--out", str(tmp_path)]) == 2
        assert [p.name for p in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()


@pytest.fixture
def with_gpu(monkeypatch):
    """With all that the tests of our kernels need besides."""
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "")
    monkeypatch.setattr(visit_steps, "find_spec", lambda name: name)
    monkeypatch.setattr(visit_steps, "has_c_compiler", lambda: True)


def words(name, out, seconds=100.0):
    (found,) = [s for s in visit_steps.steps() if s.name == name]
    return found.command(out, seconds)


def test_a_sweep_is_begun_with_a_limit_and_gone_on_with_where_one_lies(with_gpu, tmp_path):
    told = words("quick", tmp_path)
    assert told[told.index("--limit") + 1] == "85s"
    for run, title in (("1", PRESETS["h200-quick"].title), ("2", "another")):
        (tmp_path / "box" / run).mkdir(parents=True)
        (tmp_path / "box" / run / "run.json").write_text(json.dumps({"grid": {"title": title}}))
    told = words("quick", tmp_path)
    assert told[told.index("--resume") + 1] == str(tmp_path / "box" / "1")
    assert "--preset" not in told


def test_the_words_of_all_steps_are_words_of_the_command_line(with_gpu, tmp_path):
    for one in visit_steps.steps():
        told = one.command(tmp_path, 100.0)
        if isinstance(told, list) and "attnbench" in told:
            parser().parse_args(told[told.index("attnbench") + 1 :])


def test_every_file_of_tests_that_need_a_gpu_is_run_by_a_step(with_gpu, monkeypatch, tmp_path):
    files = {f"tests/gpu/{x.name}" for x in Path(__file__).parents[1].glob("gpu/test_*.py")}
    told = [word for name in visit_steps.TESTS for word in words(name, tmp_path)]
    assert {word for word in told if word.startswith("tests/gpu/")} == files
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "there is none")
    assert {words(name, tmp_path) for name in visit_steps.TESTS} == {"there is none"}


def test_a_process_that_hangs_or_is_interrupted_is_ended_with_all_it_started(monkeypatch):
    monkeypatch.setattr(visit_called, "GRACE_S", 0.3)
    monkeypatch.setattr(visit_called, "KEEP_EVERY_S", 0.4)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    kept = []

    def keep():
        kept.append(1)
        if len(kept) == 4:
            raise KeyboardInterrupt

    status, said = called([sys.executable, "-c", code], 1.0, keep)
    assert status is None
    assert len(kept) >= 2
    assert gone(said.strip())
    with pytest.raises(Stopped) as stopped:
        called([sys.executable, "-c", code], 60.0, keep)
    assert gone(stopped.value.said.strip())


def test_a_process_that_is_cut_off_may_still_say_what_it_has():
    code = (
        "import time\ntry:\n    print('begun', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('kept')"
    )
    with handling(signal.SIG_IGN, signal.SIGINT):
        assert called([sys.executable, "-c", code], 1.0, list) == (None, "begun\nkept\n")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
