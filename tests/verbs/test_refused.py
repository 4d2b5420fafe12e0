"""What a verb can't do is one sentence and exit status 2, before any worker is started."""

import pytest

from attnbench import cli
from attnbench.features.quality import pretrained
from tests.calling import attnbench_

LIMITS, MODEL, RECALL = ["limits"], ["quality", "model"], ["quality", "recall", "--preset", "cpu"]
CROSSOVER = ["crossover", "matmul", "einsum"]
CHOOSE = ["choose", "--seq", "128"]


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    def started(*_, **__):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("attnbench.sweep.engine.LocalEngine", started)
    monkeypatch.setattr(pretrained, "model_folder", lambda: None)  # it may not be installed
    monkeypatch.setattr(pretrained, "versions", lambda: {"transformers": "5"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["choose"], "say --seq at the least"),
        (["choose", "--seq", "128,256"], "--seq has several values"),
        ([*CHOOSE, "--phase", "forward,train", "--heads", "1,2"], "--heads, --phase has"),
        ([*CHOOSE, "--exact", "--allow", "other"], "contradict each other"),
        ([*CHOOSE, "--allow", "quick"], "is not one of pattern, approximate, other"),
        ([*CHOOSE, "--from", "nowhere"], "there is no nowhere"),
        ([*CHOOSE, "--problems", "x"], "leave --seq out"),
        (["choose", "--problems", "nowhere.json"], "can't read calls from nowhere.json"),
        (["choose", "--export", "x", "--problems", "y"], "leave --problems out"),
        (["choose", "--export", "x", "--allow", "other"], "leave --allow out"),
        (["choose", "--export", "x", "--out", "nowhere"], "there is no run"),
        ([*CHOOSE, "--from", "x", "--measure"], "leave one of them out"),
        ([*CHOOSE, "--from", "x", "--threads", "1"], "has its own"),
        (["compare", "einsum", "."], "einsum is a variant and . is neither a run folder nor a va"),
        (["compare", "nothere", "einsum"], "there is no variant 'nothere'"),
        (["compare", "nothere", "nowhere"], "'nothere' is no commit of"),
        (["compare", "mha", "einsum"], "mha is a layer and einsum a core: their times are of oth"),
        (["compare", "einsum", "matmul", "--margin", "2"], "'2' is not a share"),
        ([*CROSSOVER, "--seq", "512,64"], "the shorter comes first"),
        ([*CROSSOVER, "--heads", "2,4"], "crossover takes one value of --heads"),
        ([*CROSSOVER, "--device", "cuda:9"], "device cuda"),
        ([*CROSSOVER, "--threads", "4096"], "--threads 4096"),
        (["crossover", "matmul", "matmul"], "can't overtake itself"),
        (["crossover", "matmul", "mha"], "matmul is a core and mha a layer"),
        ([*LIMITS, "--by", "heads"], "--by 'heads' is neither seq nor batch"),
        ([*LIMITS, "--seq", "64"], "--seq is what is searched"),
        ([*LIMITS, "--by", "batch", "--batch", "2"], "--batch is what is searched"),
        ([*LIMITS, "--heads", "2,4"], "limits takes one value of --heads"),
        ([*LIMITS, "--max-memory", "900TiB"], "--max-memory 921600 GiB is more than cpu has"),
        ([*LIMITS, "--mask", "document:100,156"], "use --by batch"),
        ([*LIMITS, "--inputs", "captured:x.npz"], "captured inputs have one size"),
        ([*LIMITS, "--max-memory", "2"], "'2' is not a size: give a number above 0 with its unit"),
        ([*LIMITS, "--max-memory", "infGiB"], "is not a size"),
        ([*LIMITS, "--max-time", "9999999s"], "is not a time"),
        (["quality", "speed"], "there is no quality 'speed'; there are attnbench quality recall"),
        ([*MODEL, "--seq", "1024"], "--seq 1024 is longer than the model has places for: 512"),
        ([*MODEL, "--from", "nowhere.json"], "can't read nowhere.json"),
        ([*MODEL, "--texts", "nowhere.txt"], "can't read --texts nowhere.txt"),
        (["quality", "recall", "--preset", "huge"], "no preset 'huge'"),
        ([*RECALL, "--seq", "8"], "no room to ask"),
        ([*RECALL, "--from", "gone.json"], "can't read gone.json"),
        (["reproduce", "keybias"], "did you mean key-bias"),
        (["reproduce", "key-bias", "--threads", "4096"], "--threads 4096"),
        (["run", "einsum", "--anyway"], "give --resume RUN with it"),
        (["run", "einsum", "--address", "host:1"], "give --engine ray with them"),
    ],
    ids=lambda x: x if isinstance(x, str) else " ".join(x),
)
def test_what_can_not_be_done_is_a_sentence_and_leaves_nothing(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = attnbench_(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["run sdpa --seq 16", "limits einsum", "reproduce words-small"])
def test_a_folder_that_can_not_be_written_is_told_before_anything_runs(verb, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main([*verb.split(), "--out", str(tmp_path / "file")]) == 2
    assert "can't write" in (said := capsys.readouterr().err) and "--out" in said


@pytest.mark.parametrize("words", [["--margin", "0.03"], ["--seq", "64"], ["--threads", "1"]])
def test_what_two_run_folders_can_not_heed_is_refused(capsys, tmp_path, words):
    (tmp_path / "run.json").write_text("{}")
    assert cli.main(["compare", str(tmp_path), str(tmp_path), *words]) == 2
    assert f"{words[0]} says nothing of two run folders" in capsys.readouterr().err
