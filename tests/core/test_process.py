"""A child process: whose answers count, how its end is reported, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from attnbench.core import process
from attnbench.core.process import LAST_WORDS, Worker, WorkerLost, free_memory
from tests.processes import alive, gone, marked, until

SERVING = """
    import os, signal, subprocess, sys, time
    from attnbench.core.process_child import serve

    def sleeper(*how, **more):
        code = "import time; time.sleep(600)"
        return subprocess.Popen([*how, sys.executable, "-S", "-c", code], **more)

    def respond(question, answers):
        answers.stage({"n": 1})
        for each in question.get("doing", ()):
            answers.send({"doing": each})
        exec(question["do"], {**globals(), 'answers': answers})
        return {"threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}

    serve(respond)
"""
"""Executes what a question says between a stage and the answer."""
RAW = """
    import json, os, sys
    questions, pipe, _ = map(int, sys.argv[1:])
    for line in os.fdopen(questions):
        asked = json.loads(line)
        if "settle" not in asked:
            os.write(pipe, bytes.fromhex(asked["line"]))
        else:
            settled = {"settled": asked["settle"], "asked": asked["asked"]}
            os.write(pipe, json.dumps(settled).encode() + b"\\n")
"""
"""Writes what a question says in place of an answer."""


@pytest.fixture
def worker(tmp_path):
    """Called with a module's code, a worker that runs it."""
    made = []

    def start(code, **more):
        (tmp_path / "a_worker.py").write_text(textwrap.dedent(code))
        made.append(Worker("a_worker", 1, path=tmp_path, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of everything started here."""
    word = f"ATTNBENCH_TEST_{os.getpid()}_{os.urandom(4).hex()}"
    monkeypatch.setenv(word, "1")
    return word


def lost(worker, limit_s=20.0, **question):
    with pytest.raises(WorkerLost) as caught:
        worker.ask({"do": "", **question}, limit_s)
    assert worker.pid is None
    return caught.value


def test_stages_and_answers_come_in_order_whatever_is_printed(worker):
    one = worker(SERVING)
    first = list(one.messages({"do": 'print("{}"); os.write(1, b"x" * 300000)'}, 20))
    assert first == [{"n": 1}, {"threads": "1", "pid": one.pid}]
    assert one.ask({"do": ""}, 20)["pid"] == one.pid
    one.close()
    one.close()
    assert one.ask({"do": ""}, 20)["pid"] == one.pid, "the next one is asked"


LOUD = r"os.write(2, b'USDT: a\n' + b'x' * 9000000 + b'\nthe end\nUSDT: b'); os._exit(3)"


@pytest.mark.parametrize(
    ("does", "reason", "last"),
    [
        ('print("last\\x1b\\twords\\n", flush=True); os._exit(3)', "ended with status 3", "words"),
        ("raise ValueError('no ' + 'x' * 600)", "ended with status 1", "no " + "x" * 385),
        ("os.kill(os.getpid(), 42)", "died of signal 42", ""),
        ("os._exit(0)", "ended with status 0", ""),
        (LOUD, "ended with status 3", "the end"),
        # the orphan holds the pipe
        ("if os.fork(): os._exit(5)\nelse: time.sleep(600)", "ended with status 5", ""),
        ("sys.exit('MISSING' * ('' not in sys.path))", "ended with status 1", "MISSING"),
    ],
    ids=range(7),
)
def test_how_it_ended_is_reported_with_its_last_words(worker, does, reason, last):
    one = worker(SERVING)
    one.ask({"do": 'os.write(2, b"of the first question\\n")'}, 20)
    gone = lost(one, do=does)
    assert gone.reason == f"the worker {reason}"
    assert str(gone).endswith(last) and "\x1b" not in str(gone)
    assert len(gone.output) <= LAST_WORDS and "first question" not in gone.output
    assert not gone.timed_out and not gone.wrong


@pytest.mark.parametrize("does", ["time.sleep(600)", "while True: answers.send({'doing': 'x'})"])
def test_what_is_not_done_in_time_is_ended(worker, does):
    started = time.monotonic()
    found = lost(worker(SERVING), 0.4, do=does)
    assert (found.reason, found.timed_out) == ("it was still running after 1 s", True)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("doing", "number", "reason", "wrong"),
    [
        (["it wrote"], 11, "it wrote", True),
        (["it wrote"], 7, "it wrote", True),
        (["it wrote", ""], 11, "the worker died of SIGSEGV", False),
        (["it wrote"], 9, "the worker died of SIGKILL", False),
        ([], 11, "the worker died of SIGSEGV", False),
    ],
)
def test_a_death_means_what_the_worker_announced_for_that_question(
    worker, doing, number, reason, wrong
):
    one = worker(SERVING)
    one.ask({"do": "", "doing": ["it wrote"]}, 20)
    gone = lost(one, do=f"os.kill(os.getpid(), {number})", doing=doing)
    assert (gone.reason, gone.wrong) == (reason, wrong)


ANSWER = b'{"record": {}, "asked": 1}\n'
FORGED = "it answered twice: one of the answers is forged"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe\n", "no JSON"),
        (b"[" * 10_000 + b"\n", "no JSON"),
        (b"NaN\n", "another question"),
        (b'{"record": {}, "asked": 2}\n', "another question"),
        (b'{"record": {}, "asked": "1"}\n', "another question"),
        (b'{"stage": 5, "asked": 1}\n', "no JSON object"),
        (b'{"record": "' + b"x" * (1 << 22) + b'", "asked": 1}\n', "does not end"),
        (ANSWER * 2, FORGED),
        (ANSWER + b'{"settled": "guessed", "asked": 1}\n', FORGED),
        (ANSWER + b'{"record": {}, "settled": 1, "asked": 1}\n', FORGED),
    ],
    ids=range(10),
)
def test_a_line_that_is_no_answer_loses_the_worker(worker, line, reason):
    gone = lost(worker(RAW), line=line.hex(), job={})
    assert gone.reason.endswith(reason)
    assert (gone.timed_out, gone.wrong) == (False, reason == FORGED)


def test_an_answer_to_an_earlier_question_is_passed_over_and_a_spoiled_one_is_the_last(worker):
    one = worker(RAW)
    line = b'{"stale": 1, "asked": 0}\n{"fresh": 1, "spoiled": false, "asked": 1}\n'
    assert one.ask({"line": line.hex()}, 20) == {"fresh": 1}
    assert one.pid
    line = b'{"record": {}, "spoiled": true, "asked": 2}\n'
    assert one.ask({"line": line.hex()}, 20) == {"record": {}}
    assert one.pid is None


def test_no_other_process_answers_in_its_place(worker):
    assert worker(SERVING).ask({"do": "os.fork()"}, 20)["threads"] == "1"
    does = f"if not os.fork(): os.write(int(sys.argv[2]), {ANSWER!r}); os._exit(0)\ntime.sleep(60)"
    found = lost(worker(SERVING), do=does)
    assert (found.reason, found.wrong) == ("another process answered in its place", True)


def test_a_worker_that_another_thread_stops_is_lost_and_no_other_is_started(worker):
    one = worker(SERVING)
    one.ask({"do": ""}, 20)
    stopping = threading.Timer(0.2, one.stop)
    stopping.start()
    assert lost(one, do="time.sleep(600)").reason == "the worker died of SIGKILL"
    stopping.join()
    assert lost(one).reason == "the worker was stopped"


@pytest.mark.parametrize("which", ["worker", "keeper"])
def test_a_worker_that_is_killed_from_outside_is_lost_with_the_signal(worker, mark, which):
    one = worker(SERVING)
    one.ask({"do": f"sleeper(start_new_session={which == 'worker'})"}, 20)
    os.kill(one.pid if which == "worker" else one._child.keeper.pid, signal.SIGKILL)
    until(lambda: not alive(one.pid))
    assert lost(one).reason == "the worker died of SIGKILL"
    until(lambda: not marked(mark), 10)


def test_what_it_started_ends_with_it_wherever_it_went(worker, mark):
    one = worker(SERVING)
    for does in (
        "sleeper()",
        "sleeper('setsid', start_new_session=True)",
        "if not os.fork():\n sleeper('nohup', start_new_session=True, env={}); os._exit(0)",
    ):
        one.ask({"do": does}, 20)
    one.close()
    until(lambda: not marked(mark), 10)
    until(lambda: not any(map(_sleeps, Path("/proc").glob("[0-9]*"))), 10)


def _sleeps(entry):
    """Whether it is a process started here, though it may hide its environment."""
    try:
        return b"import time; time.sleep(600)" in (entry / "cmdline").read_bytes()
    except OSError:
        return False


def test_all_of_it_ends_when_the_parent_is_killed(worker, tmp_path, mark):
    worker(SERVING)
    parent = textwrap.dedent(f"""
        from pathlib import Path
        from attnbench.core.process import Worker
        one = Worker("a_worker", 1, path=Path({str(tmp_path)!r}))
        does = "sleeper('setsid', start_new_session=True); time.sleep(600)"
        for message in one.messages({{"do": does}}, 100.0):
            print(one.pid, flush=True)
    """)
    words = [sys.executable, "-c", parent]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE) as started:
        assert alive(int(started.stdout.readline()))
        until(lambda: len(marked(mark)) >= 4)
        started.kill()
    until(lambda: not marked(mark), 10)


def test_a_worker_may_hold_so_much_and_goes_first_when_memory_ends(worker, tmp_path, monkeypatch):
    one = worker(SERVING)
    one.ask({"do": ""}, 20)
    status = Path(f"/proc/{one.pid}")
    assert (status / "oom_score_adj").read_text().strip() == "1000"
    (line,) = [x for x in (status / "limits").read_text().splitlines() if "data size" in x]
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 << 28 < int(line.split()[3]) <= process.SHARE * whole
    assert "MemoryError" in str(lost(one, do="b'x' * (1 << 40)"))
    # a control group that holds less than the machine counts
    (tmp_path / "memory.max").write_text(f"{3 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{2 << 30}\n")
    (tmp_path / "memory.stat").write_text(f"anon {1 << 30}\ninactive_file {1 << 30}\n")
    monkeypatch.setattr(process, "GROUP", tmp_path)
    assert free_memory() == int(process.SHARE * (2 << 30)), "the page cache is given back"
    (tmp_path / "memory.current").write_text(f"{4 << 30}\n")
    assert free_memory() == 1, "0 would be no limit"
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 2 << 30


STARTING = """
    import os, signal, subprocess, sys, time
    print("begun"); print("no error", file=sys.stderr); print(sys.stdin.read(), os.getcwd())
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    {}
"""


@pytest.fixture
def program(tmp_path):
    def started(then, **more):
        code = textwrap.dedent(STARTING).format(then)
        return process.Program([sys.executable, "-c", code], folder=tmp_path, **more)

    return started


def test_a_program_is_told_its_input_and_what_it_says_is_kept_in_order(program, tmp_path):
    lines = []
    with program("sys.exit('the last word')", given="given", watch=lines.append) as running:
        assert running.wait(60) == 1
        assert running.last_line() == "the last word"
    assert lines[:3] == ["begun\n", "no error\n", f"given {tmp_path}\n"]
    assert gone(int(lines[3]))  # though it did not end it
    with process.Program(["./none"], folder=tmp_path) as missing:
        assert missing.wait(60) == 127
        assert missing.last_line() == "./none: No such file or directory"


@pytest.mark.parametrize(
    ("before", "stopped"), [("signal.signal(signal.SIGINT, signal.SIG_IGN); ", True), ("", False)]
)
def test_of_a_program_that_is_stopped_nothing_is_left(program, monkeypatch, before, stopped):
    monkeypatch.setattr(process, "LEAVE_S", 0.2)
    lines = []
    try:
        with program(f"{before}time.sleep(600)", watch=lines.append) as running:
            until(lambda: running.wait(0.05) is None and len(lines) == 4)
            if stopped:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert stopped
    assert gone(running.pid)
    assert gone(int(lines[3]))
    assert lines[:2] == ["begun\n", "no error\n"]
