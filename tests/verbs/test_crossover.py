"""``attnbench crossover``: what is searched, what is printed, how it ends, what is refused."""

import json
import math
import os
import signal
import time

import pytest

from attnbench import cli
from attnbench.core.stats import Pairs, paired

SMALL = ["--seq", "64,1024", "--margin", "0.01"]


@pytest.fixture
def worker(monkeypatch):
    """In place of the worker: the second takes 300 tokens' time whatever the length, the first
    one as long as its length; and what was asked."""

    class Engine:
        asked, settings = [], []
        on_ask = staticmethod(lambda n: None)

        def __init__(self, settings, **more):
            Engine.settings.append((settings, more))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def close(self):
            pass

        def ask(self, question, limit_s):
            length = question["compare"][0]["problem"]["kv_len"]
            Engine.asked.append(question)
            if (answer := Engine.on_ask(length)) is not None:
                return answer
            found = paired([math.log(300 / length)] * 40, question["margin"] or 0.02)
            return {"pairs": Pairs(found, [1e-6 * length] * 40, [3e-4] * 40, "decided").to_dict()}

    Engine.asked, Engine.settings = [], []
    monkeypatch.setattr("attnbench.sweep.engine.LocalEngine", Engine)
    return Engine


def run(*words, a="matmul", b="einsum", out="nowhere"):
    return cli.main(["crossover", a, b, *words, "--out", str(out)])


def lengths(worker):
    return [asked["compare"][0]["problem"]["kv_len"] for asked in worker.asked]


def test_the_answer_goes_to_stdout_and_the_looks_to_stderr_as_they_end(worker, capsys, tmp_path):
    assert run(*SMALL, out=tmp_path) == 0
    said = capsys.readouterr()
    assert "where matmul and einsum overtake each other, from 64 to 1,024 (" in said.err
    assert said.err.count("s left] ") == len(worker.asked) == 9
    assert "64: einsum is SLOWER than matmul" in said.err
    words = " ".join(said.out.split())
    assert "from 64 to 288 tokens matmul is faster; from 304 to 1,024 einsum is faster." in words
    assert "einsum overtakes matmul between 288 and 304 (360 pairs at 9 lengths)." in words
    rows = [line.split() for line in said.out.splitlines()]
    assert ["288", "matmul", "0.288", "0.300", "1.042", "1.042–1.042", "40", "1.00", "%"] in rows


def test_json_is_all_that_was_found_and_the_problem(worker, capsys, tmp_path):
    assert run(*SMALL, "--json", "--heads", "2", out=tmp_path) == 0
    sent = json.loads(capsys.readouterr().out)
    (one,) = sent["crossovers"]
    assert (one["before"], one["after"], one["low"], one["high"]) == ("matmul", "einsum", 288, 304)
    assert (sent["a"], sent["b"], sent["range"]) == ("matmul", "einsum", [64, 1024])
    assert (sent["problem"]["heads"], sent["problem"]["phase"]) == (2, "forward")
    assert [each["length"] for each in sent["looks"]] == sorted(lengths(worker))


def test_a_worker_is_told_the_seed_the_threads_and_the_margin(worker, tmp_path):
    assert (
        run("--seq", "64,128", "--margin", "0.05", "--seed", "7", "--threads", "1", out=tmp_path)
        == 0
    )
    assert {asked["margin"] for asked in worker.asked} == {0.05}
    assert {job["seed"] for asked in worker.asked for job in asked["compare"]} == {7}
    (settings, more) = worker.settings[0]
    assert settings.threads == 1 and more == {"limited": True}


def test_a_variant_that_is_wrong_is_a_finding_and_one_too_large_is_not(worker, capsys, tmp_path):
    for status, code in (("wrong", 1), ("out_of_memory", 0)):
        stopped = {"stopped": {"status": status, "why": "matmul: so it was"}}
        worker.on_ask = staticmethod(lambda n, s=stopped: s if n >= 512 else None)
        assert run(*SMALL, out=tmp_path) == code
        out = " ".join(capsys.readouterr().out.split())
        assert "from 512 on they can't be compared" in out and "matmul: so it was" in out
        assert "einsum overtakes matmul between 288 and 304" in out


def test_a_budget_that_ends_it_is_said_and_the_status_is_0(worker, capsys, tmp_path):
    worker.on_ask = staticmethod(lambda n: time.sleep(0.6))
    assert run(*SMALL, "--budget", "0.5", out=tmp_path) == 0
    assert lengths(worker) == [64]
    out = " ".join(capsys.readouterr().out.split())
    assert "matmul is faster at 64 tokens" in out
    assert "the budget was spent before 1,024 was looked at" in out


def test_ctrl_c_twice_ends_it_at_once_with_what_was_found(worker, capsys, tmp_path):
    def twice(length):
        if length == 256:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    worker.on_ask = staticmethod(twice)
    assert run(*SMALL, "--json", out=tmp_path) == 130
    sent = json.loads(capsys.readouterr().out)
    assert [each["length"] for each in sent["looks"]] == [64, 128]
