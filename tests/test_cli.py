"""The command line as its users meet it: in a process of its own, data apart from prose."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import attnbench
import impls
from attnbench.arguments import GROUPS
from attnbench.record import PROTOCOL
from attnbench.store import read_header, read_records
from impls.loading import load_file

calling = load_file(Path(__file__).with_name("calling.py"))
ROOT = calling.ROOT
SENTENCE = calling.SENTENCE
attnbench_ = calling.attnbench_
only_run = calling.only_run
well = calling.well


VALID = Draft202012Validator(json.loads((ROOT / "attnbench/record.schema.json").read_text()))
WORDS = SENTENCE.split()
INVERTED = """
import torch
from impls.spec import Variant

def build(problem):
    seen = ~torch.from_numpy(problem.mask.visible(problem.shape))

    def attend(q, k, v):
        scores = (q @ k.mT * problem.scale).masked_fill(~seen, float("-inf"))
        return scores.softmax(-1).nan_to_num(0.0) @ v

    return attend

ROWS = [Variant(name="inverted", title="sees what it must not", family="mine", build=":build",
                computes="softmax", gqa=False)]
"""


@pytest.fixture(scope="module")
def inverted(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "inverted.py"
    file.write_text(INVERTED)
    return file


# ---- help, and what is loaded --------------------------------------------------------------------


def test_help_shows_every_verb_in_its_group():
    text = well("--help").stdout
    at = [text.index(f"\n{group}:") for group in GROUPS]
    assert at == sorted(at)
    for group, verbs in GROUPS.items():
        part = text[text.index(f"\n{group}:") :].split("\n\n")[0]
        for verb, line in verbs.items():
            assert re.search(rf"^  {verb} +{re.escape(line)}$", part, re.MULTILINE)
    assert "Exit status: 0 done, 1 a finding, 2 usage or environment, 130 stopped" in text


def test_without_a_verb_the_help_is_shown_and_the_status_is_usage():
    assert "measure:" in well(status=2).stdout


def test_the_version_is_said():
    assert well("--version").stdout.strip() == attnbench.__version__


@pytest.mark.parametrize("verb", [v for verbs in GROUPS.values() for v in verbs])
def test_every_verb_has_help_with_json_and_table(verb):
    text = well(verb, "--help").stdout
    assert "--json" in text
    assert "--table" in text


LOADED = """
import json, sys
from attnbench.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def loaded(*words):
    """The modules that a verb has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, words)], cwd=ROOT, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [("--help",), ("list",), ("list", "--json"), ("show", "einsum"),
     ("run", "nosuch"), ("run", "einsum", "--seq", "0"), ("check", "sdpa.cudnn")],
    ids=" ".join,
)  # fmt: skip
def test_nothing_of_this_loads_torch(words):
    seen = loaded(*words)
    assert "attnbench.cli" in seen
    assert "torch" not in seen


def test_listing_loads_no_variant(inverted):
    seen = loaded("list", "--table", inverted)
    assert "impls.dense" in seen
    assert not {m for m in seen if m.startswith("impls.dense.")}


# ---- list, show, env -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed():
    return json.loads(well("list", "--json").stdout)


def test_the_list_as_json_has_every_row_with_availability_or_a_reason(listed):
    assert [row["name"] for row in listed] == list(impls.table().rows)
    for row in listed:
        assert {"name", "family", "computes", "level", "available", "reason"} <= set(row)
        assert isinstance(row["available"], bool)
        assert row["available"] == (row["reason"] == "")
        assert row["available"] or row["remedy"]


def test_the_list_as_text_has_every_row_with_yes_or_no_and_why(listed):
    lines = re.sub(r"\n +", " ", well("list").stdout).splitlines()  # a reason goes on below itself
    for row in listed:
        (line,) = [x for x in lines if x.split()[:1] == [row["name"]]]
        assert ("yes" if row["available"] else "no") in line.split()
        assert (row["title"] if row["available"] else row["reason"]) in line


def test_rows_of_a_table_file_are_listed_and_broken_ones_say_why(tmp_path):
    file = tmp_path / "t.py"
    file.write_text(
        "from impls.spec import Variant\n"
        "ROWS = [Variant(name=n, title='t', family='mine', computes='softmax', build=':b')"
        " for n in ('mine.one', 'einsum')] + [7]\n"
    )
    rows = json.loads(well("list", "--json", "--table", file).stdout)
    by_name = {row["name"]: row for row in rows if row["family"] != "dense"}
    assert by_name["mine.one"]["available"] is True
    assert by_name["mine.one"]["origin"] == str(file)
    assert "taken by a row of attnbench" in by_name["einsum"]["reason"]
    assert "is int, not a Variant" in by_name[f"{file}[2]"]["reason"]
    text = well("list", "--table", file).stdout
    assert "mine.one" in text
    assert text.count("broken") == 2


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_a_reader_that_has_left_is_no_finding(extra):
    read, write = os.pipe()
    os.close(read)
    try:
        done = attnbench_("list", *extra, capture_output=False, stdout=write,
                          stderr=subprocess.PIPE)  # fmt: skip
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["einsum", "online", "mean_v"])
def test_show_gives_the_mathematics_at_the_top_of_the_file(name):
    module = impls.table().rows[name].build.partition(":")[0]
    text = Path(importlib.util.find_spec(module).origin).read_text()
    mathematics = ast.get_docstring(ast.parse(text))
    assert mathematics in well("show", name).stdout
    assert json.loads(well("show", name, "--json").stdout)["mathematics"] == mathematics


def test_show_says_why_a_variant_can_not_run_here(listed):
    missing = [row for row in listed if not row["available"]]
    if not missing:
        pytest.skip("every variant runs here")
    assert missing[0]["reason"] in well("show", missing[0]["name"]).stdout


@pytest.mark.slow
def test_env_as_json_has_machine_settings_ceilings_and_noise_and_is_kept(tmp_path):
    done = well("env", "--json", "--dtype", "float32", "--out", str(tmp_path))
    facts = json.loads(done.stdout)
    assert json.loads((tmp_path / facts["machine"]["name"] / "env.json").read_text()) == facts
    assert all(f["floor"] >= 0 and f["call_s"] > 0 for f in facts["noise"])
    assert len(facts["noise"]) == 3
    assert facts["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert facts["settings"]["threads"] >= 1
    assert facts["ceilings"]["flops"]["float32"] > 1e8
    assert all(rate > 1e7 for rate in facts["ceilings"]["copy"].values())


# ---- maps ----------------------------------------------------------------------------------------


def attention_map(name, *words):
    sent = json.loads(well("show", name, "--text", SENTENCE, "--json", *words).stdout)
    assert sent["words"] == WORDS
    weights = np.array(sent["weights"], float)
    assert weights.shape == (6, 6)
    return weights


@pytest.mark.parametrize("name", ["einsum", "sdpa.flash", "chunked?block=4"])
def test_a_causal_map_has_rows_that_sum_to_one_and_no_weight_ahead(name):
    weights = attention_map(name, "--mask", "causal")
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-5)
    assert (weights >= 0).all()
    assert np.abs(np.triu(weights, 1)).max() < 1e-6
    assert weights[5, 0] == pytest.approx(weights[5, 4], rel=1e-4)  # "the" twice


GLOVE = {"the": [0.5, -1.0, 0.25, 2.0], "cat": [1.0, 0.5, -0.5, 0.0], "sat": [0.0, 1.5, 1.0, -1.0],
         "on": [-1.0, 0.0, 0.5, 0.5], "mat": [1.0, 0.25, -0.75, 0.5]}  # fmt: skip


@pytest.fixture
def glove(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in GLOVE.items()))
    return file


def test_a_map_over_word_vectors_is_softmax_attention_and_can_be_drawn(glove, tmp_path):
    picture = tmp_path / "map.png"
    weights = attention_map("einsum", "--embeddings", glove, "--out", picture)
    x = np.array([GLOVE[w] for w in WORDS])
    powers = np.exp(x @ x.T / 2)
    np.testing.assert_allclose(weights, powers / powers.sum(1, keepdims=True), atol=1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_map_as_text_has_a_row_for_each_word():
    lines = well("show", "einsum", "--text", SENTENCE, "--mask", "causal").stdout.splitlines()
    assert lines[0].split() == WORDS
    assert [line.split()[0] for line in lines[1:7]] == WORDS
    assert lines[1].split()[1:] == ["1.00", "0.00", "0.00", "0.00", "0.00", "0.00"]


# ---- check ---------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong_with_honest_variants():
    records = json.loads(well("check", "einsum", "sdpa.flash", "chunked", "--json").stdout)
    assert len(records) == 3 * 3 * 3 * 2  # variants, masks, phases, with and without grouped heads
    assert {r["status"] for r in records} == {"measured"}
    for record in records:
        VALID.validate(record)
        assert record["time"] is None
        assert record["error"]["forward"]["relative"] < 1e-5


def test_check_finds_an_inverted_mask_and_exits_1(inverted):
    done = well("check", "einsum", "inverted", "--table", inverted, "--kv-heads", "4",
                "--mask", "causal", "--phase", "forward", status=1)  # fmt: skip
    lines = done.stdout.splitlines()
    assert "1 of 1" in next(x for x in lines if x.startswith("einsum"))
    assert "0 of 1" in next(x for x in lines if x.startswith("inverted"))
    assert re.search(r"wrong .*row \d+.*key \d+", done.stdout)


# ---- run -----------------------------------------------------------------------------------------

TINY = ["--seq", "32,48", "--heads", "2", "--budget", "0.02"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    done = well("run", "einsum", "sdpa.flash", "chunked", *TINY, "--seed", "7", "--out", out,
                options=["-X", "importtime"])  # fmt: skip
    return done, only_run(out)


def test_a_run_prints_a_table_for_each_phase(tiny):
    out = tiny[0].stdout
    assert "forward · mask causal" in out
    assert "train · mask causal" in out
    for name in ("einsum", "sdpa.flash", "chunked"):
        lines = [x for x in out.splitlines() if x.startswith(name + " ") and "±" in x]
        assert len(lines) == 2
        assert all(len(re.findall(r"\d ±\d", line)) == 2 for line in lines)


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("length", [32, 48])
def test_a_run_answers_for_each_length_and_phase_with_an_interval(tiny, phase, length):
    start = f"{phase}, mask causal, {length} tokens, b1 h2/2 d64 float32: "
    (line,) = [x for x in tiny[0].stdout.splitlines() if x.startswith(start)]
    low, high = map(float, re.search(r"\[([\d.e-]+), ([\d.e-]+)\] ms", line).groups())
    assert 0 < low <= high
    assert any(name in line for name in ("einsum", "sdpa.flash", "chunked"))


def test_a_run_says_its_plan_and_its_folder_on_the_error_stream(tiny):
    done, path = tiny
    assert "12 cells: 3 variants on 4 problems; about " in done.stderr
    assert f"records go to {path}" in done.stderr
    assert re.search(r"\[(1[2-9]|2\d)/\1, 0 s left\]", done.stderr)  # more if the machine drifted
    assert "cells" not in done.stdout


def test_a_run_does_not_load_torch_into_the_parent(tiny):
    assert re.search(r"\| +attnbench\.sweep\.engine$", tiny[0].stderr, re.MULTILINE)
    assert not re.search(r"\| +torch\b", tiny[0].stderr)


def test_the_records_of_a_run_are_valid_and_belong_to_it(tiny):
    path = tiny[1]
    lines = (path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 12
    for line in lines:
        sent = json.loads(line)
        VALID.validate(sent)
        assert (sent["run"], sent["seed"], sent["status"]) == (path.name, 7, "measured")
        time = sent["time"]
        assert time["n"] == len(time["samples_s"]) >= 7
        assert time["low_s"] <= time["median_s"] <= time["high_s"]
        assert time["min_s"] == min(time["samples_s"])
        assert set(sent["error"]) == (
            {"forward", "dq", "dk", "dv"} if sent["problem"]["phase"] == "train" else {"forward"}
        )


def test_the_header_of_a_run_says_what_and_where(tiny):
    header = read_header(tiny[1])
    assert header["protocol"] == PROTOCOL
    assert header["seed"] == 7
    assert header["variants"] == ["einsum", "sdpa.flash", "chunked"]
    assert header["machine"]["name"] == tiny[1].parent.name
    assert header["settings"]["threads"] >= 1
    assert set(header["code"]) == {"commit", "dirty"}
    assert header["command"].startswith("attnbench run einsum")
    assert header["ceilings"]["flops"]["float32"] > 0


@pytest.fixture(scope="module")
def peaky(tmp_path_factory, inverted):
    """One bad variant by its inputs, one by its mask, one honest; as JSON."""
    out = tmp_path_factory.mktemp("peaky")
    done = well("run", "einsum", "exp.naive", "inverted", "--seq", "48", "--heads", "2", "--phase",
                "forward", "--inputs", "normal,peaky", "--budget", "0.02", "--json", "--table",
                inverted, "--out", out, status=1)  # fmt: skip
    sent = json.loads(done.stdout)
    return sent, {(r["variant"], r["problem"]["inputs"]): r for r in sent["records"]}


def test_a_run_as_json_has_valid_records_and_answers(peaky):
    sent, by_cell = peaky
    assert len(by_cell) == 6
    for record in sent["records"]:
        VALID.validate(record)
    on_disk = [r.to_dict() for r in read_records(Path(sent["run"]))]
    assert on_disk == sent["records"]
    assert len(sent["answers"]) == 2
    for answer in sent["answers"]:
        assert answer["low_s"] <= answer["median_s"] <= answer["high_s"]
        assert answer["winner"] in answer["sentence"]


def test_bare_exponentials_are_right_on_normal_inputs_and_wrong_on_peaky_ones(peaky):
    _, by_cell = peaky
    assert by_cell["exp.naive", "normal"]["status"] == "measured"
    assert by_cell["exp.naive", "normal"]["time"] is not None
    assert by_cell["exp.naive", "peaky"]["status"] == "wrong"
    assert by_cell["exp.naive", "peaky"]["time"] is None
    assert by_cell["einsum", "peaky"]["status"] == "measured"
    assert by_cell["einsum", "peaky"]["entropy"] < 0.2 < by_cell["einsum", "normal"]["entropy"]


@pytest.mark.parametrize("inputs", ["normal", "peaky"])
def test_an_inverted_mask_is_wrong_by_row_and_key_and_has_no_time(peaky, inputs):
    record = peaky[1]["inverted", inputs]
    assert record["status"] == "wrong"
    assert re.search(r"\brow \d+", record["reason"])
    assert re.search(r"\bkey \d+", record["reason"])
    assert record["time"] is None
    assert all(a["winner"] != "inverted" for a in peaky[0]["answers"])
