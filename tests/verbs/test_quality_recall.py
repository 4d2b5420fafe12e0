"""``attnbench quality recall``, called as its users call it."""

import json
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.features.quality import pictures, recall
from impls.loading import load_file

made_up = load_file(Path(__file__).parents[1] / "models" / "quality" / "made_up_recall.py")


@pytest.fixture
def recalls(capsys, tmp_path):
    """Calls the form; returns its status, data and prose."""

    def call(*words, out=tmp_path):
        status = cli.main(["quality", "recall", *map(str, words), "--out", str(out)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


@pytest.fixture
def trained(monkeypatch):
    """In place of the processes: trainings as good as said, by variant; and what was asked."""
    found = {"sdpa": 1.0, "jobs": []}

    def run(job):
        found["jobs"].append(job)
        share = found.get((job.variant.label, job.seed), found.get(job.variant.label, 0.5))
        if isinstance(share, BaseException):
            raise share
        right = dict.fromkeys(job.setting.pairs, share)
        row = made_up.row(job.variant.label, job.seed)
        row["curve"] = [made_up.look(job.setting.steps, right, 2.0, in_time=bool(job.seconds))]
        return {**row, "setting": job.setting.to_dict(), "seconds": job.seconds}

    monkeypatch.setattr(recall, "run", run)
    monkeypatch.setattr(pictures, "draw_recall", lambda found, files: False)
    return found


def kept(out):
    (file,) = out.glob("*/evidence/*-recall.json")
    return file


@pytest.mark.slow
def test_a_real_one_trains_keeps_its_evidence_and_shows_it_again(recalls, tmp_path):
    status, table, said = recalls(
        "--preset", "cpu-quick", "--steps", 3, "--seeds", 1, "--seconds", 0.01
    )
    assert status == 0
    assert "linear.elu" in table and "one seed gives no interval" in table.lower()
    assert "[2/2" in said
    file = kept(tmp_path)
    assert file.with_suffix(".png").stat().st_size > 10_000
    rows = json.loads(file.read_text())["rows"]
    assert [row["status"] for row in rows] == ["trained"] * 2
    assert recalls("--from", file)[:2] == (0, table)


def test_what_is_said_is_in_the_json(recalls, trained):
    status, data, _ = recalls("--preset", "cpu", "linear.elu", "--json")
    found = json.loads(data)
    assert status == 0 and found["kind"] == "recall"
    ((sentence, *_),) = found["conclusions"].values()
    assert "reaches 99 %: sdpa" in sentence and "falls short of it: linear.elu" in sentence
    assert found["made"]["budgets"] and found["made"]["seeds"] == [0, 1, 2]


def test_the_words_of_the_command_line_reach_the_trainings(recalls, trained):
    recalls(
        "--preset",
        "cpu",
        "gla",
        "--pairs",
        "4,2",
        "--seq",
        20,
        "--width",
        8,
        "--seeds",
        2,
        "--seed",
        7,
        "--steps",
        30,
        "--seconds",
        5,
    )
    jobs = trained["jobs"]
    assert {job.seed for job in jobs} == {7, 8} and {job.seconds for job in jobs} == {5.0}
    (setting,) = {job.setting for job in jobs}
    assert (setting.pairs, setting.seq, setting.width, setting.steps) == ((2, 4), 20, 8, 30)


def test_a_scan_asks_two_of_everything_once(recalls, trained):
    _, table, _ = recalls("--preset", "cpu", "--scan")
    assert len(trained["jobs"]) == 9 * 2
    assert {job.seconds for job in trained["jobs"]} == {None}
    assert "and linear.elu is not, the cheapest first: n96 w16" in table


def test_ctrl_c_keeps_what_is_done(recalls, trained, tmp_path):
    trained["sdpa", 1] = trained["linear.elu", 1] = KeyboardInterrupt()
    status, _, said = recalls("--preset", "cpu", "linear.elu", "--seeds", 9)
    assert status == 130 and "what was trained is kept" in said
    found = json.loads(kept(tmp_path).read_text())
    assert found["made"]["stopped"] and [row["seed"] for row in found["rows"]] == [0, 0]


def test_who_cannot_train_is_said_with_a_remedy_and_the_others_go_on(recalls, trained):
    status, table, said = recalls("--preset", "cpu", "flash_attn2", "linear.elu")
    assert status == 0 and "linear.elu" in table
    assert "not trained: flash_attn2 runs on cuda" in said and "pip install" in said
    assert "! flash_attn2: unavailable" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "huge"], "no preset 'huge'"),
        (["--seq", "8"], "no room to ask"),
        (["sdpaa"], "no variant 'sdpaa'"),
        (["--from", "gone.json"], "can't read gone.json"),
        (["--threads", "4096"], "threads would wait"),
    ],
)
def test_bad_input_is_a_sentence(recalls, words, said):
    status, _, why = recalls("--preset", "cpu", *words)
    assert status == 2 and said in why


def test_other_evidence_is_refused(recalls, trained, tmp_path):
    recalls("--preset", "cpu", "--seeds", 2)
    file = kept(tmp_path)
    file.write_text(file.read_text().replace('"kind": "recall"', '"kind": "model"'))
    status, _, why = recalls("--from", file)
    assert status == 2 and "evidence of model, not of recall" in why


def test_a_damaged_file_is_a_sentence(recalls, trained, tmp_path):
    recalls("--preset", "cpu", "--seeds", 2)
    file = kept(tmp_path)
    file.write_text(file.read_text().replace('"curve"', '"swerve"'))
    status, _, why = recalls("--from", file)
    assert status == 2 and "is damaged" in why


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "quality of what kind?"),
        (["speed"], "there is no quality 'speed'"),
    ],
)
def test_the_forms_are_named_where_none_was_asked_for(capsys, words, said):
    assert cli.main(["quality", *words]) == 2
    assert said in (why := capsys.readouterr().err) and "recall" in why
