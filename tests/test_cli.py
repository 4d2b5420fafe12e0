"""The command line as its users meet it: what is loaded, ``list``, ``show``, ``env``, ``run``."""

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
from attnbench.core.record import PROTOCOL
from attnbench.core.store import read_header, read_records
from attnbench.core.wire import plain
from attnbench.meter import pairs
from tests import calling
from tests.calling import ROOT, SENTENCE, VALID, measured_here, only_run, well

RUN = "results/amd-epyc-2c/20261122-135617"
LOADED = f"""
import sys, attnbench
assert not {{"torch", "pandas", "numpy"}} & set(sys.modules)
assert attnbench.run and attnbench.show
from attnbench.cli import main
for words in ("list --json", "show einsum", "run einsum --seq 0", "check sdpa.cudnn",
              "choose --seq 1024 --heads 4 --phase train --from {RUN}"):
    main(words.split())
    assert "torch" not in sys.modules, words
"""


PARENT = ("core", "sweep", "answer", "report", "command", "features", "notebook", "cli.py")
"""What runs in the parent process; workers and meters need torch."""
WORKERS = {
    "device",
    "distil",
    "judged",
    "lm_worker",
    "cache_worker",
    "memories",
    "model_layers",
    "model_worker",
    "pretrained_worker",
    "recall_worker",
    "swappable",
    "worker",
    "profiler",
    "biases",
    "layers",
    "one_head",
    "padding",
    "word_vectors",
}
IMPORTED = """
import importlib, sys
sys.modules["torch"] = None  # importing it raises
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_nothing_of_this_loads_torch():
    subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, check=True, capture_output=True)


def test_the_parent_process_has_no_module_that_needs_torch():
    folder = ROOT / "attnbench"
    files = [file for part in PARENT for file in ((folder / part), *(folder / part).rglob("*.py"))]
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if file.stem not in WORKERS
    ]
    assert len(names) > 80
    subprocess.run([sys.executable, "-c", IMPORTED, *names], cwd=ROOT, check=True)


def test_the_list_has_every_row_with_availability_or_a_reason():
    listed = json.loads(well("list", "--json").stdout)
    assert [row["name"] for row in listed] == list(impls.table().rows)
    for row in listed:
        assert row["available"] is (row["reason"] == "")
        assert row["available"] or row["remedy"]


def test_rows_of_a_table_file_are_listed_and_broken_ones_say_why(tmp_path):
    file = tmp_path / "t.py"
    file.write_text(
        "from impls.spec import Variant\n"
        "ROWS = [Variant(name=n, title='t', family='mine', operator='softmax', build=':b')"
        " for n in ('mine.one', 'einsum')] + [7]\n"
    )
    rows = json.loads(well("list", "--json", "--table", file).stdout)
    mine, taken, number = (row for row in rows if row["family"] in ("mine", ""))
    assert (mine["available"], mine["origin"]) == (True, str(file))
    assert "taken by a row" in taken["reason"] and "is int, not a Variant" in number["reason"]
    lines = well("list", "--table", file).stdout.splitlines()
    assert "\n".join(lines).count("broken") == 2
    assert sum(" yes " in x or " no " in x for x in lines) == len(rows) - 2  # a line a row
    assert " ".join(lines).endswith("attnbench list --why")
    assert "needs CUDA" not in well("list").stdout
    assert "pip install" in well("list", "--why").stdout


def test_show_gives_the_mathematics_at_the_top_of_the_file():
    module = impls.table().rows["online"].build.partition(":")[0]
    text = Path(importlib.util.find_spec(module).origin).read_text()
    mathematics = ast.get_docstring(ast.parse(text))
    shown = " ".join(well("show", "online").stdout.split())
    assert " ".join(mathematics.split()) in shown
    assert "scale, softcap second output lse [batch, heads, q_len] if asked shapes" in shown
    assert json.loads(well("show", "online", "--json").stdout)["mathematics"] == mathematics


@pytest.mark.slow
def test_env_as_json_has_machine_settings_ceilings_and_noise_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "TRIALS", (1, 1))  # the noise is one comparison a length
    monkeypatch.setattr(pairs.floor_of, "__defaults__", (0.5,))
    with measured_here():
        done = well("env", "--json", "--dtype", "float32", "--out", str(tmp_path))
    facts = json.loads(done.stdout)
    assert json.loads((tmp_path / facts["machine"]["name"] / "env.json").read_text()) == facts
    assert len(facts["noise"]) == 3
    assert all(f["floor"] >= 0 and f["call_s"] > 0 for f in facts["noise"])
    assert facts["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert facts["ceilings"]["flops"]["float32"] > 1e8
    assert all(rate > 1e7 for rate in facts["ceilings"]["copy"].values())


def test_a_causal_map_has_rows_that_sum_to_one_and_no_weight_ahead():
    asked = ["--text", SENTENCE, "--mask", "causal", "--json"]
    with measured_here():
        sent = json.loads(well("show", "chunked?block=4", *asked).stdout)
    assert sent["words"] == SENTENCE.split()
    weights = np.array(sent["weights"], float)
    np.testing.assert_allclose(weights.sum(1), np.ones(6), atol=1e-5)
    assert (weights >= 0).all() and np.abs(np.triu(weights, 1)).max() < 1e-6
    assert weights[5, 0] == pytest.approx(weights[5, 4], rel=1e-4)  # "the" twice


inverted = calling.inverted
NAMES = ("einsum", "exp.naive", "inverted")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, inverted):
    """Three variants on two kinds of inputs: what was said, and the folder."""
    out = tmp_path_factory.mktemp("ran")
    words = [*NAMES, "--table", inverted, "--seq", "48", "--heads", "2", "--phase", "forward"]
    words += ["--inputs", "normal,peaky", "--budget", "0.02", "--seed", "7", "--out", out]
    words += ["--same-bits"]
    with measured_here():
        return well("run", *words, status=1), only_run(out)


def test_a_run_says_its_plan_its_answer_its_folder_and_its_report(ran):
    done, path = ran
    assert "6 measurements: 3 variants on 2 problems; about " in done.stderr
    assert f"records go to {path}" in done.stderr
    assert f"Report: {path}/report/index.html\n" in done.stdout
    page = (path / "report" / "index.html").read_text()
    assert all(name in page for name in NAMES) and "could not" not in page
    assert re.search(r"inverted is wrong on b1 h2/2 n48 .*: row \d+", " ".join(done.stdout.split()))
    use = re.search(r"^→ Use (einsum|exp.naive)$", done.stdout, re.MULTILINE)[1]
    row = re.search(rf"^{use} +([\d.]+) +\[[\d., ]+\] .* use this$", done.stdout, re.MULTILINE)
    assert float(row[1]) > 0


def test_the_records_and_the_header_of_a_run_are_valid_and_belong_to_it(ran):
    path = ran[1]
    lines = (path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 6
    for sent in map(json.loads, lines):
        VALID.validate(sent)
        assert (sent["run"], sent["seed"]) == (path.name, 7)
        if (time := sent["time"]) is None:
            continue
        assert sent["determinism"]["batch"] is not None, "tried of each, and not of the first alone"
        assert time["n"] == len(time["samples_s"]) >= 7
        assert time["low_s"] <= time["median_s"] <= time["high_s"]
        assert time["min_s"] == min(time["samples_s"])
    header = read_header(path)
    assert (header["protocol"], header["seed"], header["variants"]) == (PROTOCOL, 7, [*NAMES])
    assert header["machine"]["name"] == path.parent.name
    assert set(header["code"]) == {"commit", "dirty", "impls", "ruler"}
    assert header["ceilings"]["flops"]["float32"] > 0


def test_bare_exponentials_are_wrong_on_peaky_inputs_and_an_inverted_mask_on_all(ran, inverted):
    words = ["--resume", ran[1], "--table", inverted, "--json", "--no-report"]
    done = well("run", *words, status=1)  # all is done
    sent = json.loads(done.stdout)
    assert sent["run"] == str(ran[1]) and "6 done before" in done.stderr
    kept = {json.dumps(plain(r)) for r in read_records(Path(sent["run"]))}
    assert {json.dumps(r) for r in sent["records"]} == kept
    by_cell = {(r["variant"], r["problem"]["inputs"]): r for r in sent["records"]}
    assert by_cell["exp.naive", "normal"]["status"] == "measured"
    assert by_cell["exp.naive", "peaky"]["status"] == "wrong"
    assert by_cell["exp.naive", "peaky"]["time"] is None
    assert by_cell["einsum", "peaky"]["status"] == "measured"
    assert by_cell["einsum", "peaky"]["entropy"] < 0.2 < by_cell["einsum", "normal"]["entropy"]
    for inputs in ("normal", "peaky"):
        record = by_cell["inverted", inputs]
        assert record["status"] == "wrong" and re.search(r"row \d+.*key \d+", record["reason"])
    assert len(sent["answers"]) == 2
    assert {answer["problem"]["inputs"] for answer in sent["answers"]} == {"normal", "peaky"}
