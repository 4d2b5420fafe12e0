"""What users of command lines expect: tables for a spreadsheet, the newest run, hints, an answer
after Ctrl-C, progress where nobody watches.
"""

import csv
import io
import json
import shlex
import subprocess

import pytest

import impls
from attnbench import cli
from attnbench.command import arguments
from attnbench.command.progress import EVERY_S, Progress
from attnbench.core.record import Record, Status
from attnbench.core.store import read_records
from attnbench.features.report import build
from attnbench.features.run.verb import begin
from attnbench.sweep.places import Local
from attnbench.sweep.sweep import PRIOR_S, Eta
from impls.masks import Mask
from impls.problem import Problem
from tests.calling import asked, only_run
from tests.report.page import runs
from tests.sweep.build import Answering, plan_of


def test_tables_alone_go_to_stdout_as_csv_or_markdown():
    status, out, err = asked("list", "--csv")
    head, *rows = csv.reader(io.StringIO(out))
    assert (status, head[:2], err) == (0, ["variant", "family"], "")
    assert [row[0] for row in rows] == list(impls.table().rows)
    status, out, _ = asked("list", "--markdown")
    assert out.startswith("| variant | family |") and out.count("\n") == len(rows) + 2
    choose = "choose --from results/amd-epyc-2c/20261122-135617 --seq 1024 --phase train --csv"
    status, out, err = asked(*choose.split())
    assert out.startswith("variant,ms,") and "use sdpa" in err and "use sdpa" not in out
    status, out, err = asked("list", "--csv", "--json")
    assert (status, out) == (2, "") and "not allowed with" in err


def test_examples_are_understood_and_stand_in_the_help():
    lines = [line for part in arguments.PARTS.values() for line in part if line.startswith("$ ")]
    given = [arguments.parser().parse_args(shlex.split(line)[2:]) for line in lines]
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
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))
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
    for words in (["report"], ["compare", "latest", "previous"], ["run", "--resume", "latest"]):
        status, out, err = asked(*words)
        assert (status, out) == (2, "") and "there is no latest run: results holds 0 runs" in err


@pytest.mark.parametrize("more", [[], ["--all"]])
def test_ctrl_c_ends_a_run_with_the_answer_from_what_was_measured(
    tmp_path, monkeypatch, capsys, more
):
    engine = Answering(None, None, None, KeyboardInterrupt())
    monkeypatch.setattr("attnbench.sweep.places.LocalEngine", lambda *_, **__: engine)
    words = ["run", "sdpa", "matmul", "--seq", "16,32", "--phase", "forward", "--no-report"]
    assert cli.main([*words, *more, "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert len(list(read_records(only_run(tmp_path)))) == 3
    assert "→ Use " in out and "--resume" in err
    assert ("median ms ±" in out) == bool(more)


def test_naming_lengths_or_masks_measures_these_alone(tmp_path):
    def masks(**changes):
        begun = begin(
            ["sdpa", "window.blocked"], changes, None, [], [], Local(), tmp_path, seed=0, threads=1
        )
        begun.folder.close()
        return {(str(c.problem.mask), c.problem.kv_len) for c in begun.plan.cells}

    causal = {("causal", n) for n in (128, 512, 1024)}
    assert masks() == causal | {("window:127,0", 512)}
    assert masks(seq=("64",)) == {("causal", 64)}
    assert masks(mask=("none",)) == {("none", n) for n in (128, 512, 1024)}
    assert masks(heads=(2,)) == masks()


def test_where_nobody_watches_a_line_comes_each_tenth_or_ten_seconds(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("attnbench.command.progress.monotonic", lambda: now[0])
    with Progress(100, after_s=4.0) as progress:
        for number in range(1, 101):
            now[0] += EVERY_S if number == 55 else 0.1
            status = Status.WRONG if number == 33 else Status.MEASURED
            why = "so" * (number == 33)
            record = Record(status=status, reason=why, variant="a", problem=Problem())
            progress.cell(record, number, 100, 10.0)
    lines = capsys.readouterr().err.splitlines()
    told = [line.split()[0] for line in lines]
    assert told == ["10", "20", "30", "[33/100]", "40", "50", "55", "60", "70", "80", "90", "100"]
    assert "about 14 s left" in lines[0] and "wrong: so" in lines[3]


def test_the_time_left_is_the_guess_until_much_was_measured(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("attnbench.sweep.sweep.monotonic", lambda: now[0])
    cells = plan_of("sdpa", "matmul").to_run
    first, guess = cells[0], sum(cell.guess_s for cell in cells)
    eta = Eta(cell.guess_s for cell in cells)
    now[0] = 200.0  # the worker starts meanwhile, which is no measure of cells
    eta.begin()
    now[0] += 10 * first.guess_s
    slower = (10 * first.guess_s + PRIOR_S) / (first.guess_s + PRIOR_S)
    assert eta.after(first.guess_s) == pytest.approx((guess - first.guess_s) * slower)
