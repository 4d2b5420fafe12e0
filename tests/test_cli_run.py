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
    records = json.loads(well("check", "einsum", "sdpa.flash", "chunked", "--json").stdout)
    assert len(records) == 3 * 3 * 3 * 2  # variants, masks, phases, with and without grouped heads
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

TINY = ["--seq", "32,48", "--heads", "2", "--budget", "0.02"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    words = ["einsum", "sdpa.flash", "chunked", *TINY, "--seed", "7", "--out", out]
    done = well("run", *words, options=["-X", "importtime"])
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


def test_a_run_ends_with_a_report_and_says_where(tiny):
    done, path = tiny
    assert f"the report is {path}/report/index.html" in done.stderr
    page = (path / "report" / "index.html").read_text()
    assert all(name in page for name in ("einsum", "sdpa.flash", "chunked"))
    (seen,) = json.loads((path / "maps.json").read_text())["maps"]
    assert sorted([seen["variant"], *seen["alike"]]) == ["chunked", "einsum", "sdpa.flash"]
    assert "could not" not in page


def test_a_run_that_is_to_make_no_report_makes_none(peaky):
    assert not Path(peaky[0]["run"], "report").exists()
    assert not Path(peaky[0]["run"], "maps.json").exists()


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
    assert set(header["code"]) == {"commit", "dirty", "impls", "ruler"}
    assert header["command"].startswith("attnbench run einsum")
    assert header["ceilings"]["flops"]["float32"] > 0


@pytest.fixture(scope="module")
def peaky(tmp_path_factory, inverted):
    """One bad variant by its inputs, one by its mask, one honest; as JSON."""
    out = tmp_path_factory.mktemp("peaky")
    grid = [
        "--seq",
        "48",
        "--heads",
        "2",
        "--phase",
        "forward",
        "--inputs",
        "normal,peaky",
        "--budget",
        "0.02",
    ]
    rest = ["--budget", "0.02", "--json", "--table", inverted, "--no-report", "--out", out]
    done = well("run", "einsum", "exp.naive", "inverted", *grid, *rest, status=1)
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
