"""What programs read of each verb, ``--csv``; and beside each verdict what is no softmax."""

import contextlib
import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

from attnbench.command import arguments
from attnbench.core import checkout
from attnbench.core.checkout import Commit
from attnbench.features.commits import rounds, rows
from attnbench.features.commits import verb as commits
from attnbench.features.commits.asv_interface import CommitResults
from attnbench.features.commits.rounds import CommitsComparison
from attnbench.features.selfcheck import selfcheck
from attnbench.features.selfcheck.selfcheck import PlantOutcome
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.report.scenes import ReportRun
from attnbench.report.tidy import measurements
from attnbench.sweep.compare import Compared
from tests.answer.build import timed
from tests.calling import ROOT, SENTENCE, asked, measured_here
from tests.report import profiles
from tests.report.page import runs
from tests.report.page.runs import OWN, PATTERN
from tests.times import in_pairs

EVIDENCE = ROOT / "results/amd-epyc-2c/evidence/20261123-003700-model.json"
OFFERED = [
    part
    for part in arguments.PARTS
    if part.split()[0] in arguments.VERBS and part not in (*arguments.WITHOUT_TABLES, "quality")
]
CALLS = {
    "list": "list",
    "show": "show gla",
    "check": "check sdpa linear.elu --seq 16 --mask none --heads 2 --kv-heads 1 --head-dim 8",
    "selfcheck": "selfcheck",
    "run": "run sdpa matmul linear.elu sdpa.cudnn --seq 16 --mask none --mask causal --heads 2 "
    "--phase forward,train --head-dim 8 --budget 0.01 --threads 1 --no-report",
    "limits": "limits topk sdpa sdpa.cudnn --max-memory 2MiB --phase forward,train",
    "tune": "tune linear.elu --seq 64 --mask causal --margin 0.01",
    "compare": "compare linear.elu sdpa --seq 64,128 --mask none --margin 0.01",
    "history": "history HEAD~1..HEAD",
    "history compare": "history compare base head",
    "profile": "profile einsum --against matmul",
    "choose": "choose --seq 64 --heads 2 --from results/box/a --allow other --mask none",
    "crossover": "crossover sdpa linear.elu --seq 64,512 --mask none --margin 0.01",
    "reproduce": "reproduce words-small key-bias",
    "quality recall": "quality recall --preset cpu-quick",
    "quality model": "quality model sdpa topk linear.elu",
    "quality real": "quality real mean_v linear.elu",
    "quality lm": "quality lm sdpa topk linear.elu --model small",
    "quality caches": "quality caches int8 h2o --model small",
}
MORE = {
    "a matrix": "list --matrix",
    "a map": f"show einsum --text {SENTENCE.replace(' ', '_')}",
    "two runs": "compare results/box/a results/box/b",
    "commits": "compare base head",
    "calls": "choose --problems calls.json --from results/box/a",
    "claims": "reproduce --list",
    "kept": f"quality model --from {EVIDENCE.name}",
}
MEASURED = ("check", "run", "a map")
LONG = ("check", "limits", "quality recall")
PROBLEM = {"phase", "mask", "seq", "dtype", "batch", "heads", "head_dim"}
OF_A_PROBLEM = {
    "check", "run", "limits", "tune", "compare", "two runs", "commits", "history compare",
    "profile", "choose", "calls", "crossover",
}  # fmt: skip
SIZED = {"limits": {"seq"}}  # what is searched is no part of the problem
NUMBERS = re.compile(
    r"(^|_)(ms|mib|ratio|margin|pairs|samples|seq|q_len|batch|heads|head_dim|error|fidelity|minutes"
    r"|could_be_seen|share|accuracy|published|ours|seeds|calls|query|weight|measured_n)$"
)
"""Names of columns of numbers, or how they end."""
DECORATED = re.compile(r"[≈±~+-]?\d[\d.,]*(e-?\d+)?\s*([±×%!?*[(].*|[mµ]?s|[KMG]?i?B|min|h)")
"""A number with a unit, an interval or a mark, which no program reads as a number."""


