"""``--model``: a published model's kinds of layer, measured and weighed by their number."""

import csv
import io
import json

import pytest

import attnbench
from attnbench.features.report import page
from tests.calling import measured_here, only_run, well

MODEL = ("--model", "Qwen3-Next-80B-A3B", "--seq", "32", "--device", "cpu")
RUN = ("sdpa", "matmul", "gated_delta", "--phase", "forward", "--budget", "0.01", "--threads", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run's folder, and what was printed."""
    out = tmp_path_factory.mktemp("results")
    with measured_here():
        said = well("run", *RUN, *MODEL, "--no-report", "--out", out)
    return only_run(out), said


@pytest.mark.slow
def test_a_run_of_a_model_ends_with_an_answer_for_each_kind_of_layer(run):
    _, said = run
    words = " ".join(said.stdout.split())  # however wide the lines are
    scaled = "scaled to a CPU: 12 of 32 heads (linear), 8 of 16 heads (full), in float32"
    assert f"qwen3-next-80b-a3b, {scaled} linear: 36 of 48 attention layers" in words
    assert scaled in said.stderr
    linear, full = "gated_delta · h12/6 d128 f32 causal", "softmax · h8/1 d256 f32 causal"
    answer = "forward, 32 tokens: use "
    assert f"linear: 36 of 48 attention layers · {linear} {answer}gated_delta, " in words
    assert f"full: 12 of 48 attention layers · {full} {answer}" in words
    assert words.count("forward, 32 tokens: all 48 layers take ") == 1


@pytest.mark.slow
def test_its_page_has_a_table_for_each_kind_and_its_rows_name_theirs(run, tmp_path):
    folder, _ = run
    report = page.make([folder], tmp_path)
    html, summary = (
        (tmp_path / name).read_text().replace("\\", "") for name in ("index.html", "summary.md")
    )
    section = html[html.index('<section id="layers"') :].partition("</section>")[0]
    title = "qwen3-next-80b-a3b, scaled to a CPU"
    for text in (section, summary):
        assert title in text and "forward, 32 tokens: all 48 layers take" in text
    kinds = ("linear: 36 of 48 attention layers · gated_delta", "full: 12 of 48 attention layers")
    assert section.count("<table") == len(kinds) and 'href="#layers"' in html
    assert all(kind.lower() in section.lower() and kind in summary for kind in kinds)
    rows = csv.DictReader(io.StringIO((tmp_path / "data.csv").read_text()))
    used = {(row["kind"], row["variant"]) for row in rows if row["ms"]}
    softmax = {("full", "sdpa"), ("full", "matmul")}
    assert used == {("linear", "gated_delta"), *softmax} and report.contents.runs[0].layers


def test_choose_answers_for_each_kind_and_weighs_them_by_how_many_there_are(run):
    folder, _ = run
    chosen = ("choose", *MODEL, "--from", folder)
    data = json.loads(well(*chosen, "--json").stdout)
    linear, full = data["layers"]
    assert (linear["kind"], linear["layers"], full["layers"]) == ("linear", 36, 12)
    assert linear["winner"]["variant"] == "gated_delta" and linear["equal"] == []
    assert linear["winner"]["error"] < 1e-3  # to the gated delta rule, not to softmax
    softmax = {
        c["variant"]: c["median_s"] for c in [full["winner"], *full["equal"], *full["slower"]]
    }
    softmax |= {full["next"]["variant"]: full["next"]["median_s"]} if full["next"] else {}
    assert softmax.keys() == {"sdpa", "matmul"}
    (total,) = data["together"]
    for name, seconds in {"best": full["winner"]["median_s"], **softmax}.items():
        whole = 36 * linear["winner"]["median_s"] + 12 * seconds
        assert total["takes"][name]["seconds"] == pytest.approx(whole)
    printed = well(*chosen).stdout
    assert 'attend = attnbench.attention("gated_delta")' in printed
    assert 'out = attend(q, k, v, mask="causal", g=g, beta=beta)' in printed
    rows = list(csv.DictReader(io.StringIO(well(*chosen, "--csv").stdout)))
    used = {row["kind"]: row["variant"] for row in rows if row["verdict"] == "use"}
    assert used == {"linear": "gated_delta", "full": full["winner"]["variant"]}
    engine = json.loads(well(*chosen, "--json", "--for", "transformers").stdout)["engine"]
    assert engine["takes"] in softmax  # of the layers of softmax alone


@pytest.mark.slow
def test_from_python_a_model_gives_a_row_a_kind_and_variant(run):
    folder, _ = run
    asked = {"model": "qwen3-next-80b-a3b", "device": "cpu", "runs": folder, "quiet": True}
    table = attnbench.choose(32, **asked)
    used = table[table["verdict"] == "use"].set_index("kind")
    assert used["layers"].to_dict() == {"linear": 36, "full": 12}
    assert used.loc["linear", "variant"] == "gated_delta"


@pytest.mark.slow
def test_a_kind_that_was_not_measured_has_no_answer_and_there_is_no_total(run):
    folder, _ = run
    asked = ("choose", "--model", "qwen3-8b", *MODEL[2:], "--from", folder, "--json")
    data = json.loads(well(*asked, status=1).stdout)
    assert [each["winner"] for each in data["layers"]] == [None] and data["together"] == []


def test_list_says_where_each_model_was_read():
    data = json.loads(well("list", "--models", "--json").stdout)
    assert len(data) == 15 and all(model["source"] and model["config"] for model in data)
    text = well("list", "--models").stdout
    assert all(model["name"] in text for model in data) and "EchoCog/gpt-oss-20b" in text
    rows = list(csv.DictReader(io.StringIO(well("list", "--models", "--csv").stdout)))
    assert len(rows) == sum(len(model["kinds"]) for model in data)
    (sinks,) = [row for row in rows if row["model"] == "gpt-oss-20b" and row["kind"] == "full"]
    assert (sinks["heads"], sinks["kv_heads"], sinks["sinks"]) == ("64", "8", "True")
