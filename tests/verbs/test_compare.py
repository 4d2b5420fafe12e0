"""``attnbench compare``: which kind of thing A and B are, and what is refused in a sentence."""

import json
from types import SimpleNamespace

import pytest

from attnbench import cli
from attnbench.core.stats import Pairs, paired
from attnbench.features.commits import verb
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


def test_a_margin_that_was_given_is_the_margin(worker, capsys, tmp_path):
    assert run("einsum", "matmul", "--margin", "0.03", "--json", out=tmp_path) == 0
    assert worker[1]["margin"] == 0.03
    assert "no noise floor" not in capsys.readouterr().err


@pytest.mark.parametrize(("words", "seconds"), [([], verb.PAIRS_S), (["--budget", "2.5"], 2.5)])
def test_pairs_are_taken_as_long_as_was_asked(worker, tmp_path, words, seconds):
    assert run("einsum", "matmul", "--margin", "0.03", *words, out=tmp_path) == 0
    assert worker[1]["budget_s"] == seconds


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


@pytest.mark.parametrize("words", [["--margin", "0.03"], ["--seq", "64"], ["--threads", "1"]])
def test_what_two_run_folders_can_not_heed_is_refused(capsys, tmp_path, words):
    (tmp_path / "run.json").write_text("{}")
    assert cli.main(["compare", str(tmp_path), str(tmp_path), *words]) == 2
    assert f"{words[0]} says nothing of two run folders" in capsys.readouterr().err


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
    for changed in (
        {"protocol": PROTOCOL + 1},
        {"settings": {"threads": 99}},
        {"noise": None},
        {"machine": {**machine.to_dict(), "versions": {"torch": "1"}}},
        {"machine": {**machine.to_dict(), "cpu": "another"}},
        {"settings": {}},
        {"noise": [{"call_s": "long", "floor": 0.02}]},
    ):
        save_machine(tmp_path, machine, {**facts, **changed})
        worker.clear()
        assert run("einsum", "matmul", out=tmp_path) == 0
        assert worker[1]["floors"] == []


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("einsum", "nothere", "there is no variant 'nothere'"),
        ("nothere", "einsum", "there is no variant 'nothere'"),
        ("nothere", "nowhere", "'nothere' is no commit of"),
        ("einsum", ".", "einsum is a variant and . is neither a run folder nor a variant"),
        ("einsum?nothere=1", "einsum", "nothere"),
        ("mha", "einsum", "mha is a layer and einsum a core: their times are of other work"),
    ],
)
def test_what_can_not_be_compared_is_refused_in_a_sentence(worker, capsys, a, b, said):
    assert run(a, b) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["--margin", "0"], ["--margin", "2"], ["--margin", "x"], ["--budget", "0"]]
)
def test_an_option_that_makes_no_sense_is_refused(capsys, words):
    with pytest.raises(SystemExit) as stopped:
        run("einsum", "matmul", *words)
    assert stopped.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_where_nothing_could_be_compared_the_status_says_so(worker, capsys, tmp_path):
    assert run("sdpa.cudnn", "einsum", out=tmp_path) == 2
    assert "nothing was compared" in capsys.readouterr().err


def test_a_variant_that_is_wrong_is_a_finding(monkeypatch, worker, capsys, tmp_path):
    def found(judged, *_, **__):
        return [comparing.Compared(judged[0].problem, None, comparing.Status.WRONG, "why")]

    monkeypatch.setattr(comparing, "compare_cells", found)
    assert run("einsum", "matmul", out=tmp_path) == 1
    assert "wrong" in capsys.readouterr().out
