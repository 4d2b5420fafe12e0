"""What users of command lines expect: tables, the newest run, hints, Ctrl-C, progress."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
from threading import Thread

import pytest

import impls
from attnbench import cli
from attnbench.command import arguments
from attnbench.command.progress import EVERY_S, Progress
from attnbench.core.record import Record, Status
from attnbench.core.store import read_records
from attnbench.features.selfcheck import selfcheck
from attnbench.features.selfcheck.selfcheck import PlantOutcome
from impls.masks import Mask
from impls.problem import Problem
from tests.calling import asked, only_run
from tests.report.page import runs
from tests.sweep.build import Answering


def test_data_alone_goes_to_stdout_as_csv_or_markdown():
    status, out, err = asked("list", "--markdown")
    assert (status, err) == (0, "")
    assert out.startswith("| variant | family |") and out.count("\n") == len(impls.table().rows) + 2
    choose = "choose --from results/amd-epyc-2c/20261128-073342 --seq 1024 --phase train"
    status, out, err = asked(*choose.split(), "--markdown")
    assert out.startswith("| variant | ms |") and "use chunked" in err and "use chunked" not in out
    status, out, err = asked(*choose.split(), "--csv")
    assert out.startswith("variant,computes,") and "use chunked" not in out
    status, out, err = asked("list", "--csv", "--json")
    assert (status, out) == (2, "") and "not allowed with" in err


def test_examples_are_understood_and_stand_in_the_help():
    lines = [line for part in arguments.PARTS.values() for line in part if line.startswith("$ ")]
    parser = arguments.parser()
    given = [parser.parse_args(shlex.split(line)[2:]) for line in lines]
    assert {each.verb for each in given} == set(arguments.VERBS)
    for each in given:
        list(map(Mask.parse, getattr(each, "mask", None) or ()))
    _, out, _ = asked("crossover", "--help")
    assert "examples:\n  attnbench crossover sdpa linear.elu --seq 128,16384" in out


def test_completion_is_a_script_that_bash_takes():
    status, out, _ = asked("--completion", "bash")
    assert status == 0 and "crossover" in out and "--max-memory" in out
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two runs in the folder where runs lie."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "box"
    for name, median in (("20260101-000000", 2e-3), ("20260102-000000", 1e-3)):
        runs.written(folder / name, [runs.timed("sdpa", median), runs.timed("matmul", 3e-3)])
    return folder


def test_the_newest_run_needs_no_name(two, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    status, out, err = asked("report", "--open")
    page = two / "20260102-000000" / "report" / "index.html"
    assert status == 0 and opened == [page.as_uri()] and page.exists()
    status, out, _ = asked("compare", "latest", "previous", "--json")
    found = json.loads(out)
    assert (found["a"][-15:], found["b"][-15:]) == ("20260102-000000", "20260101-000000")
    for run in two.iterdir():
        (run / "run.json").rename(run / "gone.json")
    for words in (
        ["report"], ["compare", "latest", "previous"], ["run", "--resume", "latest"],
        ["choose", "--seq", "64", "--from", "latest"],
        ["choose", "--from", "latest", "--export", "x.json"],
    ):  # fmt: skip
        status, out, err = asked(*words)
        assert (status, out) == (2, "") and "there is no latest run: results holds 0 runs" in err


@pytest.mark.parametrize("more", [[], ["--all"]])
def test_ctrl_c_ends_a_run_with_the_answer_from_what_there_is(tmp_path, monkeypatch, capsys, more):
    engine = Answering(None, None, None, KeyboardInterrupt())
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    words = ["run", "sdpa", "matmul", "--seq", "16,32", "--phase", "forward", "--no-report"]
    assert cli.main([*words, *more, "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert len(read_records(only_run(tmp_path))) == 3
    assert "→ Use " in out and "--resume" in err
    assert ("median ms ±" in out) == bool(more)


@pytest.fixture
def clock(monkeypatch):
    """Of progress, as a list of one number."""
    now = [0.0]
    monkeypatch.setattr("attnbench.command.progress.monotonic", lambda: now[0])
    return now


def test_where_nobody_watches_a_line_comes_each_tenth_or_ten_seconds(capsys, clock):
    with Progress() as progress:
        for number in range(1, 101):
            clock[0] += EVERY_S if number == 55 else 0.1
            status = Status.WRONG if number == 33 else Status.MEASURED
            why = "so" * (number == 33)
            record = Record(status=status, reason=why, variant="a", problem=Problem())
            progress.cell(record, number, 100, 0.1, 10.0)
    lines = capsys.readouterr().err.splitlines()
    told = [line.split()[0] for line in lines]
    assert told == ["10", "20", "30", "[33/100]", "40", "50", "55", "60", "70", "80", "90", "100"]
    assert "about 10 s left" in lines[0] and "wrong: so" in lines[3]


SHOWN = {
    "crossover sdpa matmul --seq 64,512 --margin 0.01": "look 2, at 128 tokens",
    "limits sdpa matmul --phase forward": "sdpa forward, seq 1,024",
    "tune linear.elu --seq 64 --margin 0.01": "linear.elu?chunk=512 b1 h4",
    "compare sdpa matmul --seq 64,128,256 --margin 0.01": "n128 d64 f32 causal",
    "env --json": "the noise floor: one variant against itself",
    "quality model sdpa topk": "topk",
    "quality real mean_v linear.elu": "mean_v on normal",
    "quality lm linear.elu --model small": "linear.elu",
    "quality recall --preset cpu-quick": "linear.elu, seed 1",
    "reproduce words-small words-identity": "words-identity",
    "check sdpa matmul --seq 16,32": "sdpa b1",
    "run sdpa matmul --seq 16,32 --phase forward --no-report": "sdpa b1",
}
LEFT = r"about \d+ (s|min) left · "


@pytest.mark.parametrize(("words", "what"), SHOWN.items())
def test_where_nobody_watches_a_verb_says_what_it_does_and_what_is_left(made_up, words, what):
    _, _, err = asked(*words.split())
    said = [line for line in err.splitlines() if re.search(LEFT, line)]
    assert any(what in line for line in said), err
    assert not re.search(r"^\[", err, re.MULTILINE)


@pytest.mark.parametrize("words", [words for words in SHOWN if words.startswith("r")])
def test_on_a_terminal_a_verb_shows_a_bar(made_up, monkeypatch, words):
    shown = on_terminal(monkeypatch, words.split())
    bar = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"━{20,} (\d+/\d+ · )?" + LEFT, bar), bar
    assert SHOWN[words] in bar
    assert not re.search(r"^\d+ of \d+ · ", bar, re.MULTILINE)


def on_terminal(monkeypatch, words):
    """What a verb writes to a terminal on its stderr."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    outer, inner = os.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # nobody holds its other end
            while part := os.read(outer, 1 << 16):
                shown.append(part)

    reading = Thread(target=read)
    reading.start()
    out = contextlib.redirect_stdout(io.StringIO())
    with os.fdopen(inner, "w") as terminal, out, contextlib.redirect_stderr(terminal):
        cli.main(words)
    reading.join()
    os.close(outer)
    return b"".join(shown).decode()


def test_a_run_of_nothing_that_can_run_here_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: Answering())
    for more in ([], ["--no-report"]):
        words = ["run", "sdpa.cudnn", "--device", "cpu", "--seq", "64", *more]
        assert cli.main([*words, "--out", str(tmp_path)]) == 2
        assert "no variant takes these problems here" in capsys.readouterr().err


def test_a_self_check_says_how_long_it_takes(tmp_path, monkeypatch, capsys):
    outcome = PlantOutcome("zeros", "values", True, "wrong", "row 0 did not move")
    monkeypatch.setattr(selfcheck, "run_plants", lambda *_, **__: iter([outcome]))
    assert cli.main(["selfcheck", "--out", str(tmp_path)]) == 0
    assert re.search(r"\d+ faults are injected; about \d", capsys.readouterr().err)
