"""The ten fastest of a quick run, three times over: which, with what words, what is said."""

import json
from pathlib import Path

import pytest

from attnbench.core.record import Energy, Status
from attnbench.sweep.presets import PRESETS
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import Problem
from proofs import visit_energy

runs = load_file(Path(__file__).parents[1] / "report" / "page" / "runs.py")
LONG = Problem(2, 4, 4, 8192, 8192, 64, 64, "bfloat16", Mask.parse("causal"), device="cuda")


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
    repeats = [
        visit_energy.per_token([costing("a", 1.0 * factor), costing("b", 3.0)])
        for factor in (1.02, 1.0, last)
    ]
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


@pytest.fixture
def folder(tmp_path):
    """Puts a run into the results."""

    def put(name, records, title="one"):
        place = tmp_path / "box" / name
        place.mkdir(parents=True)
        header = {"schema": records[0].schema, "grid": {"title": title}}
        (place / "run.json").write_text(json.dumps(header))
        (place / "records.jsonl").write_text("".join(f"{r.line()}\n" for r in records))

    put("quick", [costing("a", 1.0), costing("b", 2.0)], PRESETS["h200-quick"].title)
    return put


def test_repeats_of_a_visit_before_are_not_made_again(folder, tmp_path, capsys):
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
