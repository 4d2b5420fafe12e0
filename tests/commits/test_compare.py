"""What a pull request is told: workers are stood in for, commits and their tables are real."""

from contextlib import contextmanager
from pathlib import Path

import pytest

import attnbench
from attnbench.features.commits.revisions import find_commit
from attnbench.features.commits.rounds import NoCommonCells, rows_of
from impls import UnknownVariant

ROOT = Path(attnbench.__file__).parents[1]


def said(found):
    return {cell.variant: str(verdict) for cell, verdict in found.judged()}


# ---- the words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "words", "status"),
    [
        ("same", {"matmul": "unchanged", "einsum": "unchanged"}, 0),
        ("slower", {"matmul": "worse", "einsum": "unchanged"}, 1),
        ("faster", {"matmul": "improved", "einsum": "unchanged"}, 0),
        ("wrong", {"matmul": "wrong", "einsum": "unchanged"}, 1),
        ("broken", {"matmul": "fails", "einsum": "unchanged"}, 1),
        ("not-here", {"matmul": "fails", "einsum": "unchanged"}, 1),
        ("fresh", {"fresh": "added", "matmul": "unchanged", "einsum": "unchanged"}, 0),
        ("fresh-fails", {"fresh": "fails", "matmul": "unchanged", "einsum": "unchanged"}, 1),
        ("gone", {"matmul": "unchanged", "einsum": "removed"}, 0),
        ("narrow", {"matmul": "unchanged", "einsum": "fails"}, 1),
    ],
)
def test_a_commit_is_told_what_it_does_and_nothing_else(pulls, repository, head, words, status):
    found = pulls.compared(repository, head)
    assert said(found) == words
    assert found.exit_status == status


def test_what_was_wrong_before_is_no_measure_and_works_again(pulls, repository):
    found = pulls.compared(repository, "same", base="wrong", asked=["matmul"])
    assert said(found) == {"matmul": "works again"}
    assert "wrong: row 3 is off" in found.reason(found.cells[0])
    assert found.exit_status == 0


def test_what_is_wrong_in_both_is_still_wrong(pulls, repository):
    found = pulls.compared(repository, "wrong", base="wrong", asked=["matmul"])
    assert said(found) == {"matmul": "wrong"}
    assert found.exit_status == 1


def test_where_nothing_could_be_measured_the_status_is_that_of_usage(pulls, repository):
    found = pulls.compared(repository, "broken", base="broken", asked=["matmul"])
    assert said(found) == {"matmul": "not measured"}
    assert found.exit_status == 2


def test_the_gravest_comes_first(pulls, repository):
    found = pulls.compared(repository, "slower")
    assert list(said(found).values()) == ["worse", "unchanged"]


def test_a_table_that_can_not_be_read_costs_all_its_rows_and_no_worker(pulls, repository):
    opened = pulls.Opened()
    found = pulls.compared(repository, "door", opened=opened)
    assert said(found) == {"matmul": "fails", "einsum": "fails"}
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in found.reason(
        found.cells[0]
    )
    assert (found.exit_status, opened.folders) == (1, [])
    assert (found.added, found.removed) == ((), ())  # nobody knows
    with pytest.raises(NoCommonCells, match="can't be read"):
        pulls.compared(repository, "door", base="door")


# ---- which cells ---------------------------------------------------------------------------------


def test_whose_file_was_touched_is_compared_too(pulls, repository):
    assert set(said(pulls.compared(repository, "touched"))) == {"matmul", "einsum", "online"}
    assert set(said(pulls.compared(repository, "touched", asked=["einsum"]))) == {"einsum"}


def test_an_unknown_variant_is_a_sentence(pulls, repository):
    with pytest.raises(UnknownVariant, match="there is no variant 'nothere'"):
        pulls.compared(repository, "same", asked=["nothere"])


def test_a_commit_is_asked_for_its_own_rows(repository):
    rows = rows_of(find_commit("fresh", repository), repository)
    assert rows["fresh"].build == "impls.dense.matmul:build"
    assert "fresh" not in rows_of(find_commit("main", repository), repository)


def test_rows_of_a_repository_of_ones_own_are_each_commits(pulls, tmp_path):
    """It has no ``impls``; its row file names code that lies beside it."""
    root = tmp_path / "kernels"
    root.mkdir()
    pulls.git(root, "init", "--quiet", "--initial-branch", "main")
    row = (
        "Variant(name='{}', title='t', family='mine', computes='softmax', build='mine.core:build')"
    )
    text = "import mine.core\nfrom impls.spec import Variant\nROWS = [{}]\n"
    for branch, names in (("main", ["one"]), ("later", ["one", "two"])):
        if branch != "main":
            pulls.git(root, "checkout", "--quiet", "-b", branch)
        (root / "mine").mkdir(exist_ok=True)
        (root / "mine" / "core.py").write_text(f"WHERE = {branch!r}\n")
        (root / "rows.py").write_text(text.format(", ".join(map(row.format, names))))
        pulls.git(root, "add", "--all")
        pulls.git(root, "commit", "--quiet", "-m", branch)
    seen = []

    @contextmanager
    def opened(folder):
        seen.append((folder / "mine" / "core.py").read_text())
        assert (folder / "attnbench").resolve() == ROOT / "attnbench"
        assert (folder / "impls").resolve() == ROOT / "impls"
        yield Own(folder)

    class Own(pulls.Worker):
        def __init__(self, folder, luck=1.0):
            self.takes, self.rows, self.luck = {}, {"one"}, luck
            self.rows |= {"two"} if "'two'" in (folder / "rows.py").read_text() else set()
            self.narrow = False

    found = pulls.compared(root, "later", opened=opened, tables=["rows.py"])
    assert said(found) == {"one": "unchanged", "two": "added"}
    assert found.added == ("two",)
    assert found.changed == ("mine/core.py", "rows.py")
    assert set(seen) == {"WHERE = 'main'\n", "WHERE = 'later'\n"}