def tidy(text):
    """The table of a text, which must be one of plain numbers."""
    head, *lines = csv.reader(io.StringIO(text))
    assert lines and all(len(line) == len(head) for line in lines)
    assert all(head) and len(set(head)) == len(head) and head not in lines
    found = pd.read_csv(io.StringIO(text))
    assert list(found) == head  # no column became an index
    for name, column in found.items():
        if not pd.api.types.is_numeric_dtype(column):
            texts = column.dropna().astype(str)
            assert not NUMBERS.search(name), (name, texts)
            assert not texts.str.fullmatch(DECORATED).any(), (name, texts)
    return found


class Asv:
    """asv, which has measured."""

    results, preview_command, root = None, "asv preview", None
    of = classmethod(lambda cls, *_: cls())
    guess_s = staticmethod(lambda *_: 1.0)

    def run(self, *_):
        return True

    def publish(self):
        return Path("index.html")

    def compare(self, *_):
        return []


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A folder with two runs and a program's calls; answers in place of asv and of commits."""
    monkeypatch.chdir(tmp_path)
    problem = runs.PROBLEM
    some = [runs.timed("sdpa", 1e-3, problem), runs.timed("matmul", 3e-3, problem)]
    some.append(runs.other("linear.elu", 5e-4, problem))
    for name in "ab":
        runs.written(tmp_path / "results" / "box" / name, some)
    (tmp_path / EVIDENCE.name).write_bytes(EVIDENCE.read_bytes())
    sites = [Site(problem, "train.py:1 step", "sdpa", 3, 0.1, share=0.3)]
    sites.append(Site(problem, "train.py:2 step", "flex", 3, 0.1, note="why", faithful=False))
    SeenCalls(sites, wall_s=1.0, attention_s=0.2).write(tmp_path / "calls.json")
    outcome = PlantOutcome("zeros", "values", True, "wrong", "row 0 did not move", spent_s=0.5)
    monkeypatch.setattr(selfcheck, "run_plants", lambda *_, **__: iter([outcome]))
    ends = {name: Commit(name, 40 * name[0], f"{name}, a change") for name in ("base", "head")}
    cells = (
        Compared(
            problem=problem, comparison=in_pairs([0.1] * 40), variant="linear.elu", computes=OWN
        ),
        Compared(problem=problem, variant="matmul", computes="softmax", why="gone"),
    )
    compared = CommitsComparison(ends["base"], ends["head"], (), cells, 0.01)
    where = checkout.Repository(tmp_path)
    monkeypatch.setattr(checkout, "repository", lambda *_: where)
    monkeypatch.setattr(checkout.Repository, "refuse_dirty", lambda *_: None)
    monkeypatch.setattr(checkout, "find_commits", lambda *_: [*ends.values()])
    monkeypatch.setattr(checkout, "find_commit", lambda name, *_: ends[name])
    monkeypatch.setattr(rows, "plan_cells", lambda *_: rows.CellPlan([]))
    monkeypatch.setattr(rounds, "compare_in_rounds", lambda *_, **__: compared)
    monkeypatch.setattr(commits, "Asv", Asv)
    monkeypatch.setattr(commits, "ensure_machine", lambda: "box")
    values = {("time", "matmul", "128", "forward"): 1.0, ("time", "sdpa", "128", "forward"): None}
    read = lambda commit, *_: CommitResults(commit, values)  # noqa: E731
    monkeypatch.setattr(commits.CommitResults, "read", read)


@pytest.fixture
def call(place, request):
    """What a call printed, by its name."""

    def of(name, *more):
        words = {**CALLS, **MORE}[name].split()
        with contextlib.ExitStack() as stack:
            if name in MEASURED:
                stack.enter_context(measured_here())
            else:
                request.getfixturevalue("made_up")
            if name == "profile":
                made = iter([{**profiles.dense(), "computes": OWN}, profiles.fused()])
                request.getfixturevalue("worker").answer = lambda _: {"profile": next(made)}
            status, out, err = asked(*words, *more)
        assert status in (0, 1), err
        return out

    return of


@pytest.fixture
def table(call):
    """The table of a call, by its name."""
    return lambda name: tidy(call(name, "--csv"))


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.slow) if part in LONG else part
        for part in (*OFFERED, *MORE)
        if part != "run"
    ],
)
def test_a_verb_that_offers_csv_prints_one_table_of_plain_numbers(table, part):
    found = table(part)
    if part in OF_A_PROBLEM:
        assert PROBLEM - SIZED.get(part, set()) <= set(found)
        assert "computes" in found
        if "linear.elu" in set(found.get("variant", ())):
            assert OWN in set(found["computes"])


