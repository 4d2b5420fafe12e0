"""What the engine makes of answers that no worker wrote, and of how a worker ends."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import LAST_WORDS, Child, ProcessEnd
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.sweep import asking
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from tests.processes import alive, until

GRID = Preset(
    "one small problem", seq=("16",), heads=(1,), head_dim=(8,), phase=("forward",), budget=0.01
)


WORKER = """
import json, os, sys
os.write(1, bytes.fromhex(sys.argv[1]))
for line in sys.stdin:
    asked = json.loads(line)
    if "settle" in asked:
        print(json.dumps({"settled": asked["settle"], "asked": asked["asked"]}), flush=True)
"""
DYING = "import os, sys; os.write(1, bytes.fromhex(sys.argv[1])); os.kill(os.getpid(), {number})"


class Stand(Child):
    """A worker whose code is given, without a keeper."""

    def __init__(self, code, said):
        self.answers, self.theirs = socket.socketpair()
        self.answers.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._words, words = os.pipe()
        os.set_blocking(self._words, False)
        self._report = self._life = -1
        self._kept = b""
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", code, said.hex()],
            stdin=subprocess.PIPE,
            stdout=self.theirs,
            stderr=words,
            start_new_session=True,
            text=True,
        )
        os.close(words)
        self.pid, self.questions = self.process.pid, self.process.stdin

    def ended(self, patience_s=0.0):
        with suppress(subprocess.TimeoutExpired):
            return ProcessEnd(self.process.wait(patience_s))

    def end(self):
        with suppress(OSError):
            self.questions.close()
        self.process.kill()
        self.process.wait()
        self.theirs.close()


@pytest.fixture
def answering():
    """Engines whose worker says one thing, and afterwards that it has said it."""
    engines = []

    def make(said, code=WORKER):
        engine = LocalEngine(Settings())
        engines.append(engine)
        engine._child = Stand(code, said)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"junk\n",
        b"\xff\xfe\n",
        b"NaN\n",
        b"[]\n",
        b"5\n",
        b'"record"\n',
        b"null\n",
        b"[" * 10_000 + b"\n",
        b'{"a":' * 10_000 + b"\n",
        b"9" * 5000 + b"\n",
        b'{"record": {}}\n',
        b'{"record": {}, "asked": 2}\n',
        b'{"record": {}, "asked": "1"}\n',
        b'{"record": {}, "asked": [1]}\n',
    ],
    ids=lambda said: repr(said[:24]),
)
def test_a_line_that_is_no_answer_loses_the_worker(answering, said):
    engine = answering(said)
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 20)
    assert not caught.value.timed_out
    assert caught.value.reason
    assert engine.worker is None


def test_a_worker_that_has_ended_before_it_is_asked_is_lost_with_its_status(answering):
    engine = answering(b"", "raise SystemExit(3)")
    engine._child.process.wait()
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 20)
    assert caught.value.reason == "the worker ended with status 3"


def test_a_worker_that_ends_is_not_waited_for_though_another_holds_its_pipe(answering, monkeypatch):
    monkeypatch.setattr("attnbench.sweep.engine.POLL_S", 0.05)
    engine = answering(b"", "import sys; sys.stdin.readline()")  # the test holds the other end
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 10)
    assert (caught.value.reason, caught.value.timed_out) == (
        "the worker ended with status 0",
        False,
    )


def test_an_empty_line_is_an_answer_to_nothing_and_no_end(answering):
    with pytest.raises(WorkerLost) as caught:
        answering(b"\n").ask({"job": {}}, 20)
    assert caught.value.reason == "the worker answered another question"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (b"my last words\n", "my last words"),
        (b"USDT: a profile\nmy last words\nUSDT: another\n", "my last words"),
        (b"x" * 5000 + b"\nmy last words\n", "x" * (LAST_WORDS - 15) + "\nmy last words"),
    ],
)
def test_of_what_a_dead_worker_said_since_it_was_asked_the_end_is_kept(answering, words, kept):
    saying = f"import os, sys; os.write(2, bytes.fromhex('{words.hex()}')); sys.stdin.read()"
    engine = answering(b"", saying)
    until(lambda: engine._child._open() and engine._child._hear())
    assert engine._lost("it is gone", timed_out=False).said == kept


def test_what_was_said_of_the_cell_before_is_forgotten(answering):
    engine = answering(b"", "import os, sys; os.write(2, b'of the one before'); sys.stdin.read()")
    until(lambda: engine._child._hear())
    engine._child.forget()
    assert engine._lost("it is gone", timed_out=False).said == ""


def test_a_worker_imports_nothing_from_where_it_stands():
    with LocalEngine(Settings()) as engine:
        engine._child = engine._start()
        words = engine._child.keeper.args
        python, *options = words[: words.index("-m")]
    said = "import sys; print('' in sys.path)"
    run_so = subprocess.run(
        [python, *options, "-S", "-c", said], stdout=subprocess.PIPE, check=True
    )
    assert run_so.stdout == b"False\n"


def test_after_an_answer_that_says_it_was_spoiled_the_worker_is_replaced(answering):
    engine = answering(b'{"record": {}, "spoiled": true, "asked": 1}\n')
    assert engine.ask({"job": {}}, 20) == {"record": {}}
    assert engine.worker is None
    unspoiled = answering(b'{"record": {}, "spoiled": false, "asked": 1}\n')
    assert unspoiled.ask({"job": {}}, 20) == {"record": {}}
    assert alive(unspoiled.worker)


def test_what_a_worker_left_half_said_is_not_heard_from_the_next(answering):
    engine = answering(b"")
    engine._buffer = b'{"rec'
    engine.close()
    assert engine._buffer == b""


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        '{"record": 5}',
        '{"record": null}',
        '{"record": []}',
        '{"record": {}}',
        '{"record": {"schema": 1}}',
        '{"record": {"schema": 1, "time": 5}}',
        '{"record": {"schema": 1, "variant": 5, "status": [], "problem": 5, "reason": ""}}',
        '{"error": "no"}',
        '{"ready": {}}',
    ],
)
def test_an_answer_that_is_no_record_is_a_crash_and_no_traceback(answering, hostile, answer):
    said = answer.encode()[:-1] + (b"," if len(answer) > 2 else b"") + b'"asked": 1}\n'
    engine = answering(said)
    (cell,) = make_plan(impls.table([hostile]), ["bmm"], GRID, this_machine()).to_run
    with pytest.raises(WorkerLost) as caught:
        asking._asked(cell, {}, engine, 20)
    assert caught.value.reason
    assert not caught.value.timed_out
    assert engine.worker is None


def test_a_record_about_another_cell_is_a_crash(answering, hostile):
    plan = make_plan(impls.table([hostile]), ["bmm", "matmul"], GRID, this_machine())
    bmm, matmul = plan.to_run
    other = Record.of(matmul.variant, matmul.problem, Status.FAILED, "it was slow", seed=0)
    engine = answering(json.dumps({"record": other.to_dict(), "asked": 1}).encode() + b"\n")
    with pytest.raises(WorkerLost) as caught:
        asking._asked(bmm, {}, engine, 20)
    assert caught.value.reason == "the worker answered about another cell"
    assert engine.worker is None


def test_an_answer_to_an_earlier_question_is_passed_over(answering):
    engine = answering(b'{"stale": 1, "asked": 0}\n{"fresh": 1, "asked": 1}\n')
    assert engine.ask({"job": {}}, 5.0) == {"fresh": 1}


def test_what_another_process_writes_is_not_taken_for_an_answer(answering):
    engine = answering(b"")
    said = b'{"record": {}, "asked": 1}\n'
    code = "import os, sys; os.write(1, bytes.fromhex(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-S", "-c", code, said.hex()], stdout=engine._child.theirs, check=True
    )
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 5.0)
    assert caught.value.wrong
    assert caught.value.reason == "another process answered in its place"


@pytest.mark.parametrize(
    "more",
    [
        b'{"record": {}, "asked": 1}\n',
        b'{"settled": "guessed", "asked": 1}\n',
        b'{"settled": null, "asked": 1}\n',
        b'{"record": {}, "settled": 1, "asked": 1}\n',
    ],
)
def test_a_second_answer_to_one_question_is_a_forgery(answering, more):
    engine = answering(b'{"record": {}, "asked": 1}\n' + more)
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 5.0)
    assert caught.value.wrong
    assert caught.value.reason == "it answered twice: one of the answers is forged"
    assert engine.worker is None


@pytest.mark.parametrize(
    ("doing", "number", "reason", "wrong"),
    [
        (["it wrote"], 11, "it wrote", True),
        (["it wrote"], 7, "it wrote", True),
        (["it wrote", ""], 11, "the worker died of SIGSEGV", False),
        ([], 11, "the worker died of SIGSEGV", False),
        (["it wrote"], 9, "the worker died of SIGKILL", False),
    ],
)
def test_a_death_means_what_the_worker_said_that_it_would(answering, doing, number, reason, wrong):
    said = "".join(json.dumps({"doing": d, "asked": 1}) + "\n" for d in doing)
    engine = answering(said.encode(), DYING.format(number=number))
    engine._child.theirs.close()
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 5.0)
    assert (caught.value.reason, caught.value.wrong) == (reason, wrong)


def test_what_was_said_of_an_earlier_question_is_forgotten(answering):
    engine = answering(b'{"doing": "it wrote", "asked": 1}\n{"ready": 1, "asked": 1}\n')
    engine._child.theirs.close()
    assert engine.ask({"job": {}}, 5.0) == {"ready": 1}
    os.kill(engine.worker, 11)
    with pytest.raises(WorkerLost) as caught:
        engine.ask({"job": {}}, 5.0)
    assert (caught.value.reason, caught.value.wrong) == ("the worker died of SIGSEGV", False)
