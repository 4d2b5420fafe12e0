"""What visits tell: the energy of repeats, how far two lie apart, how far our timer is off."""

import json
from types import SimpleNamespace

import pytest

from attnbench.core.record import Energy, Status
from attnbench.meter import clocks
from attnbench.sweep.presets import PRESETS
from impls.masks import Mask
from impls.problem import Problem
from proofs import visit_energy, visit_timer, visits_apart
from proofs.visit_kept import Kept, Place
from tests.report.page import runs

LONG = Problem(2, 4, 4, 8192, 8192, 64, 64, "bfloat16", Mask.parse("causal"), device="cuda")


def put(folder, records, title, **header):
    """A run with this grid's title."""
    folder.mkdir(parents=True)
    header = {**runs.HEADER, **header, "grid": {"title": title}}
    (folder / "run.json").write_text(json.dumps(header))
    (folder / "records.jsonl").write_text("".join(f"{r.line()}\n" for r in records))


def costing(variant, joules, why=""):
    return runs.timed(variant, 1e-3, LONG, energy=Energy(joules=joules, why=why))


def test_the_fastest_are_ten_of_one_problem_at_the_length():
    records = [runs.timed(f"v{n}", 1e-3 * (20 - n), LONG) for n in range(15)]
    for changes in ({"q_len": 512, "kv_len": 512}, {"head_dim": 128}, {"phase": "train"}):
        records.append(runs.timed("another", 1e-6, LONG.with_(**changes)))
    records.append(runs.untimed("none", Status.TIMED_OUT, problem=LONG))
    names = [r.variant for r in visit_energy.fastest(records)]
    assert names == [f"v{n}" for n in range(14, 4, -1)]


@pytest.mark.parametrize(("last", "status", "within"), [(1.04, 0, "2 of 2"), (1.2, 1, "1 of 2")])
def test_repeats_that_lie_apart_are_told(last, status, within):
    some = ([costing("a", joules), costing("b", 3.0)] for joules in (1.02, 1.0, last))
    repeats = [visit_energy.per_token(each) for each in some]
    lines, found = visit_energy.told(repeats)
    assert found == status
    apart = f"the widest {100 * (last - 1):.1f} % (a)"
    assert lines[-1] == f"energy: {within} variants within 5 % over 3 repeats; {apart}"
    assert "61.04" in lines[0]  # a joule over 16,384 tokens


def test_what_has_no_energy_says_why():
    none = visit_energy.per_token([costing("a", None, "the driver counts no energy")])
    assert visit_energy.told([none, none, none])[1] == 2
    wrong = runs.untimed("b", Status.WRONG, "it is off", LONG)
    assert visit_energy.per_token([wrong]) == {"b": "it is off"}


def test_repeats_of_a_visit_before_are_not_made_again(tmp_path, capsys):
    def folder(name, records, title="one"):
        put(tmp_path / "box" / name, records, title)

    folder("quick", [costing("a", 1.0), costing("b", 2.0)], PRESETS["h200-quick"].title)
    folder("whole", [costing("a", 1.0), costing("b", 2.0)])
    folder("cut-off", [costing("a", 9.0)])
    folder("no-joules", [runs.timed("a", 1e-3, LONG), runs.timed("b", 1e-3, LONG)])
    made = []

    def run(words):
        assert words[words.index("--seq") + 1] == "8192"
        made.append(words)
        folder(f"repeat-{len(made)}", [costing("a", 1.02), costing("b", 2.0)])
        return 0

    assert visit_energy.main([str(tmp_path)], run) == 0
    assert len(made) == 2
    assert visit_energy.main([str(tmp_path)], run) == 0  # all there: they are told, none is made
    assert len(made) == 2
    last = "energy: 2 of 2 variants within 5 % over 3 repeats; the widest 2.0 % (a)"
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.fixture
def visit(tmp_path):
    """A visit's folder, with a run of each preset by the factor of its times."""

    def left(name, factors, **header):
        place = Place("nvidia-h200-a1b2c3", "cuda")
        kept = Kept(tmp_path / name, tmp_path / f"results-{name}", place)
        for preset, factor in factors.items():
            timed = [runs.timed("sdpa", 0.1 * factor), runs.timed("matmul", 0.2 * factor)]
            put(kept.results / "box" / preset, timed, PRESETS[preset].title, **header)
        kept.write()
        return str(kept.folder)

    return left


@pytest.mark.parametrize(("factor", "status"), [(1 / 1.015, 0), (1.03, 1)])
def test_the_middle_cell_is_to_be_within_two_per_cent(visit, capsys, factor, status):
    a, b = visit("a", {"h200-quick": 1.0, "h200": 1.0}), visit("b", {"h200-quick": factor})
    assert visits_apart.main([a, b]) == status
    apart = 100 * (max(factor, 1 / factor) - 1)
    said = f"2 cells timed in both: the middle one {apart:.1f} % apart"
    assert said in capsys.readouterr().out.splitlines()[0]


def test_a_timer_that_is_off_by_a_factor_is_told_by_that_factor(monkeypatch, capsys):
    clock = SimpleNamespace(samples=lambda before, run, count: [1e-3] * count)
    monkeypatch.setattr(clocks, "clock_for", lambda device, phase: clock)
    given = {"kernels": ("matmul",), "lengths": (64,)}
    assert visit_timer.main(["cpu"], lambda run: 2e-3, **given) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert float(line.split()[-1]) == pytest.approx(0.5)
    assert last.startswith("against triton's do_bench, 1 cell:")
