"""A training in its own process, whatever the variant does there; what was told before is kept."""

import textwrap

import pytest

import impls
from attnbench.features.quality import recall
from attnbench.features.quality.recall import Setting, TrainingJob

TINY = Setting(seq=12, pairs=(2, 4), width=8, keys=6, values=6, batch=4, steps=4, looks=2, tests=8)
ROWS = """
    import os, sys, time
    from impls.spec import Variant
    from impls.dense.sdpa import build as sdpa

    CALLS = []

    def row(does):
        def build(problem):
            core = sdpa(problem)

            def attend(q, k, v):
                CALLS.append(problem.phase)
                if CALLS.count("train") == 4:
                    does()
                return core(q, k, v)

            return attend
        return build

    shouts = row(lambda: print("{}", flush=True))
    dies = row(lambda: (print("last words", file=sys.stderr, flush=True), os._exit(7)))
    raises = row(lambda: 1 / 0)
    hangs = row(lambda: time.sleep(600))

    ROWS = [
        Variant(name=name, title=name, family="mine", build=f":{name}", computes="softmax",
                masks=("none", "causal"))
        for name in ("shouts", "dies", "raises", "hangs")
    ]
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.py"
    file.write_text(textwrap.dedent(ROWS))
    return impls.table([file])


def ran(table, name):
    return recall.run(TrainingJob(table.find(name), TINY, 0))


def test_a_variant_that_prints_is_trained_to_its_end(table):
    row = ran(table, "shouts")
    assert (row["status"], row["reason"]) == ("trained", "")
    assert [look["step"] for look in row["curve"]] == [2, 4]
    assert (row["variant"], row["seed"], row["state_numbers"]) == ("shouts", 0, 12 * 16)


def test_a_variant_that_dies_keeps_its_checkpoints_and_its_last_words(table):
    row = ran(table, "dies")
    assert row["status"] == "failed"
    assert row["reason"] == "the worker ended with status 7: last words"
    assert [look["step"] for look in row["curve"]] == [2]


def test_a_variant_that_raises_says_what(table):
    row = ran(table, "raises")
    assert (row["status"], row["reason"]) == ("failed", "ZeroDivisionError: division by zero")


@pytest.mark.slow
def test_a_variant_that_hangs_is_ended(table, monkeypatch):
    monkeypatch.setattr(recall, "START_S", 8.0)
    monkeypatch.setattr(TrainingJob, "limit_s", 0.0)
    row = ran(table, "hangs")
    assert (row["status"], row["reason"]) == ("timed_out", "it was ended after 8 s")
    assert [look["step"] for look in row["curve"]] == [2]


def test_ctrl_c_leaves_no_process_behind(table, monkeypatch):
    started = []

    def stopped(worker, question, limit_s):
        worker._start()
        started.append(worker)
        raise KeyboardInterrupt

    monkeypatch.setattr(recall.Worker, "messages", stopped)
    with pytest.raises(KeyboardInterrupt):
        ran(table, "hangs")
    assert started[0].pid is None
