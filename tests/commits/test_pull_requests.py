"""What a pull request is told: workers are stood in for, commits and their tables are real."""

import math

import pytest

from attnbench.core.stats import Verdict
from attnbench.features.commits.rounds import LOOKS, PAIRS, judge
from attnbench.sweep.engine import Refused
from attnbench.sweep.presets import RAGGED
from impls.errors import CantBeDone
from tests.commits.plants import Opened, Worker, compared, in_rounds

RAGGED_LENGTHS = tuple(map(int, RAGGED))


def said(found):
    return {cell.variant: str(verdict) for cell, verdict in found.judged()}


@pytest.mark.parametrize(
    ("base", "head", "words", "status"),
    [
        ("main", "slower", "matmul slower, einsum unchanged", 1),
        ("main", "wrong", "matmul wrong, einsum unchanged", 1),
        ("main", "fresh-fails", "fresh fails, matmul unchanged, einsum unchanged", 1),
        ("main", "gone", "matmul unchanged, einsum removed", 0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("main", "same", "matmul unchanged, einsum unchanged", 0),
                ("main", "faster", "matmul faster, einsum unchanged", 0),
                ("main", "broken", "matmul fails, einsum unchanged", 1),
                ("main", "fresh", "fresh added, matmul unchanged, einsum unchanged", 0),
                ("main", "narrow", "einsum fails, matmul unchanged", 1),
                ("main", "touched", "matmul unchanged, einsum unchanged, online unchanged", 0),
                ("wrong", "same", "matmul works again, einsum unchanged", 0),
            )
        ),
    ],
)
def test_a_commit_is_told_what_it_does_and_nothing_else(repository, base, head, words, status):
    found = compared(repository, head, base)
    assert ", ".join(map(" ".join, said(found).items())) == words
    assert found.exit_status == status


@pytest.mark.parametrize(("base", "head"), [("main", "door"), ("door", "main")])
def test_a_table_that_can_not_be_read_is_refused_before_any_worker(repository, base, head):
    opened = Opened()
    why = r"commit \w+ \(door\): .*No module named 'nowhere_to_be_found'; give commits whose"
    with pytest.raises(CantBeDone, match=why):
        compared(repository, head, base, opened=opened)
    assert opened.folders == []


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.0, 0.001, -0.001, 0.0], "EQUIVALENT"),
        ([0.05, 0.051, 0.049, 0.05], "SLOWER"),
        ([-0.05, -0.051, -0.049, -0.05], "FASTER"),
        pytest.param([0.05, 0.0, 0.06, 0.01], "INCONCLUSIVE", id="two processes were lucky"),
        pytest.param([0.05, 0.02, 0.06, 0.03], "INCONCLUSIVE", id="four are few"),
        pytest.param([0.009, 0.0091, 0.0089, 0.009], "EQUIVALENT", id="within the margin"),
        pytest.param([0.012, 0.005, 0.012, 0.011], "INCONCLUSIVE", id="about the margin"),
    ],
)
def test_rounds_say_together_what_none_of_them_could(shares, verdict):
    comparison = judge([math.log1p(share) for share in shares], 0.01, pairs=160)
    assert (comparison.verdict, comparison.n) == (verdict, 160)
    assert comparison.low < comparison.ratio < comparison.high


