"""A plan carried out, with trainings made up: budgets first, others go on, what is done is kept."""

from pathlib import Path

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.features.quality import recall
from attnbench.features.quality.recall import NotTrainable, TrainingProgress
from impls.loading import load_file

made_up = load_file(Path(__file__).with_name("made_up_recall.py"))


def planned(*names, seeds=(0, 1), settings=(made_up.SETTING,)):
    preset = recall.PRESETS["cpu"]
    return recall.made(
        impls.table(), names, preset, settings, this_machine(), seeds=seeds, threads=1
    )


def trained(job, **more):
    good = {4: 1.0, 8: 0.9}
    return made_up.row(job.variant.label, job.seed, good, good if job.seconds else None, **more)


def test_the_baselines_own_time_is_everybodys_budget():
    jobs, said = [], []
    going = TrainingProgress(
        planned("linear.elu"), said.append, lambda job: jobs.append(job) or trained(job)
    )
    going.run()
    first, *others = jobs
    assert (first.variant.label, first.seconds, first.seed) == ("sdpa", None, 2)
    assert {job.seconds for job in others} == {1.0}  # what the made-up training says that it took
    assert going.budgets == {made_up.SETTING.slug: 1.0}
    assert len(going.rows) == 4 and len(said) == 5
    assert "sdpa took 1.0 s for 100 steps" in said[0]


def test_seconds_that_are_given_need_no_training_of_the_baseline_before():
    jobs = []
    going = TrainingProgress(
        planned("linear.elu"), print, lambda job: jobs.append(job) or trained(job)
    )
    going.run(seconds=3.0)
    assert [job.seconds for job in jobs] == [3.0] * 4


def test_a_scan_has_no_budget_of_time():
    jobs = []
    TrainingProgress(planned(), print, lambda job: jobs.append(job) or trained(job)).run(
        timed=False
    )
    assert {job.seconds for job in jobs} == {None}


def test_who_refuses_is_asked_once_and_the_others_go_on():
    def train(job):
        if job.variant.label != "gla":
            return trained(job)
        why = "gla wants something else"
        return {**trained(job), "status": "unsupported", "reason": why, "curve": []}

    said = []
    going = TrainingProgress(planned("gla", "linear.elu"), said.append, train)
    going.run()
    assert [row["variant"] for row in going.rows].count("gla") == 1
    assert [row["variant"] for row in going.rows].count("linear.elu") == 2
    assert any("gla wants something else" in line for line in said)


def test_who_is_left_out_is_a_row_and_a_line():
    said = []
    going = TrainingProgress(planned("flash_attn2"), said.append, trained)
    going.run()
    assert going.rows[0]["status"] == "unavailable"
    assert said[0].startswith("not trained: flash_attn2") and "pip install" in said[0]


def test_without_a_baseline_there_is_nothing_to_say():
    def train(job):
        return {**trained(job), "status": "failed", "reason": "it died", "curve": []}

    with pytest.raises(NotTrainable, match=r"sdpa could not be trained in .*it died"):
        TrainingProgress(planned(), print, train).run()


def test_what_was_trained_before_ctrl_c_is_kept():
    def train(job):
        if job.seed == 1:
            raise KeyboardInterrupt
        return trained(job)

    going = TrainingProgress(planned("linear.elu"), print, train)
    with pytest.raises(KeyboardInterrupt):
        going.run(seconds=1.0)
    assert {row["variant"] for row in going.rows} == {"sdpa", "linear.elu"}
