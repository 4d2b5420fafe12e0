"""The recall task, what is trained and in which order; the model and its training in a process."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import impls
from attnbench.core.machine import this_machine
from attnbench.features.quality import recall
from attnbench.features.quality.recall import Setting, TrainingJob, stream
from attnbench.features.quality.recall_worker import RecallModel, Training, state_numbers
from attnbench.models.attention import Built
from impls.errors import CantBeDone
from tests.models.quality.made_up import SETTING, training

TINY = Setting(seq=12, pairs=(2, 4), width=8, keys=6, values=6, batch=4, steps=6, tests=8)


@st.composite
def settings(draw):
    pairs, more, keys, values = (draw(st.integers(1, most)) for most in (8, 9, 6, 9))
    return Setting(2 * pairs + more, (pairs,), width=8, keys=pairs + keys - 1, values=values)


@given(settings(), st.integers(0, 2**32))
def test_every_question_has_its_answer_earlier_and_only_as_its_pair(setting, seed):
    (pairs,) = setting.pairs
    batch = setting.draw(3, np.random.default_rng(seed))
    for tokens, targets in zip(*(x.tolist() for x in batch), strict=True):
        values = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(values) == pairs, "a key stands twice"
        assert all(0 <= key < setting.keys for key in values)
        assert all(setting.keys <= x < setting.keys + setting.values for x in values.values())
        assert targets[: 2 * pairs] == [recall.NOTHING] * (2 * pairs)
        questions = tokens[2 * pairs :]
        assert targets[2 * pairs :] == [values[key] - setting.keys for key in questions]


def test_sequences_follow_from_the_seed_and_none_of_the_test_is_trained_on():
    setting = Setting(seq=32, pairs=(8,), width=8, keys=32, values=32)
    first, same, other = (setting.draw(9, stream(s, recall.TRAINING))[0] for s in (1, 1, 2))
    assert (first == same).all() and (first != other).any()
    mixed, _ = Setting(seq=32, pairs=(2, 4), width=8).draw(9, stream(0, recall.TRAINING))
    assert (mixed[:, 5] < 64).tolist() == [True] * 5 + [False] * 4  # a question, or a value
    generator = stream(0, recall.TRAINING)
    seen = {row.tobytes() for _ in range(200) for row in setting.draw(32, generator)[0]}
    tested = setting.draw(256, stream(0, recall.TESTING))[0]
    assert len(seen) == 200 * 32
    assert seen.isdisjoint(row.tobytes() for row in tested)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pairs": (1, 4)}, "every variant recalls a single pair"),
        ({"seq": 64}, "no room to ask"),
        ({"pairs": (65,), "seq": 900}, "needs as many keys; give 64"),
    ],
)
def test_a_task_that_can_not_be_is_refused(changes, text):
    with pytest.raises(CantBeDone, match=text):
        recall.preset_setting("cpu", **changes)


@pytest.fixture
def carried(monkeypatch):
    """Trainings that are made up, of variants that may end badly: the rows, the jobs, the lines."""

    def carry(*names, **ends):
        jobs, lines, expected, steps = [], [], [], []
        progress = SimpleNamespace(expect=expected.extend, step=steps.append)
        progress.tell = lambda line, style="": lines.append(line)

        def train(job):
            jobs.append(job)
            shares = {4: 1.0, 8: 0.9}
            made = training(job.variant.label, job.seed, shares, shares if job.seconds else None)
            return made | ends.get(job.variant.label, {})

        monkeypatch.setattr(recall, "run_training", train)
        variants = [impls.table().find(name) for name in ("sdpa", *names)]
        header = {"seeds": [0, 1], "threads": 1, "budgets": {}}
        rows = list(recall.steps(variants, SETTING, this_machine(), header, progress))
        assert all(0 < s < 1000 for s in expected) and len(steps) == len(expected)
        assert header["budgets"] == {SETTING.slug: 1.0}
        return [row for row in rows if row is not None], jobs, lines

    return carry


def test_the_baselines_own_time_is_the_budget_of_all(carried):
    rows, (first, *others), lines = carried("linear.elu")
    assert (first.variant.label, first.seconds, first.seed) == ("sdpa", None, 2)
    assert {job.seconds for job in others} == {1.0}  # what the made-up training took
    assert len(rows) == 4 and ["sdpa took 1 s for 100 steps" in line for line in lines] == [True]


def test_a_refusal_is_told_and_the_others_go_on(carried):
    refusal = {"status": "refused", "reason": "hedgehog wants something else", "curve": []}
    rows, _, lines = carried("hedgehog", "linear.elu", "flash_attn2", hedgehog=refusal)
    names = [row["variant"] for row in rows]
    assert (names.count("hedgehog"), names.count("linear.elu")) == (2, 2)
    assert any("hedgehog wants something else" in line for line in lines)
    assert lines[0].startswith("flash_attn2 is not trained: unavailable")


def test_a_logit_depends_on_earlier_tokens_and_on_no_later_one():
    at, built = 23, Built(impls.table().find("delta?gates=key"))
    setting = Setting(seq=40, pairs=(4, 8), width=16, keys=12, values=8, batch=3)
    model = RecallModel(setting, lambda q, k, v: built(q, k, v, recall.CAUSAL), 1)
    tokens_bn = torch.from_numpy(np.random.default_rng(0).integers(20, size=(3, setting.seq)))
    other_bn = tokens_bn.clone()
    other_bn[:, at] = (other_bn[:, at] + 1) % 20
    with torch.no_grad():
        one, other = model(tokens_bn), model(other_bn)
    torch.testing.assert_close(one[:, :at], other[:, :at], rtol=0, atol=1e-5)
    assert ((one[:, at:] - other[:, at:]).abs().amax((0, 2)) > 1e-4)[:2].all()


def job(name="sdpa", setting=TINY, seed=0, seconds=None):
    return TrainingJob(impls.table().find(name), setting, seed, seconds)


def run(training):
    """Its checkpoints, why it ended, and its first facts."""
    first, *looks, last = training.stages()
    assert last["status"] == ("cut_short" if last["reason"] else "trained")
    return [look["checkpoint"] for look in looks], last["reason"], first


def test_it_goes_on_until_both_budgets_are_over():
    looks, _, _ = run(Training(job(seconds=0.2)))
    (at,) = (look for look in looks if look["in_time"])
    assert at["step"] > 6 and at is looks[-1] and 0.2 <= at["seconds"] < 1.0
    assert [look["step"] for look in looks] == [6, at["step"]]
    looks, why, facts = run(Training(job(seconds=1e-6)))
    steps = [(1, True), (6, False)]
    assert [(look["step"], look["in_time"]) for look in looks] == steps and why == ""
    assert all(set(look["accuracy"]) == {"2", "4"} for look in looks)
    assert facts == {"state_numbers": TINY.seq * 16}


def test_all_variants_of_a_seed_begin_alike_and_see_the_same_sequences():
    one, other = Training(job("sdpa", seed=4)), Training(job("linear.elu", seed=4))
    draws = [x.setting.draw(4, x.stream)[0] for x in (one, other)]
    assert (draws[0] == draws[1]).all()
    assert torch.equal(one.tests[4][0], other.tests[4][0])
    weights = [x.model.state_dict() for x in (one, other)]
    assert all(torch.equal(weights[1][name], x) for name, x in weights[0].items())
    assert not torch.equal(one.tests[4][0], Training(job(seed=5)).tests[4][0])


def test_an_accuracy_is_the_share_of_right_answers():
    training = Training(job())
    batches = iter(training.tests[4][1].split(TINY.batch))

    class Knows(torch.nn.Module):
        def forward(self, tokens):
            named = next(batches).clamp(min=0)
            named[:, -1] = (named[:, -1] + 1) % 6  # the last of four questions is answered wrong
            return torch.nn.functional.one_hot(named, 6).float()

    training.model = Knows()
    assert training.accuracy(4) == pytest.approx(0.75)


def test_a_loss_that_is_not_finite_or_too_long_a_time_ends_it(monkeypatch):
    looks, why, _ = run(Training(job(setting=replace(TINY, rate=math.inf))))
    assert "its loss is not finite from step" in why and not looks
    monkeypatch.setattr(TrainingJob, "limit_s", 1e-9)
    looks, why, _ = run(Training(job(seconds=1e-9)))
    assert why.startswith("it had taken 1 of 6 steps")
    assert [look["in_time"] for look in looks] == [True]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("sdpa", 12 * 16),  # keys and values of all tokens
        ("linear.elu", 64 + 8),  # a state; with what it is divided by
        ("performer?features=20", 20 * 9 + 1),
    ],
)
def test_what_a_decoder_keeps_is_counted(name, numbers):
    assert state_numbers(impls.table().find(name), TINY) == numbers
