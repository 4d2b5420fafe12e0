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

import impls
from attnbench.command.arguments import GROUPS
from tests import calling
from tests.calling import ROOT, SENTENCE, well

inverted = calling.inverted

WORDS = SENTENCE.split()


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


@pytest.mark.parametrize("verb", [v for verbs in GROUPS.values() for v in verbs])
def test_every_verb_has_help_with_json_and_table(verb):
    text = well(verb, "--help").stdout
    assert "--json" in text and "--table" in text


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
        [sys.executable, "-c", LOADED, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


RUN = "results/amd-epyc-2c/20261122-135617"


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--json"),
        ("show", "einsum"),
        ("run", "einsum", "--seq", "0"),
        ("check", "sdpa.cudnn"),
        ("choose", *["--seq", "1024", "--heads", "4", "--phase", "train", "--from"], RUN),
    ],
    ids=" ".join,
)
def test_nothing_of_this_loads_torch(words):
    seen = loaded(*words)
    assert "attnbench.cli" in seen
    assert "torch" not in seen


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


def test_show_gives_the_mathematics_at_the_top_of_the_file():
    module = impls.table().rows["online"].build.partition(":")[0]
    text = Path(importlib.util.find_spec(module).origin).read_text()
    mathematics = ast.get_docstring(ast.parse(text))
    assert mathematics in well("show", "online").stdout
    assert json.loads(well("show", "online", "--json").stdout)["mathematics"] == mathematics


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


@pytest.mark.parametrize("name", ["einsum", "chunked?block=4"])
def test_a_causal_map_has_rows_that_sum_to_one_and_no_weight_ahead(name):
    weights = attention_map(name, "--mask", "causal")
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-5)
    assert (weights >= 0).all()
    assert np.abs(np.triu(weights, 1)).max() < 1e-6
    assert weights[5, 0] == pytest.approx(weights[5, 4], rel=1e-4)  # "the" twice
