"""``attnbench capture -- PROGRAM``: programs that go well, fork, are interrupted and killed."""

import json
import signal
import sys
import threading

import pytest

from attnbench import cli
from attnbench.models.capture import program
from attnbench.models.capture.calls import SeenCalls
from impls.errors import CantBeDone
from tests.processes import until

BEGINNING = """
import importlib.util, multiprocessing, os, sys, threading, time
assert importlib.util.find_spec("torch")  # who only asks uses up nothing
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
q = torch.randn(2, 4, 32, 16)

def attend(times=1, q=q):
    for _ in range(times):
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return out
"""
STARTER = """
import os, sys
if not sys.argv[1:]:
    os.execv(sys.executable, [sys.executable, "program.py", "again"])
"""
CAUSAL = "b2 h4/4 n32 d16 f32 causal forward"


@pytest.fixture
def capture(tmp_path, monkeypatch, capfd):
    """Capture a program; its status, its calls (none where there is no file), what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words, options=(), beginning=BEGINNING):
        (tmp_path / "program.py").write_text(beginning + text)
        status = cli.main(["capture", *options, "--", sys.executable, "program.py", *words])
        file = tmp_path / "calls.json"
        assert not [f for f in tmp_path.iterdir() if f.suffix in (".parts", ".part")]
        said = capfd.readouterr()
        return status, SeenCalls.read(file) if file.exists() else None, said

    return run


def counted(calls):
    return {str(s.problem): s.calls for s in calls.sites}


@pytest.mark.slow
def test_a_program_that_trains_forks_and_becomes_another(capture, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys; sys.own = 'found'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))  # which is run as ever
    # forks come first: MKL's allocator may spin for ever in one that came after other threads
    status, calls, said = capture(
        """
from torch.nn.functional import scaled_dot_product_attention as by_another_name

class Items(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, n): return float(attend(1).sum())

def work(_): return float(attend(10).sum())

if __name__ == "__main__":
    attend(100)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(4))
        pool.close()
        pool.join()
    # a list, since a tensor comes through a socket, whose path in the folder of temporary files
    # may be too long
    list(torch.utils.data.DataLoader(Items(), num_workers=2, collate_fn=list))
    some = [threading.Thread(target=attend, args=(25,)) for _ in range(4)]
    [t.start() for t in some]
    [t.join() for t in some]
    w = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(w.parameters(), lr=0.1)
    for step in range(4):
        x = w(q)
        by_another_name(x, x, x).sum().backward()
        optimizer.step()
    print("said", sys.argv[1:], sys.own, flush=True)
    print("complained", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "0"])
""",
        "--epochs",
        "3",
    )
    assert status == 0 and calls.complete and calls.unseen == []
    many = 100 + 4 * 10 + 6 + 4 * 25
    assert counted(calls) == {CAUSAL: many, "b2 h4/4 n32 d16 f32 none train": 4}
    assert calls.header["processes"] >= 3 and calls.header["status"] == 0
    assert "said ['--epochs', '3'] found" in said.out and "complained" in said.err
    assert "program.py:" in said.out and "attnbench run --problems calls.json" in said.out
    assert "of a training step" in said.out and calls.steps == 3 and 0 < calls.step_share < 1
    (trained,) = (s for s in calls.sites if s.problem.phase == "train")
    assert trained.backward_s > 0


@pytest.mark.slow
def test_what_was_called_so_far_is_written_while_the_program_runs(capture, monkeypatch):
    monkeypatch.setattr(program, "EVERY_S", 0.1)
    writes, before = [], SeenCalls.write

    def write(calls, path):
        writes.append(path)
        if len(writes) == 1:
            raise CantBeDone("can't write it: No space left on device")
        before(calls, path)

    monkeypatch.setattr(SeenCalls, "write", write)
    status, calls, _ = capture("""
