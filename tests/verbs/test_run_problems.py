"""``attnbench run --problems FILE``: what a captured program called, in place of a grid."""

import pytest

from attnbench import cli
from attnbench.core.store import read_header, read_records
from attnbench.models.capture.calls import SeenCalls, Site
from impls.masks import Mask
from impls.problem import Problem

A = Problem(
    batch=2,
    heads=4,
    kv_heads=2,
    q_len=24,
    kv_len=24,
    head_dim=16,
    v_head_dim=16,
    mask=Mask.parse("causal"),
    phase="train",
)
B = A.with_(q_len=1, kv_len=40, mask=Mask(), phase="decode", batch=1)
RUN = ["--budget", "0.02", "--no-report"]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sites = [Site(p, "model.py:5", "sdpa", 4, 1.0) for p in (A, B)]
    sites.append(Site(A.with_(batch=7), "a.py:1", "flex", 1, 9.0, faithful=False, note="capped"))
    SeenCalls(sites).write(tmp_path / "calls.json")
    return "calls.json"


def test_the_problems_of_a_program_are_measured_and_gone_on_with(file, tmp_path, capsys):
    assert cli.main(["run", "sdpa", "--problems", file, *RUN]) == 0
    (folder,) = (tmp_path / "results").glob("*/*")
    records = list(read_records(folder))
    assert [(r.variant, r.problem) for r in records] == [("sdpa", A), ("sdpa", B)]
    header = read_header(folder)
    assert [Problem.from_dict(p) for p in header["problems"]] == [A, B]
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text(lines[0])
    (tmp_path / "calls.json").unlink()  # the run knows by itself what it was to measure
    assert cli.main(["run", "--resume", str(folder), "--no-report"]) == 0
    assert "1 done before" in capsys.readouterr().err
    assert len(list(read_records(folder))) == 2


def test_a_grid_beside_problems_is_refused(file, capsys):
    words = ["--kv-heads", "2", "--preset", "cpu"]
    assert cli.main(["run", "sdpa", "--problems", file, *words, *RUN]) == 2
    assert "leave out --kv-heads, --preset" in capsys.readouterr().err


def test_a_file_without_problems_is_refused_with_the_reason(file, tmp_path, capsys):
    SeenCalls([Site(A, "a.py:1", "flex", 1, 9.0, faithful=False, note="it is capped")]).write(
        tmp_path / "none.json"
    )
    assert cli.main(["run", "sdpa", "--problems", "none.json", *RUN]) == 2
    assert "it is capped" in capsys.readouterr().err
    assert cli.main(["run", "sdpa", "--problems", "nothing.json", *RUN]) == 2
    assert "No such file" in capsys.readouterr().err
    SeenCalls([Site(A.with_(device="cuda"), "a.py:1", "sdpa", 1, 9.0)]).write(tmp_path / "gpu.json")
    assert cli.main(["run", "sdpa", "--problems", "gpu.json", *RUN]) == 2
    assert "device cuda is not here" in capsys.readouterr().err
    assert cli.main(["run", "--resume", "x", "--problems", file]) == 2
