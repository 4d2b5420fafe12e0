"""Two commits in several pairs of processes: when that decides, and what luck does not."""

import math
from contextlib import contextmanager

import pytest

import impls
from attnbench.comparison import Verdict
from attnbench.history import rounds
from attnbench.history.compare import Said
from attnbench.history.revisions import one
from attnbench.history.rounds import LOOKS, compare_in_rounds, judged
from attnbench.machine import this_machine
from attnbench.sweep.commits import Refused
from attnbench.sweep.plan import make_plan
from impls import Table


@pytest.mark.parametrize(("shares", "verdict"), [
    ([0.0, 0.001, -0.001, 0.0], "EQUIVALENT"),
    ([0.05, 0.051, 0.049, 0.05], "SLOWER"),
    ([-0.05, -0.051, -0.049, -0.05], "FASTER"),
    ([0.05, 0.0, 0.06, 0.01], "INCONCLUSIVE"),  # two of the four processes were lucky
    ([0.05, 0.02, 0.06, 0.03], "INCONCLUSIVE"),  # four are few
    ([0.009, 0.0091, 0.0089, 0.009], "EQUIVALENT"),  # within the margin
    ([0.012, 0.005, 0.012, 0.011], "INCONCLUSIVE"),  # about the margin
])  # fmt: skip
def test_rounds_say_together_what_none_of_them_could(shares, verdict):
    found = judged([math.log1p(share) for share in shares], 0.01, pairs=160)
    assert found.verdict == verdict
    assert found.low < found.ratio < found.high
    assert found.n == 160


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 63.657), (3, 5.8409), (4, 4.6041),
                                                   (7, 3.4995), (15, 2.9467)])  # fmt: skip
def test_students_quantiles_are_the_books(freedom, quantile):
    assert rounds._student_quantile(0.995, freedom) == pytest.approx(quantile, rel=1e-4)
    assert rounds._student(0.0, freedom) == pytest.approx(0.5)
    assert rounds._student(-quantile, freedom) == pytest.approx(0.005, rel=1e-3)


def cells(pulls, *names):
    rows = Table({name: impls.table().rows[name] for name in names})
    return make_plan(rows, names, pulls.GRID, this_machine()).cells


def in_rounds(pulls, root, head, opened, *names, budget_s=60.0):
    ends = one("main", root), one(head, root)
    return compare_in_rounds(
        *ends, cells(pulls, *names), opened, margin=0.01, budget_s=budget_s, root=root
    )


def test_each_round_has_two_new_processes_and_starts_with_the_other(pulls, repository):
    opened = pulls.Opened()
    found = in_rounds(pulls, repository, "slower", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.SLOWER
    assert len(opened.folders) == 2 * LOOKS[0]
    a, b = opened.folders[:2]
    assert [f == a for f in opened.folders] == [True, False, False, True] * (LOOKS[0] // 2)
    assert a != b
    assert not a.exists()


def test_luck_that_lasts_as_long_as_a_process_is_no_difference(pulls, repository):
    """Every other process is a twentieth slower: never a wrong verdict, whoever has it."""
    opened = pulls.Opened(luck=[1.0, 1.05, 1.05, 1.05, 1.05, 1.0, 1.0, 1.0] * 8)
    found = in_rounds(pulls, repository, "same", opened, "matmul")
    assert found.cells[0].comparison.verdict in (Verdict.INCONCLUSIVE, Verdict.EQUIVALENT)
    assert found.cells[0].pairs.stop == "cap"
    assert len(opened.folders) == 2 * LOOKS[-1]


def test_a_difference_is_seen_through_the_luck_of_processes(pulls, repository):
    opened = pulls.Opened(luck=[1.0, 1.02, 1.0, 1.0, 1.01, 1.0, 1.02, 1.01] * 8)
    found = in_rounds(pulls, repository, "slower", opened, "matmul")
    assert found.cells[0].comparison.verdict is Verdict.SLOWER
    assert found.cells[0].comparison.ratio == pytest.approx(1.05, abs=0.01)


def test_a_cell_that_is_decided_is_not_measured_again(pulls, repository):
    seen = []
    held = pulls.Worker.hold

    class Counted(pulls.Worker):
        def hold(self, variant, problem):
            seen.append(variant)
            self.luck = 1.0 if variant == "matmul" or len(seen) % 3 else 1.3
            return held(self, variant, problem)

    @contextmanager
    def opened(folder):
        yield Counted(folder)

    in_rounds(pulls, repository, "slower", opened, "matmul", "einsum")
    assert seen.count("matmul") == 2 * LOOKS[0]
    assert seen.count("einsum") > 2 * LOOKS[0]


def test_no_round_begins_after_the_budget(pulls, repository):
    opened = pulls.Opened(luck=[1.0, 1.2, 1.2, 1.2, 1.0, 1.0, 1.2, 1.0] * 8)
    found = in_rounds(pulls, repository, "same", opened, "matmul", budget_s=1e-9)
    assert len(opened.folders) == 2 * LOOKS[0]
    assert found.cells[0].pairs.stop == "budget"


def test_who_turns_out_wrong_in_a_later_round_is_wrong(pulls, repository):
    class Later(pulls.Worker):
        def hold(self, variant, problem):
            if len(opened.folders) > 4 and self.takes:
                raise Refused("wrong: row 3 is off", "wrong")
            return super().hold(variant, problem)

    class Lies(pulls.Opened):
        @contextmanager
        def __call__(self, folder):
            self.folders.append(folder)
            yield Later(folder)

    opened = Lies()
    found = pulls.compared(repository, "faster", asked=["matmul"], opened=opened)
    assert [each.said for each in found.cells] == [Said.WRONG]
    assert found.cells[0].cell.pairs is None
