"""``attnbench capture -- PROGRAM``: programs that go well, crash, fork, are killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attnbench import cli
from attnbench.models.capture import program
from attnbench.models.capture.calls import SeenCalls
from impls.asked import CantBeDone
from tests import processes
from tests.calling import ROOT

BEGINNING = """
import os, sys, threading, time
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
q = torch.randn(2, 4, 32, 16)

def attend(times=1, q=q):
    for _ in range(times):
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return out
"""


@pytest.fixture
def capture(tmp_path, monkeypatch, capfd):
    """Capture a program; its status, its calls (none where there is no file), what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words, options=()):
        (tmp_path / "program.py").write_text(BEGINNING + text)
        status = cli.main(["capture", *options, "--", sys.executable, "program.py", *words])
        file = tmp_path / "calls.json"
        assert not [f for f in tmp_path.iterdir() if f.suffix in (".parts", ".part")]
        said = capfd.readouterr()
        return status, SeenCalls.read(file) if file.exists() else None, said

    return run


def counted(calls):
    return {str(s.problem): s.calls for s in calls.sites}


CAUSAL = "b2 h4/4 n32 d16 f32 causal forward"


def test_a_program_that_trains_is_captured_and_told(capture, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys; sys.own = 'found'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))  # which is run as ever
    status, calls, said = capture(
        """
from torch.nn.functional import scaled_dot_product_attention as by_another_name
w = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(w.parameters(), lr=0.1)
for step in range(4):
    x = w(q)
    by_another_name(x, x, x).sum().backward()
    optimizer.step()
print("said", sys.argv[1:], sys.own)
print("complained", file=sys.stderr)
""",
        "--epochs",
        "3",
    )
    assert status == 0 and counted(calls) == {"b2 h4/4 n32 d16 f32 none train": 4}
    assert "said ['--epochs', '3'] found" in said.out and "complained" in said.err
    assert "program.py:" in said.out and "attnbench run --problems calls.json" in said.out
    assert "of a training step" in said.out and calls.steps == 3
    assert 0 < calls.step_share < 1 and calls.complete and calls.unseen == []
    assert calls.sites[0].backward_s > 0 and calls.header["status"] == 0


def test_a_program_that_crashes_leaves_what_it_had_called(capture, tmp_path):
    status, calls, said = capture(
        "F.scaled_dot_product_attention(q, q, q, torch.rand(32, 32) > 0.5)\n"
        "print('prose'); sys.exit(7)",
        options=["--json", "--samples"],
    )
    (problem,) = calls.problems()
    assert status == 2 and "ended with status 7" in said.err and not calls.complete
    assert any("status 7" in line for line in calls.unseen)
    assert "prose" in said.err and json.loads(said.out) == calls.to_dict()  # data is by itself
    assert problem.inputs.startswith(f"captured:{tmp_path}/calls.samples/")
    assert str(problem.mask).startswith(f"dense:{tmp_path}/calls.masks/")


def test_a_program_that_is_killed_right_after_a_call_leaves_it(capture):
    code, calls, said = capture("attend(1); os.kill(os.getpid(), 9)")
    assert code == 2 and counted(calls) == {CAUSAL: 1} and not calls.complete
    assert "signal 9" in said.err and any("last second" in line for line in calls.unseen)


@pytest.mark.parametrize(
    ("end", "total"),
    [
        ("os._exit(0)", 3),
        ("sys.argv[1:] or os.execv(sys.executable, [sys.executable, 'program.py', 'again'])", 6),
    ],
)
def test_a_program_that_leaves_without_its_exit_functions_leaves_all_calls(capture, end, total):
    status, calls, _ = capture(f"attend(3)\n{end}")
    assert status == 0 and counted(calls) == {CAUSAL: total}
    assert calls.complete and calls.unseen == []


def test_ctrl_c_to_the_capture_alone_ends_the_program_too(tmp_path):
    (tmp_path / "program.py").write_text(
        BEGINNING + "attend(3); print(os.getpid(), flush=True)\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: attend(2); raise"
    )
    command = [sys.executable, "-m", "attnbench", "capture", "--", sys.executable, "program.py"]
    with processes.handling(
        lambda *_: None, signal.SIGINT
    ):  # whatever these tests were started with
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            start_new_session=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    program = int(process.stdout.readline())
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "signal 2" in err
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)
    made = SeenCalls.read(tmp_path / "calls.json")
    assert counted(made) == {CAUSAL: 5} and not made.complete


