"""``attnbench choose``: answers, silence, limits, what is refused, what a program gains."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from attnbench.answer.dispatch_table import DispatchTable
from attnbench.core.machine import this_machine
from attnbench.core.record import Determinism, Status, read_record
from attnbench.core.wire import plain
from attnbench.features.choose import calls, runs
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.sweep.start import as_recorded
from impls.masks import Mask
from impls.problem import setting_words
from tests.calling import told
from tests.core.tuned_lines import keep
from tests.core.tuned_lines import line as tuned_line
from tests.verbs import chosen_runs as made
from tests.verbs.conftest import answered

lines, problem, written = made.lines, made.problem, made.written
SHAPE = ("--heads", 4, "--phase", "forward")


@pytest.fixture
def run(tmp_path):
    return written(tmp_path / "results" / this_machine().name / "one", lines(sdpa=1.0, matmul=2.0))


@pytest.fixture
def whole(tmp_path):
    """A run of everybody who could win."""
    return written(tmp_path / "results" / this_machine().name / "one", made.everybody(sdpa=1.0))


@pytest.fixture
def measures(monkeypatch):
    """Instead of measuring, the problem that would have been is noted."""
    noted = []

    def measure_anew(problem, wants, table, arguments):
        noted.append(problem)
        return runs.best_of([Path(arguments.out)], problem, wants, table)

    monkeypatch.setattr(runs, "measure_anew", measure_anew)
    return noted


def test_one_that_lacks_somebody_who_could_win_is_not(chooses, tmp_path, measures):
    folder = tmp_path / "results" / this_machine().name
    written(folder / "one", made.everybody(sdpa=1.0, but=("matmul",)))
    _, _, said = chooses("--seq", 512, *SHAPE, "--out", folder.parent)
    assert measures == [problem(512)]
    assert f"not from {folder / 'one'}, which measured this without matmul" in said


def test_a_run_whose_variants_were_tuned_since_answers_only_by_its_name(
    chooses, whole, measures, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    keep(*(tuned_line(problem(n), block=64) for n in made.LENGTHS))
    words = ("--seq", 512, *SHAPE)
    _, _, said = chooses(*words, "--out", whole.parents[1])
    assert f"not from {whole}, which measured this without chunked" in said
    assert measures == [problem(512)]
    status, *_ = chooses(*words, "--from", whole)
    assert (status, len(measures)) == (0, 1)
    keep()
    chooses(*words, "--out", whole.parents[1])
    assert len(measures) == 1


def test_one_that_measured_the_problem_comes_before_a_newer_one_that_did_not(chooses, whole):
    newer = made.everybody(matmul=0.5)
    written(whole.parent / "two", [r for r in newer if r.problem.kv_len != 512])
    _, out, _ = chooses("--seq", 512, *SHAPE, "--out", whole.parents[1], "--json")
    assert json.loads(out)["source"] == str(whole)
    _, out, _ = chooses("--seq", 700, *SHAPE, "--out", whole.parents[1], "--json")
    assert json.loads(out)["source"] == str(whole.parent / "two")


def test_what_a_run_made_for_a_choice_left_out_is_left_out_again(chooses, tmp_path, measures):
    folder = tmp_path / "results" / this_machine().name
    about = {"problem": plain(problem(512)), "too_large": {"einsum": 1 << 30}, "pairs": []}
    about |= {"shorter": "n128", "behind": {"online": 9.4}}
    written(folder / "one", made.everybody(sdpa=1.0, but=("einsum", "online")), contest=about)
    words = ("--seq", 512, *SHAPE, "--out", folder.parent)
    _, out, _ = chooses(*words, "--max-memory", "512MiB")
    assert "left out, memory: einsum: by its own formula it needs 1 GiB" in out
    assert "left out, far behind: online: on n128 it took 9 times as long as the best" in out
    assert not measures
    chooses(*words)  # without that limit einsum might win
    assert measures == [problem(512)]


@pytest.fixture(params=["told", "measured"])
def overflows(tmp_path, request):
    """A run whose fastest variant is wrong on peaky inputs: as it was checked, or measured too."""
    why = "peaky: 512 rows are not finite in the output"
    records = made.lines(exp_naive=0.5, matmul=0.8, sdpa=1.0)
    if request.param == "told":
        records = [r.with_(wrong_on=why) if r.variant == "exp.naive" else r for r in records]
    else:
        wrong = {"status": Status.WRONG, "time": None, "reason": why.removeprefix("peaky: ")}
        peaky = [r.with_(problem=r.problem.with_(inputs="peaky")) for r in records]
        records += [r.with_(**wrong) if r.variant == "exp.naive" else r for r in peaky]
    return made.written(tmp_path / "run", records)


def test_what_is_wrong_on_other_inputs_than_the_runs_is_not_exported(chooses, tmp_path, overflows):
    status, _, _ = chooses("--export", tmp_path / "table.json", "--from", overflows)
    table = DispatchTable.read(tmp_path / "table.json")
    assert status == 0 and [r.variant for e in table.entries for r in e.ranges] == ["matmul"]
    assert table.made.inputs == ["normal", "peaky", "outliers", "equal_keys"]


@pytest.mark.parametrize("tokens", [512, 700])
def test_what_is_wrong_on_other_inputs_is_left_out_with_the_reason(chooses, overflows, tokens):
    words = ("--seq", tokens, *SHAPE, "--from", overflows)
    _, out, _ = chooses(*words)
    assert "use matmul" in out
    assert "left out, wrong on other inputs: exp.naive: peaky: 512 rows are not finite" in out
    found = json.loads(chooses(*words, "--json")[1])
    named = [found["winner"], found["next"], *found["equal"], *found["slower"]]
    assert "exp.naive" not in {c["variant"] for c in named if c}


def test_what_is_measured_anew_is_settled_in_pairs_and_kept(chooses, tmp_path, worker, monkeypatch):
    """Pairs of those near each other on a quarter of the tokens; sdpa is slower in pairs."""
    took, asked = {"sdpa": 1e-3, "matmul": 1e-3, "flex": 3e-3}, []

    def answer(question):
        said = answered(question)
        if "job" not in question:
            return said
        record = read_record(said["record"])
        name, p = record.variant, record.problem
        asked.append((name, p.kv_len))
        known = made.record(name, p, took.get(name, 0.1))
        return {"record": plain(record.with_(time=known.time, memory=known.memory))}

    worker.answer = answer
    words = ("--seq", 16384, *SHAPE, "--dtype", "float32", "--out", tmp_path)
    words += ("--allocator", "kept")
    monkeypatch.setattr("attnbench.command.progress.EVERY_S", 0.0)
    monkeypatch.setattr("attnbench.sweep.compare.LONG_S", 0.0)  # however fast the machine is
    _, out, err = chooses(*words, "--measure", "--json")
    found = json.loads(out)
    assert "in pairs: sdpa and matmul" in err and "0 of 1 · " in err
    assert {n for _, n in asked} == {4096, 16384}
    assert sorted(name for name, n in asked if n == 16384) == ["flex", "matmul", "sdpa"]
    assert [(pair["judged"], pair["against"]) for pair in found["pairs"]] == [("sdpa", "matmul")]
    for again in (found, json.loads(chooses(*words, "--json")[1])):  # from the run that is kept
        names = again["winner"]["variant"], again["next"]["variant"]
        assert (names, again["lead"]["factor"]) == (("matmul", "sdpa"), pytest.approx(1.2))
        assert len([e for e in again["excluded"] if e["why"] == "far behind"]) > 9
    assert len(asked) == len(set(asked))


def test_for_the_same_bits_a_run_answers_that_tried_each_measurement(chooses, tmp_path, measures):
    folder, same = tmp_path / "results" / this_machine().name, Determinism(True, True, True)
    words = ("--seq", 512, *SHAPE, "--same-bits", "--out", folder.parent)
    first = [r.with_(determinism=same) if r.variant == "matmul" else r for r in made.everybody()]
    written(folder / "one", first)  # others may be faster, and were not tried
    chooses(*words)
    assert measures == [problem(512)]
    apart = {"sdpa": same.with_(place=False)}
    records = [r.with_(determinism=apart.get(r.variant, same)) for r in made.everybody(sdpa=0.5)]
    written(folder / "two", records, same_bits=True)
    status, out, _ = chooses(*words)
    assert (status, len(measures)) == (0, 1) and "the same bits whatever the batch): use" in out
    assert "left out, other bits: sdpa: not across places, on b1" in out


def test_what_is_measured_for_the_same_bits_tries_them_of_every_variant(chooses, tmp_path, worker):
    seconds = []

    def answer(question):
        seconds.append(question.get("job", {}).get("bits_s"))
        return answered(question)

    worker.answer = answer
    words = ("--seq", 64, *SHAPE, "--dtype", "float32", "--out", tmp_path)
    for more, least in ((("--same-bits",), 600.0), ((), 0.3)):
        chooses(*words, "--measure", *more)
        tried = [x for x in seconds if x is not None]
        assert len(tried) > 9 and set(tried) == {least}
        seconds.clear()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("protocol", 1),
        ("settings__threads", 99),
        ("settings__allocator", "kept"),
        ("tables", ["mine.py"]),
        ("legs", []),
        *((f"machine__{name}", 99) for name in ("cpu", "cores", "torch_cuda")),
        ("machine__gpus", [{"name": "another"}]),
        *((f"machine__versions__{name}", "0.1") for name in ("torch", "triton")),
    ],
)
def test_only_a_run_of_this_machine_as_it_is_now_is_used_without_its_name(
    tmp_path, run, path, value
):
    assert list(runs.measured_here(tmp_path / "results", None)) == [run]
    told(run, **{path: value})
    assert list(runs.measured_here(tmp_path / "results", None)) == []


@pytest.fixture
def halved(tmp_path):
    """sdpa takes twice as long as matmul, whatever the problem."""
    return made.written(tmp_path / "run", made.lines(("forward", "train"), sdpa=2.0, matmul=1.0))


FORM = made.FORM


def captured(tmp_path, *sites, **more):
    """A program's calls, each of as many seconds as it takes alone."""
    usual = {"calls": 12, "seconds": 12e-3, "call": FORM}
    found = [
        Site(problem=p, via=via, share=share, **{"site": f"model.py:{n}", **usual, **rest})
        for n, (p, via, share, rest) in enumerate(sites)
    ]
    step = {"steps": 3, "step_s": 1.0, "step_share": sum(s.share or 0 for s in found)}
    calls = SeenCalls(sites=found, wall_s=10.0, attention_s=5.0, **step, **more)
    calls.write(tmp_path / "calls.json")
    return tmp_path / "calls.json"


