"""``quality lm`` as its users call it, on the model in the repository."""

import io
import json
import tempfile
from contextlib import redirect_stdout
from itertools import permutations

import pytest

from attnbench import cli
from attnbench.features.quality import causal
from tests.models.quality.test_lm import ROWS

pytestmark = pytest.mark.slow
NAMES = ("topk", "linear.elu", "dilated")


@pytest.fixture(scope="module")
def quality(tmp_path_factory):
    """The exit status and the data of a call."""
    folder = tmp_path_factory.mktemp("quality")
    (folder / "rows.py").write_text(ROWS)
    common = ["--table", folder / "rows.py", "--threads", 1, "--json"]

    def call(*words):
        out = tempfile.mkdtemp(dir=folder)
        with redirect_stdout(io.StringIO()) as printed:
            status = cli.main(["quality", "lm", *map(str, [*words, *common, "--out", out])])
        return status, json.loads(printed.getvalue())

    return call


@pytest.fixture(scope="module")
def runs(quality):
    """By seed, the results of a call on passages of its own."""
    made = []
    for seed in range(6):
        status, found = quality(*NAMES, "again", "--model", "small", "--seed", seed)
        assert status == 0
        made.append(results(found))
    return made


def results(found):
    """By variant, of the passages of the first length."""
    return {result["variant"]: result for result in found["results"][0]["results"]}


def test_a_lie_among_others_is_found_and_the_others_are_measured(quality):
    status, found = quality("sdpa", "peeks", "leaves", "prompt", "topk", "--model", "small")
    by_name = {row["variant"]: row["status"] for row in found["rows"]}
    lies = dict.fromkeys(("peeks", "leaves", "prompt"), "wrong")
    assert status == 1 and by_name == {"sdpa": "measured", "topk": "measured", **lies}


def test_a_variant_against_itself_is_never_told_apart(runs):
    """By what it predicts, and by what it takes."""
    for both in runs:
        assert both["linear.elu"]["more"]["rank"] == both["again"]["more"]["rank"]
        step, other = (both[name]["step"] for name in ("linear.elu", "again"))
        assert step["low"] <= other["high"] and other["low"] <= step["high"]


def test_other_passages_give_figures_within_the_intervals_nine_times_of_ten(runs):
    held = [
        first[name]["scores"]["likelihood"]["low"]
        <= other[name]["scores"]["likelihood"]["value"]
        <= first[name]["scores"]["likelihood"]["high"]
        for first, other in permutations(runs, 2)
        for name in NAMES
    ]
    assert sum(held) >= 0.9 * len(held), held


def test_smollm2_finds_needles_and_chunked_is_exact_in_it(quality):
    if causal.missing_package() is not None:
        pytest.skip(causal.INSTALL)
    status, found = quality("chunked", "--model", "smollm2", "--passages", 3)
    by_name = results(found)
    assert status == 0 and 20 < by_name["the original"]["more"]["perplexity"] < 60
    needles = {result["variant"]: result["scores"] for result in found["results"][1]["results"]}
    assert needles["the original"]["found"]["value"] > 0.6
    assert needles["chunked"] == needles["the original"]
