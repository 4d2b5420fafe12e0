"""A visit to a GPU with every step made up: what is kept, cut off, left out, refused, and gone on
with; packages and caches that are brought along.
"""

import json
import signal
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.core.gpu import Absent, Board
from attnbench.core.record import Energy
from proofs import gpu_visit, visit_steps
from proofs.gpu_visit import NoVisit, Stopped, VisitFolder, main, run_command, visit
from proofs.visit_steps import Room, Step, queue, steps
from tests.machines import BOX, WITH_GPU
from tests.processes import gone, handling
from tests.report.page import runs


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


def test_a_step_that_a_signal_ends_is_failed_and_tried_again(visited):
    kept, _, status = visited([step("a")], 100, a=(5, -signal.SIGKILL, "half"))
    assert (status, kept.steps["a"]["line"]) == ({"a": "failed"}, "signal 9 ended it; half")
    _, machine, status = visited([step("a")], 100)
    assert (len(machine.asked), status) == (1, {"a": "done"})


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


@pytest.mark.parametrize(
    ("call", "statuses", "own", "more"),
    [
        (None, {}, "a", "bc"),
        (2, {}, "bc", "a"),
        (None, {"a": "done", "b": "finding"}, "c", ""),
        (3, {}, "c", "ab"),
        (4, {}, "d", "abc"),
        (None, {"a": "left out", "b": "failed"}, "bc", "a"),
        (None, {"a": "left out", "b": "failed", "c": "done"}, "d", "ab"),
        (None, dict.fromkeys("abcd", "done"), "", ""),
    ],
)
def test_a_call_begins_with_its_own_steps_and_leaves_the_last_calls_to_another_machine(
    call, statuses, own, more
):
    todo = [step("a"), step("b", calls=(2,)), step("c", calls=(2, 3)), step("d", calls=(4,))]
    found = queue(todo, statuses, call)
    assert ["".join(each.name for each in some) for some in found] == [own, more]


def test_the_exit_status_is_that_of_the_calls_own_steps(tmp_path, monkeypatch):
    others = [step("a"), step("b", calls=(2,))]
    monkeypatch.setattr(visit_steps, "steps", lambda: others)
    for status, exits in ((0, 0), (1, 1), (None, 2), (-9, 2)):
        answer = (lambda *_, status=status: (status, "said"), gpu_visit.monotonic)
        monkeypatch.setattr(visit, "__defaults__", answer)
        out = ["--out", str(tmp_path / str(status)), "--device", "cpu"]
        assert main([*out, "--steps", "a", "--minutes", "1"]) == exits
        assert main([*out, "--call", "2", "--minutes", "0.1"]) == 2, "b is not begun"
        assert main([*out, "--call", "2", "--minutes", "1"]) == exits


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


def summary(seconds=2.0, **changes):
    one = {"status": "done", "seconds": seconds, "line": "it is done"}
    return json.dumps({"device": "cuda", "steps": {"env": one}, **changes}).encode()