@pytest.fixture(autouse=True)
def pricer(monkeypatch):
    monkeypatch.setattr(calls, "Pricer", made.Halves)


def test_a_step_gains_its_share_of_attention_times_what_attention_gains(chooses, halved, tmp_path):
    def gain(**more):
        file = captured(tmp_path, (problem(512, phase="train"), "sdpa", 0.4, {}), **more)
        return json.loads(chooses("--problems", file, "--from", halved, "--json")[1])["gain"]

    factor = (alone := gain())["factor"]
    assert alone["of"] == "a step" and alone["sites"][0]["takes"] == "matmul"
    assert factor["value"] == pytest.approx(1 - 0.4 * 0.5)
    assert factor["low"] < factor["value"] < factor["high"]
    wide = gain(step_share_between=[0.3, 0.5])["factor"]
    assert wide["value"] == factor["value"]
    assert wide["low"] < factor["low"] - 0.04 and wide["high"] > factor["high"] + 0.04


def test_for_the_same_bits_a_program_takes_only_what_was_tried_for_them(chooses, tmp_path):
    same = Determinism(True, True, True)
    records = [
        r.with_(determinism=same if r.variant == "sdpa" else same.with_(place=False))
        for r in made.lines(("train",), sdpa=2.0, matmul=1.0)
    ]
    run = made.written(tmp_path / "run", records, same_bits=True)
    forms = {x: msgspec.structs.replace(FORM, api=x) for x in ("sdpa", "flex")}
    sites = [(problem(512, phase="train"), via, 0.3, {"call": form}) for via, form in forms.items()]
    file = captured(tmp_path, *sites)
    for words, takes in (((), ["matmul", "matmul"]), (("--same-bits",), ["sdpa", "sdpa"])):
        _, out, _ = chooses("--problems", file, "--from", run, "--json", *words)
        assert [site["takes"] for site in json.loads(out)["gain"]["sites"]] == takes
    apart = [r.with_(determinism=same.with_(place=False)) for r in records]
    run = made.written(tmp_path / "other", apart, same_bits=True)
    status, out, _ = chooses("--problems", file, "--from", run, "--same-bits")
    assert status == 1 and "no variant that gives the same bits is known to gain" in out