def test_a_compiled_program_stays_in_one_graph_and_what_it_met_is_said(capture):
    status, calls, said = capture("""
mha = torch.nn.MultiheadAttention(16, 2, batch_first=True)
def model(x):
    y = mha(x[0], x[0], x[0])[0]
    y = F.softmax(torch.bmm(y, y.mT), -1) @ y
    return attend(1, torch.matmul(y, y.mT).softmax(-1)[None] @ x)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
assert torch.equal(compiled(q), model(q))
""")
    assert status == 0, said.err
    (met,) = (s for s in calls.sites if s.via == "sdpa, compiled")
    assert str(met.problem) == "b2 h4/4 n32 d16 f32 causal train" and met.calls == 0
    assert any("nn.MultiheadAttention" in line for line in calls.unseen)
    assert any("is written out" in line and "program.py:" in line for line in calls.unseen)


def test_processes_forked_and_started_and_threads_are_counted(capture):
    # forks come first: MKL's allocator may spin for ever in one that came after other threads
    status, calls, _ = capture("""
import multiprocessing

class Items(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, n): return attend(1)[0, 0, 0]

def work(_): return float(attend(10).sum())

if sys.argv[1:]:
    attend(5)
elif __name__ == "__main__":
    attend(100)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(4))
        pool.close()
        pool.join()
    list(torch.utils.data.DataLoader(Items(), num_workers=2))
    if (child := os.fork()) == 0:
        attend(1000)
        os._exit(0)
    os.waitpid(child, 0)
    some = [threading.Thread(target=attend, args=(25,)) for _ in range(4)]
    [t.start() for t in some]
    [t.join() for t in some]
    import subprocess
    subprocess.run([sys.executable, __file__, "again"], check=True)
""")
    assert status == 0
    assert counted(calls) == {CAUSAL: 100 + 4 * 10 + 6 + 4 * 25 + 1000 + 5}
    assert calls.header["processes"] >= 4 and calls.complete and calls.unseen == []


def test_a_program_may_ask_for_torch_first_and_a_folder_of_the_users_stays(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calls.parts").mkdir()
    (tmp_path / "calls.parts/thesis.txt").write_text("mine")
    asks = "import importlib.util\nassert importlib.util.find_spec('torch')\n"
    (tmp_path / "program.py").write_text(asks + BEGINNING + "attend()")
    assert cli.main(["capture", "--", sys.executable, "program.py"]) == 0
    assert counted(SeenCalls.read(tmp_path / "calls.json")) == {CAUSAL: 1}
    assert (tmp_path / "calls.parts/thesis.txt").read_text() == "mine"


def test_a_program_with_a_package_named_as_ours_gets_its_own_and_is_not_watched(capture, tmp_path):
    (tmp_path / "impls").mkdir()
    (tmp_path / "impls/__init__.py").write_text("mine = 'its own'")
    status, calls, said = capture("import impls; print(impls.mine); attend()")
    assert (status, calls) == (2, None) and said.out.startswith("its own")
    assert f"it has a package impls of its own, {tmp_path}" in said.err


def test_a_write_that_fails_meanwhile_leaves_the_program_alone(capture, monkeypatch):
    monkeypatch.setattr(program, "EVERY_S", 0.1)
    writes, before = [], SeenCalls.write

    def write(calls, path):
        writes.append(path)
        if len(writes) == 1:
            raise CantBeDone("can't write it: No space left on device")
        before(calls, path)

    monkeypatch.setattr(SeenCalls, "write", write)
    status, calls, _ = capture("attend(3); time.sleep(0.6)")
    assert status == 0 and counted(calls) == {CAUSAL: 3} and len(writes) > 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (["ls"], "not a Python program"),
        ([sys.executable, "-I", "-c", "0"], "with -I, -E or -S"),
        ([sys.executable, "-c", "0/0"], "(it ended with status 1)"),
        ([sys.executable, "-c", "import torch"], "no attention call that is recorded"),
        (["no-such-program"], "No such file"),
        ([], "needs a program after --"),
    ],
)
def test_a_program_without_calls_is_a_sentence(program, why, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["capture", "--", *program]) == 2
    said = capfd.readouterr().err
    assert why in said and said.count("Traceback") == ("0/0" in program)  # which is its own
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "why"),
    [("no/such/calls.json", "No such file"), (".", "it is a folder"), ("a+b.json", "without them")],
)
def test_where_it_can_not_be_written_is_said_before_anything_is_run(
    out, why, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["capture", "--out", out, "--", "touch", "ran"]) == 2
    assert why in capfd.readouterr().err and not (tmp_path / "ran").exists()
