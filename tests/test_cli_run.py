"""``check`` and ``run`` as their users meet them: what is said, and what is written down."""

import json
import re
from pathlib import Path

import pytest

from attnbench.core.record import PROTOCOL
from attnbench.core.store import read_header, read_records
from tests import calling
from tests.calling import VALID, only_run, well

inverted = calling.inverted

# ---- check ---------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong_with_honest_variants():
    records = json.loads(well("check", "chunked", "--json").stdout)
    assert len(records) == 3 * 3 * 2  # masks, phases, with and without grouped heads
    assert {r["status"] for r in records} == {"measured"}
    for record in records:
        VALID.validate(record)
        assert record["time"] is None
        assert record["error"]["forward"]["relative"] < 1e-5


def test_check_finds_an_inverted_mask_and_exits_1(inverted):
    grid = ["--kv-heads", "4", "--mask", "causal", "--phase", "forward"]
    done = well("check", "einsum", "inverted", "--table", inverted, *grid, status=1)
    lines = done.stdout.splitlines()
    assert "1 of 1" in next(x for x in lines if x.startswith("einsum"))
    assert "0 of 1" in next(x for x in lines if x.startswith("inverted"))
    assert re.search(r"wrong .*row \d+.*key \d+", done.stdout)


# ---- run -----------------------------------------------------------------------------------------

NAMES = ("einsum", "chunked")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Two variants on two lengths in two phases: what was said, and the folder."""
    out = tmp_path_factory.mktemp("tiny")
    grid = ["--seq", "32,48", "--heads", "2", "--budget", "0.02", "--seed", "7", "--out", out]
    done = well("run", *NAMES, *grid, options=["-X", "importtime"])
    return done, only_run(out)


def test_a_run_prints_a_table_for_each_phase_and_an_answer_for_each_length(tiny):
    lines = tiny[0].stdout.splitlines()
    for name in NAMES:
        rows = [x for x in lines if x.startswith(name + " ") and "±" in x]
        assert [len(re.findall(r"\d ±\d", row)) for row in rows] == [2, 2]
    for phase in ("forward", "train"):
        assert any(f"{phase} · mask causal" in line for line in lines)
        for length in (32, 48):
            start = f"{phase}, mask causal, {length} tokens, b1 h2/2 d64 float32: "
            (line,) = [x for x in lines if x.startswith(start)]
            low, high = map(float, re.search(r"\[([\d.e-]+), ([\d.e-]+)\] ms", line).groups())
            assert 0 < low <= high and any(name in line for name in NAMES)


def test_a_run_says_its_plan_its_folder_and_its_report_on_the_error_stream(tiny):
    done, path = tiny
    assert "8 cells: 2 variants on 4 problems; about " in done.stderr
    assert f"records go to {path}" in done.stderr
    assert re.search(r"\[([89]|1\d)/\1, 0 s left\]", done.stderr)  # more if the machine drifted
    assert f"the report is {path}/report/index.html" in done.stderr
    page = (path / "report" / "index.html").read_text()
    assert all(name in page for name in NAMES) and "could not" not in page
    (seen,) = json.loads((path / "maps.json").read_text())["maps"]
    assert {seen["variant"], *seen["alike"]} == set(NAMES)
    assert re.search(r"\| +attnbench\.sweep\.engine$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch\b", done.stderr)  # which is for the worker


def test_the_records_and_the_header_of_a_run_are_valid_and_belong_to_it(tiny):
    path = tiny[1]
    lines = (path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 8
    for line in lines:
        sent = json.loads(line)
        VALID.validate(sent)
        assert (sent["run"], sent["seed"], sent["status"]) == (path.name, 7, "measured")
        time = sent["time"]
        assert time["n"] == len(time["samples_s"]) >= 7
        assert time["low_s"] <= time["median_s"] <= time["high_s"]
        assert time["min_s"] == min(time["samples_s"])
        trained = {"dq", "dk", "dv"} if sent["problem"]["phase"] == "train" else set()
        assert set(sent["error"]) == {"forward", *trained}
    header = read_header(path)
    assert (header["protocol"], header["seed"], header["variants"]) == (PROTOCOL, 7, [*NAMES])
    assert header["machine"]["name"] == path.parent.name
    assert set(header["code"]) == {"commit", "dirty", "impls", "ruler"}
    assert header["command"].startswith("attnbench run einsum")
    assert header["ceilings"]["flops"]["float32"] > 0


@pytest.fixture(scope="module")
def peaky(tmp_path_factory, inverted):
    """One bad variant by its inputs, one by its mask, one honest; as JSON."""
    out = tmp_path_factory.mktemp("peaky")
    grid = ["--seq", "48", "--heads", "2", "--phase", "forward", "--inputs", "normal,peaky"]
    rest = ["--budget", "0.02", "--json", "--table", inverted, "--no-report", "--out", out]
    done = well("run", "einsum", "exp.naive", "inverted", *grid, *rest, status=1)
    sent = json.loads(done.stdout)
    return sent, {(r["variant"], r["problem"]["inputs"]): r for r in sent["records"]}


def test_a_run_as_json_has_valid_records_and_answers(peaky):
    sent, by_cell = peaky
    assert len(by_cell) == 6
    for record in sent["records"]:
        VALID.validate(record)
    run = Path(sent["run"])
    assert [r.to_dict() for r in read_records(run)] == sent["records"]
    assert not (run / "report").exists() and not (run / "maps.json").exists()
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