def test_a_site_that_nobody_can_answer_stays_and_says_why(chooses, halved, tmp_path):
    file = captured(
        tmp_path,
        (problem(512, phase="train"), "sdpa", 0.3, {}),
        (problem(512, heads=64), "sdpa", 0.2, {}),
        (problem(512), "flex", 0.1, {"faithful": False, "note": "a score_mod of its own"}),
        (problem(256), "sdpa", 0.001, {}),
    )
    status, out, _ = chooses("--problems", file, "--from", halved)
    assert status == 0 and "take matmul attend" not in out
    assert (
        "model.py:1 · b1 h64/64 n512 d64 f32 causal forward" in out and "nothing to change" in out
    )
    assert "a score_mod of its own" in out and "it takes too little to gain anything" in out
    assert "outside what was measured (its shape was not measured)" in out
    assert "3 of 4 sites stay as they are" in out


def test_a_program_s_lines_are_the_whole_call_and_one_for_the_model_only_where_all_of_it_gains(
    chooses, tmp_path
):
    phases, scaled = ("forward", "train"), {"scale": 0.05}
    records = made.lines(phases, sdpa=2.0, matmul=1.0)
    records += made.lines(phases, settings=scaled, sdpa=2.0, matmul=1.0)
    halved = made.written(tmp_path / "run", records)
    one = (problem(512, phase="train", **scaled), "transformers sdpa", 0.3, {})
    status, out, _ = chooses("--problems", captured(tmp_path, one), "--from", halved)
    assert status == 0 and "to use matmul in all layers of the model:" in out
    assert 'model.set_attn_implementation("eager")' in out
    unclear = {"faithful": False, "note": "a score_mod of its own"}
    file = captured(tmp_path, one, (problem(512), "transformers flex", 0.1, unclear))
    _, out, _ = chooses("--problems", file, "--from", halved)
    assert 'out = attend(q, k, v, mask="causal", scale=0.05)' in out
    assert "set_attn_implementation(" not in out and "no line for the whole model: " in out
    answer = json.loads(chooses("--problems", file, "--from", halved, "--json")[1])
    assert answer["gain"]["sites"][0]["code"][-1].endswith("scale=0.05)")
    assert answer["whole_model"]["lines"] == []
    words = ("--problems", file, "--from", halved, "--json", "--for", "transformers")
    assert json.loads(chooses(*words)[1])["engine"]["why"] == answer["whole_model"]["why"]


