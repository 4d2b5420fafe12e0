"""``attnbench limits``: what is searched, what is kept, how it ends, what is refused."""

import json
import signal
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.core.record import Probed, Record, Status
from impls.problem import Problem
from impls.spec import Variant

SMALL = ["--phase", "forward", "--max-time", "100ms"]


@pytest.fixture
def worker(monkeypatch):
    """In place of the worker: calls of 20 µs a token and 1 KB, and what was asked."""

    class Engine:
        asked, settings, gate, on_probe = (
            [],
            [],
            (Status.MEASURED, ""),
            staticmethod(lambda n: None),
        )

        def __init__(self, settings, **more):
            Engine.settings.append(settings)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def close(self):
            pass

        def ask(self, question, limit_s):
            job = question.get("job") or question["probe"]
            variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
            if "job" in question:
                status, reason = Engine.gate
                return {"record": Record.of(variant, problem, status, reason).to_dict()}
            Engine.asked.append((problem, question))
            Engine.on_probe(problem)
            time_s = 20e-6 * problem.kv_len * problem.batch
            found = Probed(
                status=Status.MEASURED,
                time_s=time_s,
                samples_s=[time_s] * 3,
                rows=16,
                peak_bytes=1000 * problem.kv_len * problem.batch,
            )
            return {"probe": found.to_dict()}

    Engine.asked, Engine.settings = [], []
    monkeypatch.setattr("attnbench.sweep.engine.LocalEngine", Engine)
    return Engine


def run(*words, out):
    return cli.main(["limits", *words, "--out", str(out)])


def kept(out):
    (file,) = Path(out).glob("*/limits-*/limits.json")
    return file, json.loads(file.read_text())


def test_the_table_goes_to_stdout_and_the_rest_is_kept(worker, capsys, tmp_path):
    assert run("topk", "mean_v", *SMALL, out=tmp_path) == 0
    said = capsys.readouterr()
    assert "longest" in said.out and "topk*" in said.out
    assert "of 2 variants in 2 GiB and 100 ms a call, 2 searches" in said.err
    assert "topk" in said.err and "seq 1,024: holds" in said.err
    file, facts = kept(tmp_path)
    assert str(file) in said.err
    assert facts["budget"] == {"peak_bytes": 2 << 30, "seconds": 0.1}
    assert {"protocol", "started", "machine", "settings", "command", "seed"} <= set(facts)
    for row in facts["rows"]:
        assert row["held"]["size"] <= 5000 < row["fails"]["size"]
        assert row["looks"][0]["size"] == 1024
        assert row["looks"][0]["probe"]["samples_s"]
    for picture in ("limits.png", "limits.svg"):
        assert file.with_name(picture).stat().st_size > 5000


def test_a_worker_is_told_the_problem_the_time_and_the_seed(worker, tmp_path):
    words = [
        "--heads",
        "2",
        "--head-dim",
        "32",
        "--mask",
        "none",
        "--dtype",
        "bfloat16",
        "--seed",
        "7",
        "--threads",
        "1",
    ]
    assert run("einsum", *SMALL, *words, out=tmp_path) == 0
    problem, question = worker.asked[0]
    assert problem.slug == "b1 h2/2 n1024 d32 bf16 none forward"
    assert question["max_time_s"] == 0.1 and question["probe"]["seed"] == 7
    assert question["expected"] == 2 * 2 * 1024 * 1024 * 2
    assert worker.settings[0].threads == 1


def test_the_second_interrupt_stops_at_once_and_keeps_all_the_same(worker, capsys, tmp_path):
    def stop(problem):
        if len(worker.asked) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    worker.on_probe = staticmethod(stop)
    assert run("topk", "mean_v", *SMALL, out=tmp_path) == 130
    assert all(row["held"] for row in kept(tmp_path)[1]["rows"])


@pytest.mark.parametrize(("status", "ends"), [("wrong", 1), ("crashed", 1), ("failed", 1)])
def test_a_variant_that_does_not_pass_its_gate_is_a_finding(worker, capsys, tmp_path, status, ends):
    worker.gate = (Status(status), "row 3 moved")
    try:
        assert run("topk", *SMALL, out=tmp_path) == ends
    finally:
        worker.gate = (Status.MEASURED, "")
    assert "row 3 moved" in capsys.readouterr().out


def test_named_in_vain_ends_with_two(worker, capsys, tmp_path):
    assert run("sdpa.cudnn", *SMALL, out=tmp_path) == 2
    said = capsys.readouterr()
    assert "nothing was run" in said.err and "runs on cuda" in said.out


@pytest.mark.slow
def test_a_real_search_in_a_small_budget(capsys, tmp_path):
    words = ["--max-memory", "4MiB", "--max-time", "20s", "--budget", "60", "--phase", "forward"]
    assert run("einsum", "sdpa.flash", *words, out=tmp_path) == 0
    rows = {row["variant"]: row for row in kept(tmp_path)[1]["rows"]}
    assert rows["einsum"]["held"]["size"] == 320  # two matrices of four heads: 361 would fit
    assert rows["einsum"]["limited_by"] == "memory"
    assert rows["sdpa.flash"]["held"]["size"] == 3456