@pytest.mark.parametrize("where", ["", "new"])
def test_a_trial_on_a_cpu_is_not_gone_on_with_on_a_gpu(tmp_path, where):
    (tmp_path / "summary.json").write_bytes(summary(device="cpu"))
    with pytest.raises(NoVisit, match=f"{tmp_path} holds a visit with --device cpu"):
        VisitFolder(tmp_path / where, tmp_path / "room", "cuda", tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("summary.json", b"{"),
        ("summary.json", summary(seconds="x")),
        ("summary.json", b"[]"),
        ("letters", b""),
    ],
)
def test_a_folder_that_no_visit_left_is_refused_and_left_as_it_is(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert main(["--out", str(tmp_path), "--device", "cpu"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "summary.json").write_bytes(summary())
    (tmp_path / "results.tar.gz").write_bytes(b"nonsense")
    with pytest.raises(NoVisit, match=r"results.tar.gz can't be unpacked"):
        VisitFolder(tmp_path, tmp_path / "room", "cuda")


def test_a_machine_without_a_gpu_is_refused_with_the_reason(tmp_path, capsys):
    if "cuda" in visit_steps.this_machine().devices:
        pytest.skip("there is a GPU")
    assert main(["--out", str(tmp_path)]) == 2
    assert "torch can't use a GPU here: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- what is brought along ----


def wheel(folder, name="brought", tag="py3-none-any"):
    """A wheel of one module, written by hand."""
    folder.mkdir(exist_ok=True)
    about, path = f"{name}-1.0.dist-info", folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "WORD = 'it came along'\n")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_wheels_are_installed_and_one_for_another_python_is_left_out_with_a_sentence(tmp_path):
    wheel(tmp_path / "wheels")
    other = wheel(tmp_path / "wheels", "alien", "cp27-cp27m-win32")
    (note,) = gpu_visit.install(tmp_path / "wheels", tmp_path / "packages")
    assert note.startswith(f"{other.name} is left out: ") and "not a supported wheel" in note
    code = "import brought; print(brought.WORD)"
    told = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout == "it came along\n"
    assert gpu_visit.install(tmp_path, tmp_path / "packages") == [f"{tmp_path} holds no wheels"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder with a kernel that a version of Triton compiled, and fla's tuning of one."""
    monkeypatch.setattr(gpu_visit, "version", lambda name: "3.6.0")

    def made(version):
        for name, data in (("K1/k.json", {"triton_version": version}), ("A1/k.autotune.json", {})):
            (tmp_path / "brought" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "brought" / name).write_text(json.dumps(data))
        return tmp_path / "brought"

    return made


def test_a_cache_of_the_same_triton_is_used_and_packed_for_the_next_visit(cache, tmp_path):
    kept = VisitFolder(tmp_path / "out", tmp_path / "one", "cuda")
    assert gpu_visit.fill_cache(cache("3.6.0"), kept.cache) == []
    kept.write()
    assert archived(kept.folder, "caches.tar.gz") == {"k.json", "k.autotune.json"}
    back = VisitFolder(tmp_path / "out", tmp_path / "two", "cuda")
    assert {p.name for p in back.brought.rglob("*.json")} == {"k.json", "k.autotune.json"}


def test_a_cache_of_another_triton_is_left_alone_with_a_sentence(cache, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (note,) = gpu_visit.fill_cache(cache("3.7.1"), tmp_path / "cache")
    assert "was made by Triton 3.7.1, and this is 3.6.0: it is left alone" in note
    (note,) = gpu_visit.fill_cache(tmp_path / "cache", tmp_path / "cache")
    assert note.endswith("holds no cache of Triton's")
    monkeypatch.undo()
    monkeypatch.setattr(gpu_visit, "version", version_of_nothing)
    (note,) = gpu_visit.fill_cache(cache_folder := tmp_path / "brought", tmp_path / "cache")
    assert cache_folder.is_dir() and "not installed here" in note
    assert not list((tmp_path / "cache").iterdir())


def version_of_nothing(name):
    raise gpu_visit.PackageNotFoundError(name)


def test_a_package_that_attnbench_needs_and_lacks_is_named(tmp_path, monkeypatch, capsys):
    def lacking(*_):
        raise ModuleNotFoundError("No module named 'msgspec'")

    monkeypatch.setattr(gpu_visit, "_visited", lacking)
    assert main(["--out", str(tmp_path)]) == 2
    assert (
        "No module named 'msgspec': bring its wheel along with --wheels" in capsys.readouterr().err
    )


# ---- the machine, and the steps' words ----


def test_a_card_without_tma_and_a_driver_without_rights_are_named(monkeypatch):
    class Forbidding(Board):
        def __init__(self, *_):
            pass

        energy_j = mig = processes = used_bytes = lambda self: Absent("Insufficient Permissions")

    monkeypatch.setattr(visit_steps.nvml, "board", lambda uuid: Forbidding())
    old = replace(WITH_GPU, gpus=(replace(WITH_GPU.gpus[0], capability=8.0, driver="470.1"),))
    notes = "\n".join(visit_steps.notes(replace(old, torch_cuda="13.0")))
    assert "has no TMA" in notes
    assert "no energy will be measured" in notes and "Insufficient Permissions" in notes
    assert "the driver 470.1 is too old" in notes
    new = replace(WITH_GPU, gpus=(replace(WITH_GPU.gpus[0], capability=9.0),))
    assert "TMA" not in "\n".join(visit_steps.notes(new))
    assert visit_steps.notes(replace(BOX, gpus=()))


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


def test_options_that_are_on_or_off_are_tried_both_ways(monkeypatch):
    row = SimpleNamespace(name="ours", options={"fused": False, "splits": 0, "tma": True})
    table = SimpleNamespace(rows={"ours": row})
    monkeypatch.setattr(visit_steps.impls, "table", lambda: table)
    assert visit_steps.with_and_without(["ours", "not.there"]) == [
        "ours", "ours?fused=True", "ours?tma=False"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("repeats", "status", "line"),
    [
        ([1.02, 1.0, 1.04], 0, "energy: 2 of 2 variants within 5 %; the widest 4.0 % (a)"),
        ([1.02, 1.0, 1.2], 1, "energy: 1 of 2 variants within 5 %; the widest 20.0 % (a)"),
        ([1.0], 2, "energy: nothing to compare: each was measured once"),
        ([], 2, "energy: nothing to compare: no run with energy lies here"),
    ],
)
def test_joules_of_repeats_that_lie_apart_are_shown(tmp_path, capsys, repeats, status, line):
    for number, joules in enumerate(repeats, 1):
        folder = tmp_path / f"energy-{number}" / "box" / "run"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(runs.HEADER))
        some = [("a", joules), ("b", 3.0)]
        records = [runs.timed(name, 1e-3, energy=Energy(joules=j)) for name, j in some]
        (folder / "records.jsonl").write_text("".join(f"{r.line()}\n" for r in records))
    assert visit_steps.energies(tmp_path) == status
    assert capsys.readouterr().out.splitlines()[-1] == line


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


def test_a_process_that_is_cut_off_may_still_say_what_it_has():
    code = (
        "import time\nfrom attnbench.command.terminal import as_ctrl_c\n"
        "try:\n    with as_ctrl_c():\n        print('begun', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('kept')"
    )
    with handling(signal.SIG_IGN, signal.SIGINT):
        assert run_command([sys.executable, "-c", code], 3.0, list) == (None, "begun\nkept\n")
