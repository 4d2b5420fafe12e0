"""The trained model itself: exact variants agree with it, wrong ones don't, its layers are read."""

import importlib.util
import json
import os

import pytest

from attnbench import cli
from attnbench.features.quality import pretrained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _installed():
    if importlib.util.find_spec(pretrained.PACKAGE) is None:
        assert "CI" not in os.environ, f"{pretrained.DISTRIBUTION} is not installed"
        pytest.skip(pretrained.WEIGHTS)


def test_a_whole_call_compares_approximations_and_finds_a_planted_wrong_head(tmp_path, capsys):
    rows = tmp_path / "rows.py"
    rows.write_text(
        "from impls.spec import Variant\n"
        "from tests.models.quality.made_up import last_head\n"
        "ROWS = [Variant(name='wrong', title='w', family='mine', operator='softmax',\n"
        "                build=':last_head', masks=('none',))]\n"
    )
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(pretrained.built_in_texts()[:8]))
    words = f"wrong topk mean_v --json --seq 32 --budget 0.1 --table {rows}".split()
    words += ["--texts", str(texts), "--out", str(tmp_path / "out")]
    assert cli.main(["quality", "model", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    rows_by = {row["variant"]: row for row in found["rows"]}
    assert rows_by["wrong"]["status"] == "wrong" and not rows_by["wrong"]["steps"]
    (group,) = found["results"]
    scores = {r["variant"]: r["scores"].get("cosine", {}).get("value") for r in group["results"]}
    assert scores["topk"] > scores["mean_v"] and scores["no attention at all"] is None


def test_real_inputs_are_judged_by_the_gate_beside_made_up_ones(tmp_path, capsys):
    words = f"quality real mean_v topk retention --json --seq 32 --batch 1 --out {tmp_path}".split()
    assert cli.main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    sources = {row["source"] for row in rows}
    assert sources == {"normal", "peaky", "outliers", *(f"layer {n}" for n in range(6))}
    for row in rows:
        if row["variant"] == "mean_v":
            assert abs(row["skill"]) < 1e-5
        if row["variant"] == "retention":
            assert row["status"] == "refused"
    topk = {row["source"]: row["skill"] for row in rows if row["variant"] == "topk"}
    assert topk["peaky"] > 0.9
