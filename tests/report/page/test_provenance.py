"""Where a run comes from, and what it may be trusted for."""

import hashlib
from pathlib import Path

import pytest

from attnbench.features.report.provenance import about, commands, machine_line
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
timed = runs.timed


def test_a_machine_is_said_in_a_line(gathered):
    (run,) = gathered(runs.small())
    assert machine_line(run) == (
        "Slow Box, 2 cores, 25 GiB · torch 2.13.0+cpu · 1 thread · 2 January 2026"
    )


def test_a_gpu_is_said_first(gathered):
    gpu = {"name": "NVIDIA H200", "memory_bytes": 139 << 30}
    (run,) = gathered(runs.small(), machine={**runs.MACHINE, "gpus": [gpu, gpu]})
    assert machine_line(run).startswith("2 × NVIDIA H200, 139 GiB, Slow Box, 2 cores")


def test_what_a_run_may_be_trusted_for_is_said(gathered):
    records = [
        timed("a", 1e-3, flags=["contended: 3"]),
        timed("b", 1e-3, flags=["contended: 4", "drift"]),
        timed("c", 1e-3, canary_s=1.2e-3),
        runs.untimed("d", "wrong", canary_s=9e-3),
    ]
    (run,) = gathered(records)
    (run.path / "spoiled.jsonl").write_text("{}\n{}\n")
    check, noise, refused, flags, drift, again = about(run).trust
    assert check == "ruler self-check: 74/74 on this machine (2026-01-01)"
    assert noise.endswith("0.40% for calls of 1 ms")
    assert refused == "3 cells passed the checks and have a time; 1 wrong"
    assert flags == "2 of 3 times were taken while something was amiss: contended (2), drift (1)"
    assert "between 1.00 and 1.20 times its median; 1 of 3 times" in drift
    assert again.startswith("2 cells measured while the machine drifted were done again")


@pytest.mark.parametrize(
    "header",
    [
        {
            "machine": None,
            "settings": None,
            "code": None,
            "selfcheck": None,
            "ceilings": None,
            "started": None,
            "command": None,
            "grid": None,
        },
        {
            "ceilings": {"flops": [], "copy": {"x": None}},
            "started": "soon",
            "command": "a 'b",
            "selfcheck": {},
            "nodes": {"a": 1, "b": 2},
            "grid": {"seq": 3},
        },
        {
            "machine": {"gpus": [None, {}], "versions": [], "cores": "two", "memory_bytes": "much"},
            "noise": [1, {"floor": "x"}, {"floor": 0.1}],
            "ceilings": {"flops": {"float32": None}},
            "nodes": {"a": None, "b": {"machine": {}}},
            "run": None,
        },
    ],
)
def test_a_header_that_says_little_or_nonsense_is_shown_as_it_is(gathered, header):
    (run,) = gathered(runs.small(), **header)
    found = about(run)
    assert all(isinstance(value, str) and value for _, value in found.facts)
    assert all(found.trust)


def test_commands_and_facts_say_no_path_of_the_machine(gathered, tmp_path):
    (run,) = gathered(runs.small(), command=f"attnbench run --out {tmp_path}/x --seq 64")
    assert commands(run) == ("attnbench run --out x --seq 64", "attnbench report results/m/run0")
    assert str(tmp_path) not in str(about(run).facts)
    assert dict(about(run).facts)["compiler"] == "g++"


def test_the_records_are_known_by_their_hash(gathered):
    (run,) = gathered(runs.small())
    told = hashlib.sha256((run.path / "records.jsonl").read_bytes()).hexdigest()
    assert dict(about(run).facts)["records"] == f"31, sha256 {told}"


def test_a_command_is_told_without_the_folders_of_its_machine(gathered):
    asked = "attnbench run --out=/a/b/results --table /a/mine.py --mask dense:/a/m.npy --seq 64"
    (run,) = gathered(runs.small(), command=asked)
    told, _ = commands(run)
    assert told == ("attnbench run --out=results --table mine.py --mask dense:m.npy --seq 64")