@pytest.mark.parametrize(
    ("both", "best", "words"),
    [
        ({"softcap": 50.0, "sinks": True}, "chunked", "softcap=50.0, sinks=sinks"),
        ({"sinks": True}, "sdpa", "sinks=sinks"),
    ],
)
def test_a_soft_cap_and_sinks_are_said_and_in_the_lines_that_are_pasted(
    chooses, tmp_path, both, best, words
):
    records = made.lines(("train",), settings=both, **{"matmul": 2.0, best: 1.0})
    run = made.written(tmp_path / "run", [*records, *made.lines(("train",), sdpa=0.1)])
    written = {"call": msgspec.structs.replace(FORM, api="eager", kernel="written out")}
    site = (problem(512, phase="train", **both), "transformers eager", 0.3, written)
    status, out, _ = chooses("--problems", captured(tmp_path, site), "--from", run)
    assert status == 0 and f"causal train {' '.join(setting_words(both))}, 30 % of a step" in out
    assert f'out = attend(q, k, v, mask="causal", {words})' in out
    assert f"to use {best} in all layers" in out and f'("attnbench:{best}")' in out
    assert "--sinks --device" in out and "scaled_dot_product_attention" not in out
    assert ("--softcap 50 " in out) == ("softcap" in both)


@pytest.mark.parametrize("via", ["sdpa", "transformers sdpa"])
def test_a_program_s_answer_is_what_an_engine_takes_for_all_of_its_calls(
    chooses, halved, tmp_path, via
):
    file = captured(tmp_path, (problem(512, phase="train"), via, 0.3, {}))
    words = ("--problems", file, "--from", halved, "--for")
    _, out, _ = chooses(*words, "transformers")
    assert 'for transformers, to use matmul: model.set_attn_implementation("eager")' in out
    assert "import attnbench" not in out and "in all layers" not in out
    engine = json.loads(chooses(*words, "diffusers", "--json")[1])["engine"]
    lines = ['pipe.transformer.set_attention_backend("native")']
    instead = {"variant": "sdpa", "times": pytest.approx(2.0), "lines": lines}
    why = "diffusers has no matmul. It can take sdpa, 2.00× as long"
    assert engine == {
        **{"name": "diffusers", "takes": None, "lines": [], "why": why, "instead": instead}
    }
    _, out, _ = chooses(*words, "diffusers")
    assert f"for diffusers: {why}: {lines[0]}" in out


