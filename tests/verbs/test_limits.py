"""``attnbench limits`` and ``profile``: what is asked, what is kept, how it ends."""

import json
import signal
from pathlib import Path

import pytest

from attnbench.core.process import WorkerLost
from attnbench.core.record import Status
from attnbench.core.wire import convert
from impls.problem import Problem
from tests.calling import well
from tests.report import profiles
from tests.verbs.conftest import OKAY, answered

SMALL = ["--phase", "forward", "--max-time", "100ms"]


@pytest.fixture
def probes(worker):
    """The problems that were probed."""
    worker.probed, worker.gate = [], OKAY

    def answer(question):
        if "probe" in question:
            worker.probed.append((convert(question["probe"]["problem"], Problem), question))
        return answered(question, worker.gate)

    worker.answer = answer
    return worker


def limits(*words, out, **more):
    return well("limits", *words, "--out", out, **more)


def kept(out):
    (file,) = Path(out).glob("*/limits-*/limits.json")
    return file, json.loads(file.read_text())


def test_a_worker_is_told_problem_time_and_seed_and_json_is_what_was_kept(probes, tmp_path):
    shape = ["--heads", "2", "--head-dim", "32", "--mask", "none", "--dtype", "bfloat16"]
    more = ["--seed", "7", "--threads", "1", "--max-memory", "2MB", "--json"]
    said = limits("einsum", *SMALL, *shape, *more, out=tmp_path)
    problem, question = probes.probed[0]
    assert str(problem).endswith("d32 bf16 none forward") and problem.heads == 2
    assert question["max_time_s"] == 0.1 and question["probe"]["seed"] == 7
    assert question["expected"] == 2 * 2 * problem.kv_len**2 * 2
    assert probes.settings[0][0].threads == 1
    facts = kept(tmp_path)[1]
    assert json.loads(said.stdout) == facts and facts["rows"][0]["limited_by"] == "memory"


def test_batches_are_searched_at_the_length_that_is_given(probes, tmp_path):
    said = limits("topk", *SMALL, "--by", "batch", "--seq", "100", out=tmp_path)
    assert str(probes.probed[0][0]) == "b1 h4/4 n100 d64 f32 causal forward"
    (row,) = kept(tmp_path)[1]["rows"]
    assert row["held"]["size"] <= 50 < row["fails"]["size"] <= 54
    assert "largest" in said.stdout and "batch" in said.stdout


def test_an_interrupt_keeps_and_prints_what_is_known(probes, tmp_path):
    answer = probes.answer

    def stopping(question):
        found = answer(question)
        for _ in range(2 * (len(probes.probed) == 3)):
            signal.raise_signal(signal.SIGINT)
        return found

    probes.answer = stopping
    said = limits("topk", "mean_v", *SMALL, out=tmp_path, status=130)
    _, facts = kept(tmp_path)
    assert facts["stopped"] is True and all(row["held"] for row in facts["rows"])
    assert "topk*" in said.stdout


def test_a_variant_that_does_not_pass_its_gate_is_a_finding_and_none_to_try_is_2(probes, tmp_path):
    probes.gate = (Status.WRONG, "row 3 moved")
    said = limits("topk", *SMALL, out=tmp_path, status=1)
    assert "row 3 moved" in " ".join(said.stdout.split())
    said = limits("sdpa.cudnn", *SMALL, out=tmp_path / "other", status=2)
    assert "nothing was run" in said.stderr and "needs CUDA" in " ".join(said.stdout.split())


@pytest.mark.parametrize(("ended", "status"), [("wrong", 1), ("timed_out", 2)])
def test_a_worker_that_is_lost_is_no_profile_and_its_end_is_said(worker, tmp_path, ended, status):
    def answer(question):
        raise WorkerLost("it wrote", "", **{ended: True})

    worker.answer = answer
    said = well("profile", "einsum", "--out", tmp_path, status=status).stderr
    assert f"({ended.replace('_', ' ')}): it wrote" in said


def test_a_profiles_folder_holds_its_traces_and_names_them(worker, tmp_path, monkeypatch):
    made = iter([profiles.dense(), profiles.fused()])

    def answer(question):
        Path(question["trace"]).write_text("{}")
        return {"profile": next(made)}

    worker.answer = answer
    said = well("profile", "einsum", "--against", "matmul", "--out", tmp_path, "--json")
    (folder,), sent = tmp_path.iterdir(), json.loads(said.stdout)
    kept = json.loads((folder / "profile.json").read_text())
    traces = ["trace-einsum.json", "trace-matmul.json"]
    assert [p["trace"] for p in kept["profiles"]] == traces
    assert [p["trace"] for p in sent["profiles"]] == [str(folder / trace) for trace in traces]
    assert {path.name for path in folder.iterdir()} == {"profile.json", *traces}
