"""The recall task's data against plain loops, and chance against somebody who guesses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.features.quality.recall import NOTHING, TESTING, TRAINING, Task, chance, stream

TASK = Task(seq=20, pairs=(2, 4, 6), keys=9, values=5)


@st.composite
def tasks(draw):
    pairs = draw(st.integers(1, 8))
    return Task(
        seq=2 * pairs + draw(st.integers(1, 9)),
        pairs=(pairs,),
        keys=pairs + draw(st.integers(0, 5)),
        values=draw(st.integers(1, 9)),
    )


@given(tasks(), st.integers(0, 2**32))
def test_every_question_has_its_answer_earlier_and_only_as_its_pair(task, seed):
    (pairs,) = task.pairs
    batch = task.drawn(pairs, 3, np.random.default_rng(seed))
    for tokens, targets in zip(*(x.tolist() for x in batch), strict=True):
        told = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(told) == pairs, "a key stands twice"
        assert all(0 <= key < task.keys for key in told)
        assert all(task.keys <= value < task.tokens for value in told.values())
        assert targets[: 2 * pairs] == [NOTHING] * (2 * pairs)
        asked = tokens[2 * pairs :]
        assert targets[2 * pairs :] == [told[key] - task.keys for key in asked]


def test_a_batch_has_as_many_sequences_of_each_number_of_pairs():
    batch = TASK.mixed(8, np.random.default_rng(0))
    asked = (batch.targets_bn != NOTHING).sum(1).tolist()
    assert asked == [16] * 3 + [12] * 3 + [8] * 2


def test_a_seed_gives_the_same_sequences_and_another_gives_others():
    first, same, other = (TASK.mixed(9, stream(seed, TRAINING)).tokens_bn for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


def test_no_sequence_of_the_test_is_trained_on():
    task = Task(seq=32, pairs=(8,), keys=32, values=32)
    training, batches = stream(0, TRAINING), range(200)
    seen = {row.tobytes() for _ in batches for row in task.mixed(32, training).tokens_bn}
    tested = task.drawn(8, 256, stream(0, TESTING)).tokens_bn
    assert len(seen) == 200 * 32
    assert seen.isdisjoint(row.tobytes() for row in tested)


@pytest.mark.parametrize(("pairs", "values"), [(1, 7), (2, 3), (4, 4), (8, 64)])
def test_chance_is_what_somebody_gets_who_names_the_value_of_any_pair(pairs, values):
    task, generator = Task(2 * pairs + 1, (pairs,), pairs, values), np.random.default_rng(5)
    batch = task.drawn(pairs, 40_000, generator)
    any_pair = generator.integers(pairs, size=(40_000, 1))
    named = np.take_along_axis(batch.tokens_bn, 2 * any_pair + 1, 1) - pairs
    right = (named[:, 0] == batch.targets_bn[:, -1]).mean()
    assert right == pytest.approx(chance(pairs, values), abs=4 * (0.25 / 40_000) ** 0.5)