import json
attend(20)
until = time.monotonic() + 60
while not os.path.exists("calls.json") and time.monotonic() < until: time.sleep(0.05)
with open("calls.json") as file: found = json.load(file)
assert [s["calls"] for s in found["sites"]] == [20] and not found["complete"]
attend(1)
""")
    assert status == 0 and calls.complete and counted(calls) == {CAUSAL: 21}


@pytest.mark.slow
def test_an_interrupt_leaves_the_calls(capture, tmp_path):
    def interrupt():
        until((tmp_path / "begun").exists)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    # what was started in the background of a shell ignores the signal from its start
    status, calls, said = capture(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
F.scaled_dot_product_attention(q, q, q, torch.rand(32, 32) > 0.5)
attend(3)
print("prose", flush=True)
time.sleep(0.5)
open("begun", "w").close()
try:
    time.sleep(60)
except KeyboardInterrupt:
    if (child := os.fork()) == 0:
        attend(1000)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    attend(2)
    raise
""",
        beginning=STARTER + BEGINNING,
        options=["--json"],
    )
    waiting.join()
    assert status == 130 and "ended with signal 2" in said.err and not calls.complete
    assert 5 < sum(s.calls for s in calls.sites if str(s.problem.mask) == "causal") <= 1005
    assert any("was killed" in line and "last second" in line for line in calls.unseen)
    assert "prose" in said.err and json.loads(said.out) == calls.facts()  # data is by itself
    (hidden,) = (p for p in calls.problems() if p.mask.kinds == ("dense",))
    assert str(hidden.mask).startswith(f"dense:{tmp_path}/calls.masks/")


def test_a_program_with_a_package_named_as_ours_gets_its_own_and_is_not_watched(capture, tmp_path):
    (tmp_path / "impls").mkdir()
    (tmp_path / "impls/__init__.py").write_text("mine = 'its own'")
    (tmp_path / "torch.py").touch()
    status, calls, said = capture("import impls, torch; print(impls.mine)", beginning="")
    assert (status, calls) == (2, None) and said.out.startswith("its own")
    assert f"it has a package impls of its own, {tmp_path}" in said.err


def test_what_fails_before_it_calls_anything_says_so_after_its_own_words(capture):
    status, calls, said = capture("0/0", beginning="")
    assert (status, calls) == (2, None)
    assert "ZeroDivisionError" in said.err and "(it ended with status 1)" in said.err


COMPILED = """
@torch.compile(backend="aot_eager")
def model(x):
    return F.scaled_dot_product_attention(x, x, x) + 1

for _ in range(5):
    model(q)
"""


@pytest.mark.slow
def test_a_compiled_call_has_its_line_and_its_kernel_where_the_program_loads_the_compiler(capture):
    _, calls, _ = capture(COMPILED)
    (site,) = calls.sites
    lines = (BEGINNING + COMPILED).splitlines()
    line = lines.index("    return F.scaled_dot_product_attention(x, x, x) + 1")
    assert site.site == f"program.py:{line + 1} model" and site.calls == 5
    assert (site.via, site.call.kernel, site.call.gradient) == ("sdpa, compiled", "flash", False)


@pytest.mark.slow
def test_a_function_in_the_place_of_torchs_is_named(capture):
    status, calls, said = capture(
        "def own(q, k, v): return q\n"
        "F.scaled_dot_product_attention = own\n"
        "F.scaled_dot_product_attention(q, q, q)"
    )
    words = " ".join(said.out.split())
    assert status == 0 and calls.complete and not calls.sites
    assert "torch.nn.functional.scaled_dot_product_attention by __main__.own" in words
    assert "attention calls were met, and none could be recorded" in words


@pytest.mark.slow
def test_other_shapes_at_every_step_of_several_threads_are_counted(capture):
    status, calls, said = capture(
        "def work(n):\n"
        "    for m in range(300): attend(1, torch.randn(1, 2, 1 + m, 8))\n"
        "some = [threading.Thread(target=work, args=(n,)) for n in range(3)]\n"
        "[t.start() for t in some]; [t.join() for t in some]"
    )
    assert status == 0 and sum(counted(calls).values()) == 900 and len(calls.sites) < 12
    assert "stands for" in said.out


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("sys.exit(3)", "status 3"),
        pytest.param("time.sleep(1); os.kill(os.getpid(), 9)", "signal 9", marks=pytest.mark.slow),
    ],
)
def test_however_a_program_ends_what_it_called_is_kept(capture, end, words):
    status, calls, said = capture(f"attend(20)\n{end}")
    assert status == 2 and f"the program ended with {words}" in said.err
    assert counted(calls) == {CAUSAL: 20} and not calls.complete


@pytest.mark.slow
def test_a_program_that_runs_on_is_ended_after_its_seconds_though_it_ignores_signals(
    capture, monkeypatch
):
    monkeypatch.setattr(program, "GRACE_S", 0.3)
    status, calls, _ = capture(
        "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "attend(20)\nwhile True: time.sleep(0.05)",
        options=["--seconds", "1"],
    )
    assert status == 0 and counted(calls) == {CAUSAL: 20} and not calls.complete
    assert any("ended 1 s after its first call" in line for line in calls.unseen)
