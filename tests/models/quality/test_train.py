"""One training: what it counts, when it looks, what it keeps, and that softmax attention learns."""

import math
import time
from dataclasses import replace

import pytest
import torch

import impls
from attnbench.features.quality.recall import Setting, TrainingJob, chance
from attnbench.features.quality.recall_train import Training, kept
from attnbench.models.attention import NotServed

TINY = Setting(seq=12, pairs=(2, 4), width=8, keys=6, values=6, batch=4, steps=6, looks=3, tests=8)


def job(name="sdpa", setting=TINY, seed=0, seconds=None):
    return TrainingJob(impls.table().find(name), setting, seed, seconds)


def run(training):
    told = []
    why = training.run(told.append)
    return [x["checkpoint"] for x in told if "checkpoint" in x], why, told[0]


def test_it_is_looked_at_as_often_as_said_and_at_its_last_step():
    looks, why, facts = run(Training(job()))
    assert [look["step"] for look in looks] == [2, 4, 6]
    assert why == ""
    assert [look["seconds"] for look in looks] == sorted(look["seconds"] for look in looks)
    assert all(set(look["accuracy"]) == {"2", "4"} and not look["in_time"] for look in looks)
    assert facts["parameters"] == sum(x.numel() for x in Training(job()).model.parameters())


def test_it_goes_on_until_its_time_is_over_too_and_says_where_that_was():
    looks, _, _ = run(Training(job(seconds=0.2)))
    (at,) = (look for look in looks if look["in_time"])
    assert at["step"] > 6 and at is looks[-1]
    assert 0.2 <= at["seconds"] < 1.0
    assert 6 in [look["step"] for look in looks]


def test_time_that_is_over_first_leaves_the_steps_to_be_taken():
    looks, _, _ = run(Training(job(seconds=1e-6)))
    assert [(look["step"], look["in_time"]) for look in looks] == [
        (1, True),
        (2, False),
        (4, False),
        (6, False),
    ]


def test_looking_at_the_test_is_not_on_the_clock(monkeypatch):
    training = Training(job())

    def busy(pairs):
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return 0.0

    monkeypatch.setattr(training, "accuracy", busy)
    start = time.process_time()
    looks, _, _ = run(training)
    assert time.process_time() - start > 1.2
    assert looks[-1]["seconds"] < 0.6


def test_where_one_thread_computes_the_clock_stands_still_while_others_have_the_processor(
    monkeypatch,
):
    training = Training(job())
    task, drawn = type(training.setting.task), type(training.setting.task).mixed
    monkeypatch.setattr(task, "mixed", lambda *given: time.sleep(0.1) or drawn(*given))
    looks, _, _ = run(training)
    assert looks[-1]["wall_s"] > 0.6 > looks[-1]["seconds"]
    assert Training(replace(job(), threads=2)).clock is time.perf_counter


def test_all_variants_of_a_seed_are_trained_and_tested_on_the_same_sequences():
    one, other = Training(job("sdpa", seed=4)), Training(job("linear.elu", seed=4))
    draws = [x.setting.task.mixed(4, x.stream).tokens_bn for x in (one, other)]
    assert (draws[0] == draws[1]).all()
    assert torch.equal(one.tests[4][0], other.tests[4][0])
    assert not torch.equal(one.tests[4][0], Training(job(seed=5)).tests[4][0])


def test_an_accuracy_is_the_share_of_right_answers(monkeypatch):
    training = Training(job())
    targets = training.tests[4][1]

    class Knows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.at = 0

        def forward(self, some):
            mine = targets[self.at : self.at + len(some)]
            self.at += len(some)
            named = mine.clamp(min=0)
            named[:, -1] = (named[:, -1] + 1) % 6  # the last of four questions is answered wrong
            return torch.nn.functional.one_hot(named, 6).float()

    training.model = Knows()
    assert training.accuracy(4) == pytest.approx(0.75)


def test_a_loss_that_is_not_finite_ends_it_in_a_sentence():
    looks, why, _ = run(Training(job(setting=TINY.with_(rate=math.inf))))
    assert "its loss is not finite from step" in why
    assert len(looks) < 3


def test_a_variant_that_takes_too_long_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(TrainingJob, "limit_s", 1e-9)
    looks, why, _ = run(Training(job(seconds=1e-9)))
    assert why.startswith("it had taken 1 of 6 steps")
    assert [look["in_time"] for look in looks] == [True]


def test_what_a_core_refuses_is_its_own_sentence():
    with pytest.raises(NotServed, match="linformer"):
        Training(job("linformer")).step()


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("sdpa", 12 * 16),
        ("dilated?dilation=1&width=2", 12 * 16),  # keys and values of all tokens
        ("retention", 64),
        ("delta", 64),
        ("linear.elu", 64 + 8),  # a state; with what it is divided by
        ("linear.taylor?features=0", (1 + 8 + 36) * 9),
        ("performer?features=20", 20 * 9 + 1),
    ],
)
def test_what_a_decoder_keeps_is_counted(name, numbers):
    assert kept(impls.table().find(name), TINY) == numbers


@pytest.mark.slow
def test_softmax_attention_learns_a_small_task_and_a_mean_does_not():
    easy = Setting(
        seq=24, pairs=(2, 4), width=32, keys=16, values=16, batch=32, steps=400, looks=1, tests=128
    )
    (at,), _, _ = run(Training(job(setting=easy)))
    assert at["accuracy"]["4"] > 0.95
    (at,), _, _ = run(Training(job("mean_v", setting=easy)))
    assert at["accuracy"]["4"] < chance(4, 16) + 0.25
