"""``check`` and ``run`` as their users meet them: what is said, and what is written down."""

import json
import re
from pathlib import Path

import pytest

from attnbench.core.record import PROTOCOL
from attnbench.core.store import read_header, read_records
from tests import calling
from tests.calling import VALID, measured_here, only_run, well

inverted = calling.inverted
NAMES = ("einsum", "exp.naive", "inverted")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, inverted):
    """Three variants on two kinds of inputs: what was said, and the folder."""
    out = tmp_path_factory.mktemp("ran")
    words = [*NAMES, "--table", inverted, "--seq", "48", "--heads", "2", "--phase", "forward"]
    words += ["--inputs", "normal,peaky", "--budget", "0.02", "--seed", "7", "--out", out]
    with measured_here():
        return well("run", *words, status=1), only_run(out)


def test_a_run_says_its_plan_its_answer_its_folder_and_its_report(ran):
    done, path = ran
    assert "6 measurements: 3 variants on 2 problems; about " in done.stderr
    assert f"records go to {path}" in done.stderr
    assert f"Report: {path}/report/index.html" in done.stdout
    page = (path / "report" / "index.html").read_text()
    assert all(name in page for name in NAMES) and "could not" not in page
    (seen,) = json.loads((path / "maps.json").read_text())["maps"]
    assert {seen["variant"], *seen["alike"]} == {"einsum", "exp.naive"}
    assert re.search(r"^inverted is wrong on b1 h2/2 n48 .*: row \d+", done.stdout, re.MULTILINE)
    use = re.search(r"^→ Use (einsum|exp.naive)$", done.stdout, re.MULTILINE)[1]
    row = re.search(rf"^{use} +([\d.]+) +\[[\d., ]+\] .* use this$", done.stdout, re.MULTILINE)
    assert float(row[1]) > 0 and len(done.stdout.splitlines()) <= 25


def test_the_records_and_the_header_of_a_run_are_valid_and_belong_to_it(ran):
    path = ran[1]
    lines = (path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 6
    for sent in map(json.loads, lines):
        VALID.validate(sent)
        assert (sent["run"], sent["seed"]) == (path.name, 7)
        if (time := sent["time"]) is None:
            continue
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
    assert {json.dumps(r) for r in sent["records"]} == {
        json.dumps(r.to_dict()) for r in read_records(Path(sent["run"]))
    }
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
    assert all(answer["winner"] in answer["sentence"] for answer in sent["answers"])
