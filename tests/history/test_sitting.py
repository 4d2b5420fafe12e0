"""A sitting: what asv was asked for, whose impls it takes, and what is measured of them."""

from pathlib import Path

import pytest
from asv.commands import make_argparser

from attnbench.history import command, ruler, sitting, suite
from attnbench.history.command import Asked

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run", Asked()),
        ("run --quick --bench a --bench b HEAD~3..HEAD", Asked(quick=True, bench=("a", "b"))),
        ("run --interleave-rounds", Asked(interleaved=True)),
        ("find HEAD~9..HEAD time.*gla", Asked(bench=("time.*gla",))),
        ("continuous HEAD~1 HEAD", Asked(interleaved=True)),
        ("continuous --no-interleave-rounds HEAD", Asked()),
    ],
)
def test_what_asv_was_asked_for_is_handed_on(words, wanted):
    said = make_argparser()[0].parse_args(words.split())
    asked = command.understood(said, "cpu", energy=False)
    assert asked == wanted
    environment = {}
    asked.hand_on(environment)
    assert command.handed_on(environment) == wanted


def test_a_process_that_asv_did_not_start_has_the_defaults():
    assert command.handed_on({}) == Asked()


def test_a_commit_of_another_contract_is_told_from_one_without_and_one_without_impls(tmp_path):
    spec = tmp_path / "spec.py"
    spec.write_text("INTERFACE = 999\n")
    assert ruler.why_not(tmp_path, "0123456789") == (
        "the table of commit 01234567 has version 999 of the contract between table and ruler, and "
        "this attnbench measures version 1; give a commit that has it"
    )
    spec.write_text("")
    assert "says none of the contract" in ruler.why_not(tmp_path, "0123456789")
    spec.unlink()
    assert "says none of the contract" in ruler.why_not(tmp_path, "0123456789")
    assert ruler.why_not(None, "0123456789") == (
        "commit 01234567 has no folder impls; give a later one"
    )
    assert ruler.why_not(CHECKOUT / "impls", "x") == ""


def test_impls_of_somebody_else_are_not_taken_for_the_commits(tmp_path, monkeypatch):
    shared = {"ASV_ENV_TYPE": "shared", "ASV_ENV_DIR": str(tmp_path)}
    assert ruler.impls_of_commit(shared) is None  # those that run now lie in no environment
    shared["ASV_ENV_DIR"] = str(CHECKOUT)
    assert ruler.impls_of_commit(shared) == CHECKOUT / "impls"
    assert ruler.impls_of_commit({}) == CHECKOUT / "impls"
    monkeypatch.setattr(ruler, "find_spec", lambda name: None)
    assert ruler.impls_of_commit(shared) is None


def test_a_variant_that_the_commit_has_not_costs_its_own_rows():
    names, rows = sitting._known([("matmul", 128, "forward"), ("no.such", 128, "forward")])
    assert names == {"matmul": "matmul"}
    (row,) = rows.values()
    assert row.status in ("unsupported", "unavailable")
    assert row.reason.startswith("in the commit's table there is no variant 'no.such'")


def test_a_table_of_the_commits_is_measured_by_itself_and_no_link(tmp_path):
    (tmp_path / "impls" / "__pycache__").mkdir(parents=True)
    (tmp_path / "impls" / "spec.py").write_text("INTERFACE = 1\n")
    first = ruler.laid_out(tmp_path / "impls", tmp_path / "commit")
    assert [p.name for p in (first / "impls").iterdir()] == ["spec.py"]
    assert not (first / "impls").is_symlink()
    assert ruler.laid_out(tmp_path / "impls", tmp_path / "commit") == first


def test_energy_is_counted_where_it_was_asked_for_and_nowhere_else(tmp_path, monkeypatch):
    swept = []

    def sweep(keys, asked, here, first, *, energy):
        swept.append((energy, {length for _, length, _ in keys}, len(keys)))
        return {}

    monkeypatch.setattr(sitting, "_swept", sweep)
    sitting.measured(Asked(energy=True), tmp_path)
    sitting.measured(Asked(energy=True, bench=("time",)), tmp_path)
    sitting.measured(Asked(energy=True, bench=("energy.*gla",)), tmp_path)
    sitting.measured(Asked(), tmp_path)
    every = {128, 256, 512, 1024}
    assert swept == [
        (False, every - {1024}, 42), (True, {1024}, 14),
        (False, every, 56),
        (True, {1024}, 2),
        (False, every, 56),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sitting_measures_what_was_asked_for_and_a_cell_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "grid", lambda device: suite.PRESETS["history"].with_(
        variants=("matmul", "sdpa"), seq=("16", "32"), heads=(1,), head_dim=(8,)))  # fmt: skip
    asked = Asked(quick=True, bench=("matmul.*(16|32).*forward", "sdpa.*16.*train"))
    cache = sitting.measured(asked, tmp_path)
    wanted = {("matmul", 16, "forward"), ("matmul", 32, "forward"), ("sdpa", 16, "train")}
    assert set(cache.rows) == wanted
    assert {row.status for row in cache.rows.values()} == {"measured"}
    assert not cache.skipped
    row = sitting.anew(("matmul", 16, "forward"), asked, tmp_path)
    assert row.status == "measured"
    assert row.figures["time"] != cache.rows["matmul", 16, "forward"].figures["time"]
    assert row.figures["memory"] == cache.rows["matmul", 16, "forward"].figures["memory"]
