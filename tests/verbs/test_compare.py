"""``attnbench compare``: which kind of thing A and B are, and what is refused in a sentence."""

import json
from types import SimpleNamespace

import pytest

from attnbench import cli
from attnbench.core.stats import Pairs, paired
from attnbench.sweep import compare as comparing


@pytest.fixture
def worker(monkeypatch):
    """In place of the worker: pairs with a given ratio, and what was asked for them."""
    asked = []

    class Engine:
        def __init__(self, settings, limited):
            assert limited  # on a CPU
            asked.append(settings)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, question, limit_s):
            asked.append(question)
            ratio = paired([-0.7] * 40, question["margin"] or 0.01)
            return {"pairs": Pairs(ratio, [0.01] * 40, [0.005] * 40, "decided").to_dict()}

    monkeypatch.setattr("attnbench.sweep.engine.LocalEngine", Engine)
    return asked


def run(*words, out="nowhere"):
    return cli.main(["compare", *words, "--out", str(out)])


def test_two_variants_are_compared_on_the_grid(worker, capsys, tmp_path):
    assert run("sdpa.flash", "sdpa.math", "--seq", "64,128", "--json", out=tmp_path) == 0
    said = capsys.readouterr()
    sent = json.loads(said.out)
    assert (sent["judged"], sent["against"]) == ("sdpa.flash", "sdpa.math")
    assert sent["counts"] == {"FASTER": 2}
    assert [c["problem"]["kv_len"] for c in sent["cells"]] == [64, 128]
    assert said.err.count("sdpa.flash is FASTER than sdpa.math") == 2
    assert "no noise floor is stored for this machine" in said.err


def test_variants_that_do_not_compute_the_same_are_compared_with_a_note(worker, capsys, tmp_path):
    words = ["--seq", "64", "--margin", "0.03"]
    assert run("mean_v", "matmul", *words, out=tmp_path) == 0
    said = capsys.readouterr().err
    assert "note: mean_v computes approximates softmax, matmul softmax: which is faster" in said
    assert run("einsum", "matmul", *words, out=tmp_path) == 0
    assert "note:" not in capsys.readouterr().err


def test_two_run_folders_end_with_what_was_found(monkeypatch, capsys, tmp_path):
    from attnbench.answer import compare_runs

    for status in (0, 1, 2):
        found = SimpleNamespace(exit_status=status, to_dict=lambda status=status: {"is": status})
        monkeypatch.setattr(compare_runs, "compare_runs", lambda a, b, found=found: found)
        for name in "ab":
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "run.json").write_text("{}")
        assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == status
        assert json.loads(capsys.readouterr().out) == {"is": status}


def test_the_floors_of_this_machine_are_sent_along(worker, tmp_path):
    from attnbench.core.evidence import save_machine
    from attnbench.core.machine import this_machine
    from attnbench.core.record import PROTOCOL

    machine = this_machine()
    noise = [{"call_s": 0.001, "floor": 0.02, "apart": 0.03, "trials": 8, "pairs": 80}]
    facts = {
        "protocol": PROTOCOL,
        "machine": machine.to_dict(),
        "noise": noise,
        "settings": {"threads": machine.threads},
    }
    save_machine(tmp_path, machine, facts)
    assert run("einsum", "matmul", out=tmp_path) == 0
    assert worker[1]["floors"] == [{"call_s": 0.001, "floor": 0.02}]
    for changed in ({"protocol": PROTOCOL + 1}, {"settings": {"threads": 99}}):
        save_machine(tmp_path, machine, {**facts, **changed})
        worker.clear()
        assert run("einsum", "matmul", out=tmp_path) == 0
        assert worker[1]["floors"] == []


def test_a_variant_that_is_wrong_is_a_finding(monkeypatch, worker, capsys, tmp_path):
    def found(judged, *_, **__):
        return [comparing.Compared(judged[0].problem, None, comparing.Status.WRONG, "why")]

    monkeypatch.setattr(comparing, "compare_cells", found)
    assert run("einsum", "matmul", out=tmp_path) == 1
    assert "wrong" in capsys.readouterr().out