def test_a_line_that_is_called_with_several_masks_takes_no_variant_for_one_of_them(
    chooses, halved, tmp_path
):
    p = problem(512, phase="train")
    here = {"site": "model.py:0"}
    both = (p, "sdpa", 0.3, here), (p.with_(mask=Mask()), "sdpa", 0.3, here)
    file = captured(tmp_path, *both)
    _, out, _ = chooses("--problems", file, "--from", halved)
    assert "nothing to change" in out and "take matmul" not in out


def test_a_mask_without_a_name_is_found_in_a_run_whichever_way_its_file_is_spelled(
    chooses, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "holes.npy", np.arange(512 * 512).reshape(512, 512) % 3 > 0)
    absolute = problem(512).with_(mask=Mask.parse(f"dense:{tmp_path / 'holes.npy'}"))
    recorded = as_recorded(absolute)
    assert str(recorded.mask) == "dense:holes.npy"
    run = written(tmp_path / "run", [made.record("sdpa", recorded, 1.0)])
    file = captured(tmp_path, (absolute, "sdpa", 0.3, {}))
    status, out, _ = chooses("--problems", file, "--from", run)
    assert status == 0 and "use sdpa" in out


def test_an_answer_that_can_not_be_checked_by_running_the_program_is_still_given(
    chooses, halved, tmp_path
):
    file = captured(tmp_path, (problem(512, phase="train"), "eager", 0.3, {}))
    status, out, err = chooses("--problems", file, "--from", halved, "--verify", "--", "python")
    assert status == 1 and "not checked: nothing that is advised can be put in place" in err
    assert "then" in out and "0.50×" in out and "checked:" not in out


def test_the_advice_is_checked_by_running_the_program_in_turn_with_it(
    chooses, halved, tmp_path, monkeypatch
):
    advised = []

    def run_program(command, out, *, advice, **more):
        advised.append(advice and json.loads(advice.read_text()))
        return 0, SeenCalls(wall_s=1.0 if advice is None else 0.7)

    monkeypatch.setattr("attnbench.models.capture.program.run_program", run_program)
    file = captured(tmp_path, (problem(512, phase="train"), "sdpa", 0.3, {}))
    status, out, _ = chooses("--problems", file, "--from", halved, "--verify", "--", "python")
    assert status == 0 and "at 1 place, the program took 0.70 of its time" in out
    assert [bool(each) for each in advised] == [False, True] * 3
    (entry,) = advised[1]["model.py:0"]
    assert (entry["keys"], entry["variant"], entry["named"]) == (["variant"], "matmul", "causal")
