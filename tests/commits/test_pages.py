"""Exported runs in asv's own hands: its comparison and its pages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench.features.commits import asv as index
from attnbench.features.commits import suite
from attnbench.features.commits.export import export
from tests.commits import runs

pytestmark = pytest.mark.slow
WITH_PLUGIN = {**os.environ, "PYTHONPATH": str(Path(attnbench.__file__).parents[1])}
VARIANTS = ("matmul", "sdpa", "gla", "chunked?block=64", "lsh")
OTHER = "b1-h8-d64-f32-causal"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two commits, a run of each: sdpa became slower, matmul wrong, chunked stayed.

    A run of another machine is there too.
    """
    folder = tmp_path_factory.mktemp("pages")
    shas = runs.repository(folder / "repo")
    for i, sha in enumerate(shas):
        runs.run(folder / "runs" / str(i), sha, list(records(i)))
        newer = {**runs.BOX, "versions": {"torch": "2.14.0"}}
        runs.run(folder / "newer" / str(i), sha, [runs.measured(median=0.009)], machine=newer)
    conf = {
        "version": 1,
        "project": "a project",
        "repo": str(folder / "repo"),
        "branches": ["HEAD"],
        "results_dir": str(folder / "asv"),
        "html_dir": str(folder / "html"),
        "environment_type": "existing",
        "plugins": [".attnbench.features.commits.environment"],
    }
    (folder / "asv.conf.json").write_text(json.dumps(conf))
    files = {
        name: export([folder / name], folder / "asv", root=folder / "repo")
        for name in ("runs", "newer")
    }
    listed = folder / "asv" / index.FILE  # as asv run leaves it
    listed.write_text(json.dumps({**suite.benchmarks(), "version": index.INDEX_FORM}))
    return folder, shas, {name: some[0].parent.name for name, some in files.items()}


def records(i):
    for seq in (128, 256, 512):
        yield runs.measured("sdpa", (1.0 + i) * seq * 1e-5, seq=seq)
        yield runs.ended("wrong", "matmul", seq=seq) if i else runs.measured("matmul", seq=seq)
        yield runs.measured("chunked?block=64", seq * 2e-5, seq=seq)
        yield runs.ended("unsupported", "lsh", seq=seq)
        yield runs.measured("gla", seq * 3e-5, seq=seq, heads=8, kv_heads=8)
        if i:
            yield runs.measured("gla", seq * 3e-5, seq=seq)


def asv(folder, *words):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asv", words[0], "--config", "asv.conf.json", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=WITH_PLUGIN,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return done.stdout


def test_asv_compares_the_runs_of_two_commits(pages):
    folder, shas, machines = pages
    found = {}
    for line in asv(folder, "compare", "--machine", machines["runs"], *shas).splitlines():
        if (row := [part.strip() for part in line.split("|")[1:-1]]) and "(" in row[-1]:
            found[row[-1]] = tuple(row[:3])
    time = {v: found[f"attention.time('{v}', 256, 'forward')"] for v in VARIANTS}
    assert time["sdpa"] == ("+", "2.56±0ms", "5.12±0ms")  # a value a run
    assert (time["matmul"][0], time["matmul"][2]) == ("!", "failed")
    assert time["chunked?block=64"][0] == found[f"{OTHER}.time('gla', 256, 'forward')"][0] == ""
    assert time["lsh"][1:] == ("n/a", "n/a")
    assert "9.00±" in asv(folder, "compare", "--machine", machines["newer"], *shas)
