"""``attnbench tune``: what is kept, that rows run with it, and what keeps the defaults."""

import json
import math
import os
import signal

import pytest

from attnbench.core.machine import this_machine
from attnbench.core.store import read_header, read_records
from attnbench.core.tuned import file_of
from tests.calling import attnbench_, only_run, well
from tests.times import pairs_answer

SMALL = ["--device", "cpu", "--threads", "1"]
MARGIN = ("--margin", "0.05")
ONLINE = ["tune", "online", "--device", "cpu", "--seq", "512"]
ROWS = """
from impls.spec import Variant

def build(problem, work, unused):
    import torch

    hidden = ~torch.from_numpy(problem.mask.visible(problem.shape))
    if work < 0:
        hidden = hidden & False

    def attend(q, k, v):
        for _ in range(abs(work)):
            out = (q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return out

    return attend

def row(name, **tunes):
    return Variant(name=name, title="as often as it is asked", family="mine", build=":build",
                   operator="softmax", gqa=False, masks=("none", "causal"), tunes=tunes,
                   options={"work": 6, "unused": 1})

ROWS = [row("slow", work=(1, 6, 18)), row("liar", work=(-1, 6))]
"""


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """What the file of tuned options holds, in a folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = file_of("cpu", this_machine())
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "mine.py"
    file.write_text(ROWS)
    return "--table", str(file)


# ---- for real, in a worker -----------------------------------------------------------------------


@pytest.mark.slow
def test_less_work_is_kept_and_a_later_run_does_less_and_says_so(kept, table, tmp_path):
    grid = (*["--seq", "96", "--heads", "2", "--head-dim", "16", "--mask", "causal"], *table)
    done = well("tune", "slow", *SMALL, *MARGIN, *grid, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["options"], problem["complete"]) == ({"work": 1}, True)
    final = problem["trials"][-1]
    assert final["final"] and final["comparison"]["verdict"] == "FASTER"
    verdicts = {t["options"]["work"]: t["comparison"]["verdict"] for t in problem["trials"][:-1]}
    assert verdicts == {1: "FASTER", 18: "SLOWER"}
    assert len(kept()) == 1 and "kept in " in done.stderr

    rest = (*SMALL, "--phase", "forward", "--no-report", "--budget", "0.01", "--out")
    run = well("run", "slow", "slow?work=6", *grid, *rest, tmp_path / "out")
    tuned, default = read_records(only_run(tmp_path / "out"))
    assert (tuned.variant, tuned.note) == ("slow", "tuned: work=1")
    assert tuned.options == {"work": 1, "unused": 1}
    assert (default.variant, default.options["work"], default.note) == ("slow?work=6", 6, "")
    assert tuned.time.median_s < default.time.median_s
    assert "note: slow is tuned on this machine: work=1 on 1 problem" in run.stderr
    assert list(read_header(only_run(tmp_path / "out"))["tuned"]["slow"]) == ["work=1"]


@pytest.mark.slow
def test_a_candidate_that_is_wrong_is_a_finding_and_never_kept(kept, table):
    done = well("tune", "liar", *SMALL, *MARGIN, *table, "--seq", "64", "--heads", "2", status=1)
    out = text(done)
    assert "nothing is known of liar: no candidate could be compared" in out
    assert "liar?work=-1" in out and kept() == []


# ---- the search, with times that are made up -----------------------------------------------------

TIMES = {"q_block": {128: 0.5, 256: 0.8, 1024: 1.0, 2048: 1.4}, "k_block": {128: 0.9, 2048: 0.7}}
BOTH = {"q_block": 128, "k_block": 2048}


def pairs_of(against_s, judged_s):
    return pairs_answer([math.log(judged_s / against_s)] * 40, 0.01, against_s, judged_s)


def seconds_of(job):
    given = job["variant"]["given"]
    return math.prod(TIMES.get(name, {}).get(value, 1.0) for name, value in given.items())


@pytest.fixture
def made_up(worker):
    """Each candidate takes what :data:`TIMES` says, and the product of two."""
    worker.answer = lambda question: pairs_of(*map(seconds_of, question["compare"]))
    return worker


def interrupts(worker, when):
    """Ctrl-C comes while a question is answered."""
    answer = worker.answer

    def stopping(question):
        if when(question):
            os.kill(os.getpid(), signal.SIGINT)
        return answer(question)

    worker.answer = stopping


def text(done):
    """What was printed, whatever the width."""
    return " ".join(done.stdout.split())


def options_of(worker):
    return [[job["variant"]["given"] for job in asked["compare"]] for asked in worker.asked]


def test_one_option_after_another_is_tried_and_the_best_is_tried_again_alone(made_up, kept):
    out, best = text(well(*ONLINE)), {"q_block": 128}
    asked = options_of(made_up)
    assert asked[:4] == [[{}, {"q_block": n}] for n in (128, 256, 1024, 2048)]
    assert asked[4:8] == [[best, {**best, "k_block": n}] for n in (128, 256, 1024, 2048)]
    assert asked[8:] == [[{}, BOTH]]
    (line,) = map(json.loads, kept())
    assert (line["variant"], line["options"]) == ("online", BOTH)
    assert line["ratio"] == pytest.approx(0.35)
    assert "with q_block=128, k_block=2048 online takes 0.350 [0.350, 0.350] of the time" in out
    assert "forward, float32, head_dim 64, the mask causal and 363 to 724 tokens" in out


NO_ROOM = {"stopped": {"status": "unsupported", "why": "online: there is no room on the GPU"}}


@pytest.mark.parametrize(
    ("answers", "words", "lines", "status"),
    [
        ([pairs_of(1.0, 1.0)] * 9, "keeps its defaults: of 8 candidates none is 1 % faster", 0, 0),
        ([pairs_of(1.0, 0.5), *[pairs_of(1.0, 1.0)] * 8], "and was not when tried again", 0, 0),
        (
            [NO_ROOM] * 8,
            "online: there is no room on the GPU",
            1,
            2,
        ),  # says nothing of what is kept
    ],
)
def test_what_was_kept_goes_where_all_was_tried_and_nothing_is_faster(
    made_up, kept, answers, words, lines, status
):
    well(*ONLINE)
    assert len(kept()) == 1
    rest = iter(answers)
    made_up.answer = lambda question: next(rest)
    assert words in text(well(*ONLINE, status=status))
    assert len(kept()) == lines


def test_compare_asks_for_what_is_tuned_and_for_a_default_that_is_named(made_up, kept):
    well(*ONLINE)
    made_up.asked.clear()
    words = ["--device", "cpu", "--seq", "512", "--margin", "0.01", "--json"]
    done = well("compare", "online", "online?q_block=512", *words)
    ((default, tuned),) = [[job["variant"] for job in x["compare"]] for x in made_up.asked]
    assert (tuned["tuned"], tuned["given"]) == (BOTH, {})
    assert (default["tuned"], default["given"]) == ({}, {"q_block": 512})
    assert list(json.loads(done.stdout)["tuned"]) == ["online"]
    assert "note: online is tuned on this machine: q_block=128, k_block=2048 on" in done.stderr


def test_each_problem_has_a_line_and_ctrl_c_keeps_those_that_are_over(made_up, kept):
    interrupts(made_up, lambda question: question["compare"][0]["problem"]["kv_len"] == 1024)
    done = well(*ONLINE[:-1], "512,1024,2048", "--json", status=130)
    first, second, third = json.loads(done.stdout)["problems"]
    assert (first["complete"], second["complete"], len(second["trials"])) == (True, False, 1)
    assert third["trials"] == []
    assert [json.loads(line)["kv_len"] for line in kept()] == [512]


def test_what_decided_is_kept_though_ctrl_c_came_while_it_did(made_up, kept):
    interrupts(made_up, lambda _: len(made_up.asked) == 9)  # the trial that decides
    done = well(*ONLINE[:-1], "512,1024", status=130)
    assert len(made_up.asked) == 9 and len(kept()) == 1 and "kept in " in done.stderr


def test_a_folder_that_can_not_be_written_is_refused_before_any_trial(made_up, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null")
    done = attnbench_(*ONLINE)
    assert done.returncode == 2 and made_up.asked == []
    assert "set XDG_DATA_HOME to a folder that you can write to" in done.stderr
