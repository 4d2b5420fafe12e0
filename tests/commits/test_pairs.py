"""Two commits against each other: pairs, what one of them has not, and what is said."""

import json
import shutil
from pathlib import Path

import pytest

import impls
from attnbench.core.checkout import Commit
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.core.stats import Verdict
from attnbench.features.commits.rounds import LOOKS, PAIRS
from attnbench.sweep.holding import open_worker
from attnbench.sweep.plan import Cell
from impls.loading import load_file
from impls.problem import Problem

repository = load_file(Path(__file__).parents[1] / "sweep" / "repository.py")
FakeWorker = repository.FakeWorker
ROOT = repository.ROOT
cells = repository.cells
checkout = repository.checkout
commit = repository.commit
compared = repository.compared
git = repository.git
opened = repository.opened


# ---- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "verdict", "status"),
    [
        ("HEAD~1", "HEAD", "SLOWER", 1),
        ("HEAD", "HEAD~1", "FASTER", 0),
        ("HEAD", "HEAD", "EQUIVALENT", 0),
    ],
)
def test_a_commit_is_timed_against_another(checkout, opened, a, b, verdict, status):
    found = compared(checkout, opened, a, b)
    (cell,) = found.cells
    assert cell.comparison.verdict == verdict
    assert cell.comparison.paired
    assert found.exit_status == status
    assert found.counts()[verdict] == 1
    assert (found.a.name, found.b.name, found.margin) == (a, b, 0.01)


def test_both_take_part_in_every_pair(checkout, opened):
    found = compared(checkout, opened)
    pairs = found.cells[0].pairs
    assert len(pairs.a_s) == len(pairs.b_s) == PAIRS * LOOKS[0]
    assert [w.samples for w in opened.workers] == [PAIRS] * 2 * LOOKS[0]
    assert (pairs.a_s[0], pairs.b_s[0]) == (0.001, 0.002)
    kept = found.to_dict()["cells"][0]["pairs"]["samples_s"]
    assert [(name, some[0]) for name, some in kept.items()] == [("HEAD~1", 0.001), ("HEAD", 0.002)]


def test_a_round_has_four_places_in_memory(checkout, opened):
    """A place that is luck for one side alone, for as long as it lasts, decides nothing."""
    compared(checkout, opened)
    assert [w.looks for w in opened.workers] == [4] * 2 * LOOKS[0]


def test_a_worker_holds_cell_after_cell(checkout, opened):
    seen = []
    found = compared(checkout, opened, some=cells("sdpa", "chunked?block=64"), watch=seen.append)
    held = [[label for label, _ in w.held] for w in opened.workers]
    assert held == [["sdpa", "chunked?block=64"]] * 2 * LOOKS[0]
    assert [c.variant for c in found.cells] == [c.variant for c in seen]


def test_a_difference_among_many_must_survive_the_correction(checkout, opened, monkeypatch):
    def sample(self):  # four rounds that say so by chance one time in some hundred
        self.samples += 1
        number, head = divmod(opened.workers.index(self), 2)
        head = head != number % 2  # they take turns in being at home
        return (1.04, 1.05, 1.06, 1.05)[number] if head else 1.0

    monkeypatch.setattr(FakeWorker, "sample", sample)
    alone = compared(checkout, opened)
    assert alone.cells[0].comparison.verdict is Verdict.SLOWER
    opened.workers.clear()
    together = compared(checkout, opened, some=cells(*["sdpa"] * 30))
    assert together.counts()[Verdict.INCONCLUSIVE] == 30
    assert together.exit_status == 0


# ---- what a commit has not -----------------------------------------------------------------------


@pytest.mark.parametrize(("who", "status"), [(0, 0), (1, 1)])
def test_a_row_that_a_commit_has_not_is_said_and_the_rest_goes_on(checkout, opened, who, status):
    opened.more[who] = {"refuses": ("matmul",)}
    found = compared(checkout, opened, b="HEAD~1", a="HEAD~1", some=cells("matmul", "sdpa"))
    without, with_ = found.cells
    why = (without.why_a, without.why_b)
    short = git(checkout, "rev-parse", "HEAD~1")[:7]
    assert why[who] == f"commit {short} (HEAD~1): there is no variant 'matmul'"
    assert (why[1 - who], without.pairs) == ("", None)
    assert with_.comparison.verdict is Verdict.EQUIVALENT
    assert found.exit_status == status
    assert found.counts()["worse" if who else "better"] == 1


