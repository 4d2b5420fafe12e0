"""Exported runs in asv's own hands: its comparison, its pages, and the server that shows them."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from itertools import product
from pathlib import Path

import pytest

import attnbench
from attnbench.features.commits import asv as index
from attnbench.features.commits import suite
from attnbench.features.commits.export import export
from impls.loading import load_file

pytestmark = pytest.mark.slow
runs = load_file(Path(__file__).with_name("runs.py"))
ROOT = Path(attnbench.__file__).parents[1]
WITH_PLUGIN = {**os.environ, "PYTHONPATH": str(ROOT)}
VARIANTS = ("matmul", "sdpa", "gla", "chunked?block=64", "lsh")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two commits, a run of each: sdpa became slower, matmul wrong, chunked stayed."""
    folder = tmp_path_factory.mktemp("pages")
    shas = runs.repository(folder / "repo")
    for i, sha in enumerate(shas):
        runs.run(folder / "runs" / str(i), sha, list(records(i)))
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
    export([folder / "runs"], folder / "asv", root=folder / "repo")
    return folder, shas


def records(i):
    for seq in (128, 256, 512):
        yield runs.measured("sdpa", (1.0 + i) * seq * 1e-5, seq=seq)
        yield runs.ended("wrong", "matmul", seq=seq) if i else runs.measured("matmul", seq=seq)
        yield runs.measured("chunked?block=64", seq * 2e-5, seq=seq)
        yield runs.ended("unsupported", "lsh", seq=seq)
        wide = runs.measured("gla", seq * 3e-5, seq=seq)
        yield runs.measured("gla", seq * 3e-5, seq=seq, heads=8, kv_heads=8)
        if i:
            yield wide


def asv(folder, *words, status=0):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asv", words[0], "--config", "asv.conf.json", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=WITH_PLUGIN,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return done.stdout


def marks(table):
    """What asv says changed: its mark, by benchmark and parameters."""
    found = {}
    for line in table.splitlines():
        if (row := [part.strip() for part in line.split("|")[1:-1]]) and "(" in row[-1]:
            found[row[-1]] = row[0], row[1], row[2]
    return found


def test_asv_compares_the_runs_of_two_commits(pages):
    folder, shas = pages
    found = marks(asv(folder, "compare", *shas))
    slower, wrong = (found[f"attention.time({v}, 256, 'forward')"] for v in ("'sdpa'", "'matmul'"))
    assert slower[0] == "+"
    assert slower[1:] == ("2.56±0ms", "5.12±0ms")  # a value a run
    assert wrong[0] == "!"
    assert wrong[2] == "failed"
    assert found["attention.time('chunked?block=64', 256, 'forward')"][0] == ""
    assert found["attention.time('lsh', 256, 'forward')"][1:] == ("n/a", "n/a")
    assert found["attention.memory('matmul', 256, 'forward')"][2] == "failed"
    assert found["attention.memory('sdpa', 256, 'forward')"][1] == "1.05M"
    assert found["b1-h8-d64-f32-causal.time('gla', 256, 'forward')"][0] == ""


def test_asv_makes_pages_of_them_with_length_as_an_axis_and_facets(pages):
    folder, shas = pages
    asv(folder, "publish")
    said = json.loads((folder / "html" / "index.json").read_text())
    for name in ("gpu", "driver", "cuda", "torch", "cpu", "ram", "machine", "python"):
        assert len(said["params"][name]) == 1, name
    time = said["benchmarks"]["attention.time"]
    assert time["unit"] == "seconds"
    assert dict(zip(time["param_names"], time["params"], strict=True)) == {
        "variant": [repr(v) for v in VARIANTS],
        "seq": ["128", "256", "512"],
        "phase": ["'forward'"],
    }
    assert said["benchmarks"]["attention.memory"]["unit"] == "bytes"
    assert set(said["benchmarks"]) == {
        f"{group}.{figure}"
        for group in ("attention", "b1-h8-d64-f32-causal")
        for figure in ("time", "memory", "error")
    }
    (graph,) = [
        f
        for f in (folder / "html" / "graphs").rglob("attention.time.json")
        if "summary" not in f.parts
    ]
    points = json.loads(graph.read_text())
    assert [said["revision_to_hash"][str(at)] for at, _ in points] == shas
    table = [dict(zip(product(*time["params"]), values, strict=True)) for _, values in points]
    sdpa, matmul = ((v, "256", "'forward'") for v in ("'sdpa'", "'matmul'"))
    assert [round(each[sdpa], 6) for each in table] == [0.00256, 0.00512]
    assert table[0][matmul] is not None
    assert table[1][matmul] is None


def test_what_asv_run_does_not_list_is_published_all_the_same(pages):
    folder, _ = pages
    listed = folder / "asv" / index.FILE
    before = listed.read_text()
    listed.write_text(json.dumps({**suite.benchmarks(), "version": index.INDEX_FORM}))
    asv(folder, "publish")
    said = json.loads((folder / "html" / "index.json").read_text())["benchmarks"]
    assert {"'lsh'", "'chunked?block=64'"} <= set(said["attention.time"]["params"][0])
    assert "b1-h8-d64-f32-causal.time" in said
    listed.write_text(before)


def test_asv_shows_the_pages(pages):
    folder, _ = pages
    asv(folder, "publish")
    server = subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "asv", "preview", "--config", "asv.conf.json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=WITH_PLUGIN,
    )
    try:
        line = next(line for line in server.stdout if "Serving at" in line)
        where = re.search(r"http://\S+/", line)[0]
        with urllib.request.urlopen(f"{where}index.json", timeout=30) as page:
            assert json.load(page)["project"] == "a project"
    finally:
        server.terminate()
        server.wait(timeout=30)
        server.stdout.close()


def test_runs_of_two_machines_are_compared_apart_and_shown_together(pages, tmp_path):
    folder, shas = pages
    newer = {**runs.BOX, "versions": {"torch": "2.14.0"}}
    ran = [
        runs.run(tmp_path / str(i), sha, [runs.measured(median=0.009)], machine=newer)
        for i, sha in enumerate(shas)
    ]
    files = export(ran, folder / "asv", root=folder / "repo")
    try:
        name = files[0].parent.name
        assert "9.00±" in asv(folder, "compare", "--machine", name, *shas)
        asv(folder, "publish")
        said = json.loads((folder / "html" / "index.json").read_text())
        assert said["params"]["torch"] == ["2.13.0+cpu", "2.14.0"]
        assert len(said["machines"]) == 2
    finally:
        for file in files:
            file.unlink()
        (files[0].parent / "machine.json").unlink()
