"""Runs as a report reads them: cut off, with numbers that are none; and what it says of each."""

import hashlib
import json

import pytest

from attnbench.core.record import Status
from attnbench.core.wire import plain
from attnbench.features.report.contents import why_none
from attnbench.report.scenes import gather, scenes
from tests.report.page import runs
from tests.report.page.runs import timed


@pytest.fixture
def read(gathered):
    return lambda records, **header: gathered(records, **header)[0]


def test_each_record_comes_with_its_line_and_each_run_with_its_number(tmp_path):
    first = runs.written(tmp_path / "m" / "one", runs.small())
    second = runs.written(tmp_path / "m" / "two", runs.small()[:3], tail=b'{"status":"meas')
    runs.written(tmp_path / "m" / "void", [])
    two, one = gather([second, tmp_path, first])
    count = len(runs.small())
    found = [(r.number, r.path.name, len(r.records)) for r in (two, one)]
    assert found == [(0, "two", 3), (1, "one", count)]
    lines = (first / "records.jsonl").read_text().splitlines()
    for record, line in zip(one.records, one.lines, strict=True):
        assert json.loads(lines[line - 1]) == plain(record)
    assert two.notes == ("left out, for there is no record in it: void",)
    assert (one.machine, one.notes) == ("slow-box-2c", ())


def test_what_a_run_did_not_come_to_and_what_torch_chose_is_said(read):
    ran = ("FlashAttention-2 (aten::_a)", "cuDNN (aten::_b)", "cuDNN (aten::_b)")
    own = [timed("sdpa", 1e-3, 32 * n, note=f"own; torch chose {x}") for n, x in enumerate(ran, 3)]
    run = read([*runs.small(), *own], cells=99)
    count, chosen = sorted(run.notes, key=lambda note: "torch" in note)
    said = "torch chose what sdpa ran: cuDNN in 2, FlashAttention-2 in 1 measurements"
    assert chosen == said
    assert count.startswith("34 of the 99 measurements") and "--resume" in count


@pytest.mark.parametrize(("apart", "sure"), [(0.01, "clear"), (0.2, "tie of 2")])
def test_a_lead_that_twins_of_the_run_have_too_is_none_and_nothing_overtakes(apart, sure):
    ahead, behind = 10e-3, 11.5e-3
    records = [timed("a", ahead), timed("b", behind)]
    records += [timed("a", behind, 128), timed("b", ahead, 128)]
    twins = {"one": 0, "two": apart}
    records += [timed(n, 0.1 * (1 + x), kernels=["flash_fwd"]) for n, x in twins.items()]
    (scene,) = scenes([runs.ran(records)])
    assert [standing.sure for standing in scene.standings] == [sure, sure]
    assert bool(scene.crossings) == (sure == "clear")


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([runs.other("gla")], "nothing exact was tried"),
        ([runs.other("gla"), runs.untimed("sdpa", Status.WRONG)], "wrong"),
        ([runs.untimed("sdpa", Status.UNSUPPORTED)], "unsupported"),
    ],
)
def test_a_length_without_a_winner_says_why(records, why):
    (scene,) = scenes([runs.ran(records)])
    assert why_none(scene, runs.PROBLEM.kv_len) == why


def test_what_a_run_may_be_trusted_for_is_said(read):
    flagged = [timed("a", flags=["contended: 3"]), timed("b", flags=["contended: 4", "drift"])]
    wrong = runs.untimed("d", "wrong", canary_s=9e-3)
    run = read([flagged[0], *flagged, timed("c", canary_s=1.2e-3), wrong])
    margin, check, noise, refused, flags, again = run.trust
    assert margin.startswith(
        "intervals less than 5\u00a0% apart count as ties: blocks timed one after"
    )
    assert run.margin_reason == margin
    assert check == "ruler self-check: 74/74 on this machine (2026-01-01)"
    assert noise.endswith("0.4\u00a0% for calls of 1 ms")
    assert refused == "3 measurements passed the correctness checks and have a time; 1 wrong"
    why = "some for several reasons: contended (2), drift (1)"
    assert flags == f"2 of 3 timings were noisy, {why}"
    assert again.startswith("1 measurement made while the machine drifted were repeated")


def test_commands_and_facts_say_no_path_of_the_machine_and_what_is_known(read, tmp_path):
    asked = "attnbench run --out=/a/b/results --table /a/mine.py --mask dense:/a/m.npy --seq 64"
    run = read(runs.small(), command=asked)
    told = "attnbench run --out=results --table mine.py --mask dense:m.npy --seq 64"
    assert run.commands == (told, "attnbench report results/m/run0")
    facts = dict(run.facts)
    assert str(tmp_path) not in str(facts)
    digest = hashlib.sha256((run.path / "records.jsonl").read_bytes()).hexdigest()
    assert facts["records"] == f"31, sha256 {digest}"
    assert facts["clocks"] == "host (24 measurements)"
    assert facts["code"] == f"commit {'0123abcd' * 5}"
    copies = "80 GB/s copying 256 KiB; 20 GB/s copying 256 MiB"
    assert facts["ceilings"] == f"0.1 TFLOP/s in float32; {copies}"
    assert facts["machine"] == "slow-box-2c, Slow Box, 2 cores, 25 GiB"


def test_a_header_that_says_little_is_shown_as_it_is(read):
    parts = "machine settings code selfcheck ceilings started command grid noise"
    found = read(runs.small(), **dict.fromkeys(parts.split()))
    assert all(isinstance(value, str) and value for _, value in found.facts)
    assert all(found.trust) and found.trust[2].startswith("noise floor: not measured")