def test_a_side_that_falls_on_the_way_costs_its_cell_alone(checkout, opened):
    opened.more[1] = {"falls_after": 27}
    found = compared(checkout, opened, some=cells("sdpa"))
    assert found.cells[0].pairs is None
    assert found.cells[0].why_b.endswith("(HEAD): the worker died of SIGSEGV")
    assert found.cells[0].why_a == ""
    assert found.exit_status == 1


def test_where_nothing_could_be_compared_the_exit_status_is_that_of_usage(checkout, opened):
    opened.more = [{"refuses": ("sdpa",)}, {"refuses": ("sdpa",)}]
    assert compared(checkout, opened).exit_status == 2


def test_a_cell_that_was_left_out_keeps_its_reason(checkout, opened):
    (cell,) = cells()
    reason = Record.of(cell.variant, cell.problem, Status.UNSUPPORTED, "it can't")
    out = Cell(cell.variant, cell.problem, reason, 0.0)
    found = compared(checkout, opened, some=[out, cell])
    assert (found.cells[0].why_a, found.cells[0].why_b) == ("it can't", "it can't")
    assert [label for label, _ in opened.workers[0].held] == ["sdpa"]
    assert len(opened.folders) == LOOKS[0]  # nobody tried it in two processes either


# ---- written down --------------------------------------------------------------------------------


def test_all_of_it_can_be_sent(checkout, opened):
    opened.more[1] = {"refuses": ("matmul",)}
    found = compared(checkout, opened, some=cells("sdpa", "matmul"))
    sent = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert sent["a"]["subject"] == "first"
    assert sent["changed"] == ["impls/speed"]
    assert sent["cells"][0]["pairs"]["comparison"]["verdict"] == "SLOWER"
    assert sent["cells"][1]["pairs"] is None
    assert sent["counts"] == {
        "FASTER": 0,
        "SLOWER": 1,
        "EQUIVALENT": 0,
        "INCONCLUSIVE": 0,
        "worse": 1,
        "better": 0,
    }


def test_a_commit_is_named_by_what_was_asked():
    assert str(Commit("v1.0", "abcdef0123", "x")) == "abcdef0 (v1.0)"


# ---- with workers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_commits_of_the_real_table(tmp_path):
    """The second multiplies three times where the first does once, and has lost a row."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "impls", root / "impls", ignore=shutil.ignore_patterns("__pycache__"))
    git(root, "init", "--quiet")
    commit(root, "as it is")
    dense = root / "impls" / "dense"
    slow = "\n\n_once = build\n\n\ndef build(problem):\n    one = _once(problem)\n"
    slow += "    return lambda q, k, v: (one(q, k, v), one(q, k, v), one(q, k, v))[2]\n"
    (dense / "matmul.py").write_text((dense / "matmul.py").read_text() + slow)
    plate = (dense / "__init__.py").read_text()
    (dense / "__init__.py").write_text(plate.replace('"bmm", "bmm over', '"bmx", "bmm over'))
    commit(root, "slower")
    problem = Problem(q_len=128, kv_len=128)
    table = impls.table()
    some = [Cell(table.find(name), problem, None, 0.0) for name in ("matmul", "bmm", "einsum")]
    found = compared(root, open_worker(Settings(), 0, 0.1), some=some, margin=0.05)
    matmul, bmm, einsum = found.cells
    assert matmul.comparison.verdict is Verdict.SLOWER
    assert matmul.comparison.ratio > 1.5
    assert "there is no variant 'bmm'" in bmm.why_b
    assert einsum.comparison.verdict not in (Verdict.FASTER, Verdict.SLOWER)
    assert found.exit_status == 1
