"""A process aside is heard to its end, whatever it does, and nothing of it stays."""

import textwrap
import time

import pytest

from attnbench.core.process import Aside, Lost
from tests.processes import gone

HEAD = """
    import os, signal, sys, time, warnings
    warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
    from attnbench.core.process_child import asked
    question, tell = asked()
    tell({"asked": question, "threads": os.environ["OMP_NUM_THREADS"]})
"""


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """Called with what a process does after its first answer, it has been asked."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = []

    def start(does):
        (tmp_path / "does.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(does))
        made.append(Aside("does", 1))
        made[-1].ask({"n": 1})
        return made[-1]

    yield start
    for each in made:
        each.close()


def soon(seconds=30.0):
    return time.monotonic() + seconds


def test_answers_come_in_their_order_whatever_is_printed_between(aside):
    until = soon()
    one = aside('print("{}", flush=True); tell({"second": 2})')
    assert [*one.answers(until)] == [{"asked": {"n": 1}, "threads": "1"}, {"second": 2}]
    assert one.end(until) == "its process ended with status 0: {}"


@pytest.mark.parametrize("line", ["junk", "[1]", "3", "\\xff"])
def test_what_is_no_answer_is_said_to_be_none(aside, line):
    heard = aside(f"os.write(int(sys.argv[1]), b'{line}\\n')").answers(soon())
    next(heard)
    with pytest.raises(Lost, match="something wrote into its answers what is none"):
        next(heard)


@pytest.mark.parametrize(
    ("does", "how"),
    [
        (
            'print("last\\x1b\\twords\\n", flush=True); os._exit(3)',
            "ended with status 3: last??words",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("raise ValueError('no ' + 'x' * 600)", "ended with status 1: ValueError: no " + "x" * 385),
    ],
)
def test_how_it_ended_is_said_with_its_last_line(aside, does, how):
    until = soon()
    one = aside(does)
    assert len([*one.answers(until)]) == 1
    assert one.end(until) == f"its process {how}"
    one.ask({"n": 2})  # nobody hears it, and nothing is raised


def test_whose_time_is_over_has_not_ended(aside):
    until = soon(4.0)
    one = aside("time.sleep(600)")
    assert len([*one.answers(until)]) == 1
    assert one.end(until) is None and one.lives
    assert time.monotonic() - until < 5.0  # nor is its end waited for


def test_the_dead_are_not_waited_for_though_an_orphan_holds_their_pipe(aside, tmp_path):
    pid = tmp_path / "pid"
    one = aside(f"""
        if os.fork() == 0:
            open({str(pid)!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists({str(pid)!r}):
            time.sleep(0.01)
        os._exit(5)
    """)
    start, until = time.monotonic(), soon(60.0)
    assert len([*one.answers(until)]) == 1
    assert one.end(until) == "its process ended with status 5"
    assert time.monotonic() - start < 30
    one.close()
    assert gone(int(pid.read_text()))