@pytest.mark.slow
def test_a_runs_table_has_a_row_a_measurement_with_its_interval(table):
    found = table("run")
    assert {*PROBLEM, "computes"} <= set(found)
    cells = ["variant", "phase", "mask", "seq"]
    assert len(found) == 4 * 2 * 2 == len(found[cells].drop_duplicates())
    timed = found[found["ms"].notna()]
    assert len(timed) == 3 * 4  # sdpa.cudnn needs CUDA
    assert ((timed["low_ms"] <= timed["ms"]) & (timed["ms"] <= timed["high_ms"])).all()
    exact = timed[timed["variant"] != "linear.elu"]
    best = exact.groupby(["phase", "mask", "seq"])["ms"].transform("min")
    assert list(exact["vs_best"]) == pytest.approx(list(exact["ms"] / best))
    assert set(timed[timed["variant"] == "linear.elu"]["verdict"]) == {"not exact"}
    assert list(found[found["ms"].isna()]["verdict"].unique()) == ["unavailable"]


def test_milliseconds_and_mebibytes_are_what_was_recorded(table):
    found = table("choose").set_index("variant")
    assert found.loc["sdpa", "ms"] == 1.0 and found.loc["linear.elu", "ms"] == 0.5
    assert found.loc["matmul", "mib"] == (64 << 12) / 2**20
    assert list(found["verdict"][:3]) == ["use", "slower", "slower"]
    pairs = table("compare")
    assert (pairs["ms"] == 1.0).all() and (pairs["against_ms"] == 1.2).all()


def test_a_verdict_says_what_a_variant_is_to_the_one_to_use():
    flash = {"kernels": ["aten::_scaled_dot_product_flash_attention_for_cpu"]}
    records = [
        replace(timed("sdpa", 64, 1.0), **flash),
        replace(timed("sdpa.flash", 64, 1.01), **flash),
        replace(timed("naive", 64, 0.5), wrong_on="outliers"),
        timed("near", 64, 1.02),
        timed("far", 64, 2.0),
        timed("other", 64, 0.5, computes="another operator"),
    ]
    run = ReportRun(0, Path("run"), {}, records, range(len(records)))
    found = {row["variant"]: row for row in measurements(run)}
    assert {name: row["verdict"] for name, row in found.items()} == {
        "sdpa": "use",
        "sdpa.flash": "same kernel",
        "naive": "wrong on other inputs",
        "near": "tied",
        "far": "slower",
        "other": "not exact",
    }
    assert found["sdpa"]["vs_best"] == 1.0 and found["naive"]["vs_best"] == 0.5


BESIDE = {
    "choose": ("use linear.elu (its own operator, not softmax), 0.5",),
    "compare": ("linear.elu (its own operator, not softmax) against sdpa, 2 problems: SLOWER",),
    "crossover": ("tokens sdpa is faster", "sdpa and linear.elu (its own operator, not softmax)"),
    "profile": ("dense (its own operator, not softmax) takes",),
    "limits": ("topk*", "* not softmax attention"),
    "two runs": ("linear.elu*", "* not softmax attention: its own operator"),
    "commits": ("linear.elu*", "* not softmax attention: its own operator"),
    "history compare": ("linear.elu*", "* not softmax attention: its own operator"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "limits" else n for n in BESIDE]
)
def test_beside_a_verdict_stands_what_is_not_softmax(call, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "300")
    out = call(name)
    for said in BESIDE[name]:
        assert said in out
    assert "sdpa (" not in out and "matmul*" not in out
    computes = PATTERN if name == "limits" else OWN
    assert f'"{computes}"' in call(name, "--json")


def test_a_comment_on_a_pull_request_says_it_too(call):
    out = call("history compare", "--markdown")
    assert "| linear.elu\\* |" in out and "- \\* not softmax attention: its own operator" in out


def test_an_answer_without_a_row_is_a_sentence_and_no_empty_table(place, monkeypatch):
    monkeypatch.setattr("attnbench.features.quality.view.csv_rows", lambda *_: [])
    file = ROOT / "results/amd-epyc-2c/evidence/20261123-002918-recall.json"
    status, out, err = asked("quality", "recall", "--from", str(file), "--csv")
    assert (status, out) == (2, "") and "there is no row for a table" in err
