"""Two commits in several processes: when that decides, and what luck does not."""

import math

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.stats import Verdict
from attnbench.features.commits.pairs import CommitVerdict, Refused
from attnbench.features.commits.revisions import find_commit
from attnbench.features.commits.rounds import LOOKS, compare_in_rounds, judged
from attnbench.sweep.plan import make_plan
from impls import Table


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.0, 0.001, -0.001, 0.0], "EQUIVALENT"),
        ([0.05, 0.051, 0.049, 0.05], "SLOWER"),
        ([-0.05, -0.051, -0.049, -0.05], "FASTER"),
        ([0.05, 0.0, 0.06, 0.01], "INCONCLUSIVE"),  # two of the four processes were lucky
        ([0.05, 0.02, 0.06, 0.03], "INCONCLUSIVE"),  # four are few
        ([0.009, 0.0091, 0.0089, 0.009], "EQUIVALENT"),  # within the margin
        ([0.012, 0.005, 0.012, 0.011], "INCONCLUSIVE"),  # about the margin
    ],
)
def test_rounds_say_together_what_none_of_them_could(shares, verdict):
    found = judged([math.log1p(share) for share in shares], 0.01, pairs=160)
    assert found.verdict == verdict
    assert found.low < found.ratio < found.high
    assert found.n == 160


def cells(pulls, *names):
    rows = Table({name: impls.table().rows[name] for name in names})
    return make_plan(rows, names, pulls.GRID, this_machine()).cells


def in_rounds(pulls, root, head, opened, *names, budget_s=60.0):
    ends = find_commit("main", root), find_commit(head, root)
    return compare_in_rounds(
        *ends, cells(pulls, *names), opened, margin=0.01, budget_s=budget_s, root=root
    )


def alone(pulls):
    """A worker whose variants can't be had in one process with those of another folder."""

    class Alone(pulls.Worker):
        def beside(self, folder):
            return Refuses(folder)

    class Refuses(pulls.Worker):
        def hold(self, variant, problem):
            opened.refused += 1
            raise Refused("failed: an operator of that name is registered already", "failed")

    opened = pulls.Opened(kind=Alone)
    opened.refused = 0
    return opened


def test_each_round_has_a_new_process_in_which_both_lie_and_whose_own_changes(pulls, repository):
    opened = pulls.Opened()
    found = in_rounds(pulls, repository, "slower", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.SLOWER
    assert len(opened.folders) == LOOKS[0]
    a, b = opened.folders[:2]
    assert [f == a for f in opened.folders] == [True, False] * (LOOKS[0] // 2)
    assert a != b
    assert not a.exists()


def test_luck_that_lasts_as_long_as_a_process_is_the_same_for_both(pulls, repository):
    opened = pulls.Opened(luck=[1.0, 1.3, 0.8, 1.1])
    found = in_rounds(pulls, repository, "same", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.EQUIVALENT
    assert found.cells[0].comparison.ratio == pytest.approx(1.0)


def test_what_can_not_be_had_in_one_process_is_measured_in_two(pulls, repository):
    opened = alone(pulls)
    found = in_rounds(pulls, repository, "slower", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.SLOWER
    assert found.cells[0].comparison.ratio == pytest.approx(1.05)
    assert len(opened.folders) == 3 * LOOKS[0]
    assert opened.refused == 1  # and is not tried again where it can't be had
    a, _, b = opened.folders[:3]
    assert opened.folders == [a, a, b, b, b, a] * (LOOKS[0] // 2)  # each starts first as often


def test_the_luck_of_two_processes_is_no_difference(pulls, repository):
    """Every other process is a twentieth slower: never a wrong verdict, whoever has it."""
    opened = alone(pulls)
    opened.luck = [1.0, 1.0, 1.05, 1.0, 1.05, 1.05, 1.0, 1.05, 1.0, 1.0, 1.0, 1.0] * 8
    found = in_rounds(pulls, repository, "same", opened, "matmul")
    assert found.cells[0].comparison.verdict in (Verdict.INCONCLUSIVE, Verdict.EQUIVALENT)
    assert found.cells[0].pairs.stop == "cap"
    assert len(opened.folders) == 3 * LOOKS[-1]


def test_a_difference_is_seen_through_the_luck_of_processes(pulls, repository):
    opened = alone(pulls)
    opened.luck = [1.0, 1.0, 1.02, 1.0, 1.01, 1.0, 1.0, 1.02, 1.01, 1.0, 1.01, 1.01] * 8
    found = in_rounds(pulls, repository, "slower", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.SLOWER
    assert found.cells[0].comparison.ratio == pytest.approx(1.05, abs=0.01)


def test_a_cell_that_is_decided_is_not_measured_again(pulls, repository):
    seen = []

    class Counted(pulls.Worker):
        """Einsum is slower where it is at home, and each commit is every other time."""

        def hold(self, variant, problem):
            seen.append(variant)
            self.takes["einsum"] = self.einsum
            return super().hold(variant, problem)

        def beside(self, folder):
            other = type(self)(folder)
            other.einsum = 1.0
            return other

        einsum = 1.3

    opened = pulls.Opened(kind=Counted)
    in_rounds(pulls, repository, "slower", opened, "matmul", "einsum")
    assert seen.count("matmul") == 2 * LOOKS[0]
    assert seen.count("einsum") > 2 * LOOKS[0]


def test_no_round_begins_after_the_budget(pulls, repository):
    opened = alone(pulls)
    opened.luck = [1.0, 1.0, 1.2, 1.0, 1.2, 1.2, 1.0, 1.2, 1.0, 1.0, 1.0, 1.2]
    found = in_rounds(pulls, repository, "same", opened, "matmul", budget_s=1e-9)
    assert len(opened.folders) == 3 * LOOKS[0]
    assert found.cells[0].pairs.stop == "budget"


def test_who_turns_out_wrong_in_a_later_round_is_wrong(pulls, repository):
    class Later(pulls.Worker):
        def hold(self, variant, problem):
            if len(opened.folders) > 2 and self.takes:
                raise Refused("wrong: row 3 is off", "wrong")
            return super().hold(variant, problem)

    opened = pulls.Opened(kind=Later)
    found = pulls.compared(repository, "faster", asked=["matmul"], opened=opened)
    assert [verdict for _, verdict in found.judged()] == [CommitVerdict.WRONG]
    assert found.cells[0].pairs is None