def test_each_round_has_a_process_in_which_both_lie_and_whose_own_changes(repository):
    """Processes are of unlike luck, which is the same for both commits."""
    opened = Opened(luck=[1.0, 1.3, 0.8, 1.1])
    found = in_rounds(repository, "slower", opened, "matmul")
    (cell,) = found.cells
    assert cell.comparison.verdict is Verdict.SLOWER
    assert cell.comparison.ratio == pytest.approx(1.05)
    a, b = opened.folders[:2]
    assert opened.folders == [a, b] * (LOOKS[0] // 2)
    assert a != b
    assert not a.exists()
    assert len(cell.comparison.a_s) == len(cell.comparison.b_s) == PAIRS * LOOKS[0]
    assert {(w.places, w.samples) for w in opened.workers} == {(4, PAIRS)}
    sent = found.to_dict()["cells"][0]["comparison"]
    assert (sent["a_s"][0], sent["b_s"][0]) == pytest.approx((1e-3, 1.05e-3))


class Refuses(Worker):
    def hold(self, variant, problem):
        raise Refused("failed: an operator of that name is registered already", "failed")


class Alone(Worker):
    """Variants that can't be had in one process with those of another folder."""

    def beside(self, folder):
        return Refuses(folder)


@pytest.mark.parametrize(
    ("head", "luck", "verdicts", "stop", "budget_s"),
    [  # every other process is a twentieth slower: never a wrong verdict, whoever has it
        ("same", [1, 1, 1.05, 1, 1.05, 1.05, 1, 1.05, 1, 1, 1, 1] * 8,
         (Verdict.INCONCLUSIVE, Verdict.EQUIVALENT), "cap", 60),
        ("slower", [1, 1, 1.02, 1, 1.01, 1, 1, 1.02, 1.01, 1, 1.01, 1.01] * 8,
         (Verdict.SLOWER,), "decided", 60),
        ("same", [1, 1, 1.2, 1, 1.2, 1.2, 1, 1.2, 1, 1, 1, 1.2],
         (Verdict.INCONCLUSIVE,), "budget", 1e-9),
    ],
)  # fmt: skip
def test_luck_of_two_processes_is_no_difference(repository, head, luck, verdicts, stop, budget_s):
    opened = Opened(luck, Alone)
    (cell,) = in_rounds(repository, head, opened, "matmul", budget_s=budget_s).cells
    assert cell.comparison.verdict in verdicts
    assert cell.comparison.stop == stop
    assert len(opened.folders) % 3 == 0
    assert (len(opened.folders) == 3 * LOOKS[0]) == (stop == "budget")


@pytest.mark.parametrize(("times", "word"), [(1, "slower"), (30, "can't tell")])
def test_a_difference_among_many_must_survive_the_correction(repository, times, word):
    """Four rounds that say so by chance one time in some hundred."""

    class Chance(Worker):
        def sample(self):
            return 1.0 if self.takes == {} else (1.04, 1.05, 1.06, 1.05)[len(opened.folders) - 1]

    opened = Opened(kind=Chance)
    found = in_rounds(repository, "slower", opened, "matmul", times=times)
    assert found.counts() == {word: times}


@pytest.mark.parametrize(("falls", "status"), [("main", 0), ("faster", 1)])
def test_who_falls_on_the_way_costs_its_cell_alone(repository, falls, status):
    class Falls(Worker):
        def sample(self):
            if self.held == "matmul" and (self.takes == {}) == (falls == "main"):
                why = "wrong: row 3 is off" if self.takes else "died of SIGSEGV"
                raise Refused(why, "crashed", self)
            return super().sample()

    found = in_rounds(repository, "faster", Opened(kind=Falls), "matmul", "einsum")
    matmul, einsum = found.cells
    assert matmul.comparison is None
    why = {"main": matmul.why_a, "faster": matmul.why}[falls]
    assert f"({falls}): " in why
    assert einsum.comparison.verdict is Verdict.EQUIVALENT
    assert found.exit_status == status
    assert found.counts()["fails" if status else "works again"] == 1


class Ragged(Worker):
    """The head named wrong is off in the last block of a kernel, where that is not full."""

    def hold(self, variant, problem):
        if problem.kv_len in RAGGED_LENGTHS and self.takes and variant == "matmul":
            raise Refused("wrong: row 276 is off", "wrong")
        self.held = variant


def test_a_commit_that_is_wrong_at_ragged_lengths_is_wrong_whatever_length_is_timed(repository):
    found = compared(repository, "faster", opened=Opened(kind=Ragged))
    assert said(found) == {"matmul": "wrong", "einsum": "unchanged"}
    assert found.exit_status == 1 and "row 276 is off" in found.judged()[0][0].why
