"""A visit to a GPU with every step made up: what is kept, cut off, left out, and gone on with."""

import json
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from proofs import gpu_visit, visit_kept, visit_steps
from proofs.gpu_visit import called, main, table, visit
from proofs.visit_kept import Kept, NoVisit
from proofs.visit_steps import Step

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
        kept = Kept(tmp_path / "out", tmp_path / f"results{next(number)}")
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
    assert [(one["seconds"], one["line"]) for one in kept.steps.values()] == [
        (5.0, "that counts: 74/74"), (7.0, "y"),
    ]  # fmt: skip
    assert {p.name for p in kept.folder.iterdir()} == {"summary.json", "log.txt", "results.tar.gz"}
    assert archived(kept.folder) == {"a.txt", "b.txt"}
    assert "==== a\nfirst" in (kept.folder / "log.txt").read_text()
    head, first, _ = table(kept).splitlines()
    assert head.split()[:3] == ["step", "status", "seconds"]
    assert first.split(maxsplit=3) == ["a", "done", "5.0", "that counts: 74/74"]


def test_a_step_gets_its_own_limit_or_what_is_left_of_the_visit(visited):
    _, machine, _ = visited([step("a", limit=30), step("b", limit=90), step("c")], 110,
                            a=(20, 0, ""))  # fmt: skip
    assert machine.asked == [("a", 30), ("b", 75.0), ("c", 65.0)], "15 s are for packing"


def test_a_step_that_goes_beyond_its_limit_is_cut_off_and_the_rest_is_run(visited):
    kept, machine, status = visited([step("a", limit=30), step("b")], 200, a=(999, 0, "half"))
    assert status == {"a": "cut off", "b": "done"}
    assert kept.steps["a"]["line"] == "it was still running after 30 s"
    assert machine.seconds == 40


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


def test_a_visit_that_is_killed_leaves_what_was_done_and_what_it_was_at(visited):
    todo = [step("a"), step("b"), step("c")]
    kept, _, status = visited(todo, 200, b=("killed", 0, ""))
    assert status == {"a": "done", "b": "cut off"}
    assert archived(kept.folder) == {"a.txt", "b.txt"}
    _, machine, status = visited(todo, 200)
    assert [name for name, _ in machine.asked] == ["b", "c"]
    assert set(status.values()) == {"done"}


def test_a_sweep_that_its_limit_stopped_is_partly_done_and_goes_on(visited):
    limited = f"{FASTEST}\n9 of 12 cells were not begun. Go on with: attnbench run --resume x"
    _, _, status = visited([step("a")], 100, a=(30, 0, limited))
    assert status == {"a": "partly"}
    kept, machine, status = visited([step("a")], 100, a=(20, 0, FASTEST))
    assert (len(machine.asked), status) == (1, {"a": "done"})
    assert kept.steps["a"]["seconds"] == 50.0


def test_what_a_machine_lacks_is_a_sentence_and_is_asked_again_by_the_next_visit(visited):
    why = step("a", command=lambda out, seconds: "it needs pytest")
    kept, machine, status = visited([why, step("b")], 100)
    assert status == {"a": "left out", "b": "done"}
    assert kept.steps["a"]["line"] == "it needs pytest"
    _, machine, _ = visited([step("a"), step("b")], 100)
    assert [name for name, _ in machine.asked] == ["a"]


# ---- what is kept --------------------------------------------------------------------------------


def test_large_results_are_kept_in_pieces_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_kept, "PIECE_BYTES", 400)
    kept, data = Kept(tmp_path / "out", tmp_path / "one"), bytes(range(256)) * 4
    (kept.results / "run").mkdir()
    (kept.results / "run" / "records.jsonl").write_bytes(data)
    (kept.results / "run" / "report").mkdir()
    (kept.results / "run" / "report" / "index.html").write_text("a page")
    kept.write()
    files = [p for p in kept.folder.iterdir() if p.name.startswith("results")]
    assert 1 < len(files) <= visit_kept.MOST_PIECES
    assert all(p.stat().st_size <= 400 for p in files)
    back = Kept(tmp_path / "other", tmp_path / "two", before=kept.folder)
    assert (back.results / "run" / "records.jsonl").read_bytes() == data
    assert not (back.results / "run" / "report").exists(), "a page can be rendered again"
    (back.results / "run" / "records.jsonl").write_bytes(b"")
    back.folder = kept.folder
    back.write()
    assert len([p for p in kept.folder.iterdir() if p.name.startswith("results")]) == 1


def test_results_beyond_all_pieces_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_kept, "PIECE_BYTES", 10)
    kept = Kept(tmp_path / "out", tmp_path / "one")
    (kept.results / "x").write_bytes(bytes(range(200)))
    kept.write()
    assert {p.name for p in kept.folder.iterdir()} == {"summary.json", "log.txt"}
    assert "none is kept" in json.loads((kept.folder / "summary.json").read_text())["left_out"]


def test_of_a_long_log_the_end_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_kept, "STEP_LOG_BYTES", 10)
    kept = Kept(tmp_path / "out", tmp_path / "one")
    kept.tell("a", "x" * 99 + "the end")
    kept.write()
    assert (kept.folder / "log.txt").read_text() == "\n==== a\nxxxthe end"


@pytest.mark.parametrize(("name", "data"), [
    ("summary.json", b"{"), ("summary.json", b"[]"), ("results.tar.gz", b"nonsense"),
    ("results.tar.gz", b"\x1f\x8b\x08"),
])  # fmt: skip
def test_a_folder_that_no_visit_left_is_refused_in_a_sentence(tmp_path, name, data, capsys):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NoVisit, match="give another folder"):
        Kept(tmp_path, tmp_path / "results")
    assert main(["--out", str(tmp_path)]) == 2
    assert "give another folder" in capsys.readouterr().err


# ---- real processes ------------------------------------------------------------------------------


def test_a_process_is_run_from_the_checkout_and_heard():
    code = "import attnbench, sys; print('out'); print('err', file=sys.stderr); sys.exit(1)"
    status, said = called([sys.executable, "-c", code], 60, list)
    assert (status, sorted(said.split())) == (1, ["err", "out"])


def test_a_process_that_hangs_is_ended_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_visit, "GRACE_S", 0.3)
    monkeypatch.setattr(gpu_visit, "KEEP_EVERY_S", 0.5)
    code = (
        "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    kept = []
    status, said = called([sys.executable, "-c", code], 1.2, lambda: kept.append(1))
    assert status is None
    assert len(kept) >= 2
    state = Path(f"/proc/{said.strip()}/stat")
    for _ in range(50):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("what it started is still there")


def test_a_place_that_can_hold_no_folder_is_refused_in_a_sentence(capsys, tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    assert main(["--out", str(taken)]) == 2
    assert capsys.readouterr().err == f"gpu_visit: {taken} can't hold a visit: File exists\n"


def test_a_step_that_is_none_is_refused(capsys, tmp_path):
    assert main(["--out", str(tmp_path), "--steps", "env,dance"]) == 2
    assert "there is no step dance" in capsys.readouterr().err


def test_a_visit_where_there_is_no_gpu_says_so_and_keeps_that(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(visit_steps, "no_cuda", lambda: "there is none")
    monkeypatch.setattr(gpu_visit, "_amiss", lambda: ["nothing is here"])
    assert main(["--out", str(tmp_path), "--steps", "tests,timer,sweep"]) == 2
    out, err = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        [name, "left", "out"] for name in ("tests", "timer", "sweep")
    ]
    assert "note: nothing is here" in err
    assert json.loads((tmp_path / "summary.json").read_text())["amiss"] == ["nothing is here"]
