"""The recall task, what is trained and in which order, and how a plan is carried out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import impls
from attnbench.core.machine import this_machine
from attnbench.features.quality import recall
from attnbench.features.quality.recall import NOTHING, TESTING, TRAINING, Setting, stream
from impls.errors import CantBeDone
from tests.models.quality.made_up import SETTING, training


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
        assert targets[: 2 * pairs] == [NOTHING] * (2 * pairs)
        questions = tokens[2 * pairs :]
        assert targets[2 * pairs :] == [values[key] - setting.keys for key in questions]


def test_sequences_follow_from_the_seed_and_none_of_the_test_is_trained_on():
    setting = Setting(seq=32, pairs=(8,), width=8, keys=32, values=32)
    first, same, other = (setting.draw(9, stream(s, TRAINING))[0] for s in (1, 1, 2))
    assert (first == same).all() and (first != other).any()
    mixed, _ = Setting(seq=32, pairs=(2, 4), width=8).draw(9, stream(0, TRAINING))
    assert (mixed[:, 5] < 64).tolist() == [True] * 5 + [False] * 4  # a question, or a value
    generator = stream(0, TRAINING)
    seen = {row.tobytes() for _ in range(200) for row in setting.draw(32, generator)[0]}
    tested = setting.draw(256, stream(0, TESTING))[0]
    assert len(seen) == 200 * 32
    assert seen.isdisjoint(row.tobytes() for row in tested)


def test_a_task_that_can_not_be_is_refused():
    for changes, text in (
        ({"pairs": (1, 4)}, "every variant recalls a single pair"),
        ({"seq": (64,)}, "no room to ask"),
        ({"pairs": tuple(range(2, 40)), "seq": (900,)}, "give fewer"),
        ({"width": (33,), "heads": 2}, "not a multiple"),
    ):
        with pytest.raises(CantBeDone, match=text):
            recall.preset_settings(recall.PRESETS["cpu"], **changes)


@pytest.fixture
def carried(monkeypatch):
    """A plan carried out with made-up trainings; by variant how they end badly. What was done,
    what was told, and how many steps were expected and how many came.
    """

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
        what = impls.table(), names, (SETTING,), this_machine()
        made = recall.plan_trainings(*what, seeds=(0, 1), threads=1)
        made.run(progress, this_machine())
        assert all(0 < s < 1000 for s in expected) and len(steps) <= len(expected)
        return made, jobs, lines, steps

    return carry


def test_the_baselines_own_time_is_the_budget_of_all(carried):
    made, (first, *others), lines, steps = carried("linear.elu")
    assert (first.variant.label, first.seconds, first.seed) == ("sdpa", None, 2)
    assert {job.seconds for job in others} == {1.0}  # what the made-up training took
    assert made.budgets == {SETTING.slug: 1.0}
    assert (len(made.rows), len(steps), len(lines)) == (4, 5, 1)
    assert "sdpa took 1 s for 100 steps" in lines[0]


def test_a_refusal_is_met_once_and_the_others_go_on(carried):
    refusal = {"status": "unsupported", "reason": "gla wants something else", "curve": []}
    made, _, lines, _ = carried("gla", "linear.elu", "flash_attn2", gla=refusal)
    names = [row["variant"] for row in made.rows]
    assert (names.count("gla"), names.count("linear.elu")) == (1, 2)
    assert any("gla wants something else" in line for line in lines)
    assert lines[0].startswith("not trained: flash_attn2")
