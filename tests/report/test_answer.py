"""The project's own answer says what the committed figures say, and nothing that they don't."""

import json
import math
import re
import statistics
from collections import defaultdict

import pytest

from proofs import answer

PAGE = answer.PAGE.read_text()


def evidence(kind):
    (*_, newest) = sorted((answer.MACHINE / "evidence").glob(f"*-{kind}.json"))
    return json.loads(newest.read_text())


def table(heading):
    """The cells of the first table below a heading, by the word that its rows begin with."""
    (*_, below) = PAGE.split(f"\n{heading}\n")
    rows = re.findall(r"^\| `?([^`|]+?)`? \|(.*)\|$", below.split("\n#")[0], flags=re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


def number(cell):
    return float(re.search(r"-?\d[\d.,]*", cell).group().replace(",", ""))


@pytest.mark.slow
def test_the_page_is_made_of_what_is_committed_to_the_last_byte():
    assert answer.made() == PAGE


@pytest.mark.parametrize(
    ("heading", "phase"), [("### Forward", "forward"), ("### Forward and backward", "train")]
)
def test_speeds_are_ratios_of_the_runs_own_medians(heading, phase):
    exact, others = defaultdict(lambda: math.inf), {}
    for line in (answer.MACHINE / answer.RUN / "records.jsonl").read_text().splitlines():
        r = json.loads(line)
        if r.get("time") and (r["problem"]["phase"], r["problem"]["mask"]) == (phase, "none"):
            length, took = r["problem"]["kv_len"], r["time"]["median_s"]
            if r["computes"] == "softmax":
                exact[length] = min(exact[length], took)
            else:
                others[r["variant"], length] = took
    found = table(heading)
    assert {name for name, _ in others} == found.keys() - {"variant", "---"}
    for (name, length), took in others.items():
        if (place := sorted(exact).index(length) + 1) < len(found[name]):
            ratio = exact[length] / took
            assert number(found[name][place]) == pytest.approx(ratio, rel=0.05, abs=0.006)


def test_recall_is_the_mean_of_the_seeds_last_looks():
    rows, found = evidence("recall")["rows"], table("## Trained from scratch, on a task of recall")
    for name in {row["variant"] for row in rows}:
        last = [
            look["accuracy"]["32"]
            for row in rows
            if row["variant"] == name
            for look in row["curve"]
            if look["step"] == row["setting"]["steps"]
        ]
        assert number(found[name][1]) == pytest.approx(100 * statistics.fmean(last), abs=0.05)


@pytest.mark.slow
def test_a_sentence_that_the_figures_do_not_bear_out_is_named(monkeypatch):
    monkeypatch.setattr(answer, "HALF", 0.01)  # of softmax, where operators keep up to 0.47
    with pytest.raises(answer.NotSoAnyMore, match=r"linear\.elu .* model ends below half"):
        answer.made()
