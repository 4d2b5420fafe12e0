"""A sentence as tokens and vectors; maps of a run: who is asked, for how long, and what fails."""

import json
import math

import pytest

import impls
from attnbench.answer import maps
from attnbench.answer.maps import WIDTH, BadEmbeddings, tokens_of, vectors_of
from attnbench.sweep.engine import WorkerLost
from impls.spec import Variant
from tests.answer.build import timed, untimed

MANY = 11
MAP = {"map": [[1 / 3] * MANY] * MANY}


class Engine:
    """Answers as it was told to, by variant; moves the clock on by what an answer takes."""

    def __init__(self, clock, **told):
        self.clock, self.told, self.asked, self.limits = clock, told, [], []

    def ask(self, question, limit_s):
        name = question["map"]["variant"]["name"]
        self.asked.append((name, question["map"]["problem"]["mask"]))
        self.limits.append(limit_s)
        taken, answer = self.told.get(name.replace(".", "_"), (1.0, MAP))
        self.clock[0] += min(taken, limit_s)
        if taken > limit_s:
            late = f"it was still running after {limit_s:.0f} s"
            raise WorkerLost(late, "/secret", timed_out=True)
        return answer


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(maps, "monotonic", lambda: now[0])
    return now


def ask(clock, names, **told):
    engine = Engine(clock, **told)
    return maps.maps(names, impls.table(), engine), engine


def test_what_must_be_compiled_is_not_asked_and_says_so(clock):
    found, engine = ask(clock, {"compiled": "softmax", "sdpa": "softmax", **OTHER})
    assert [name for name, _ in engine.asked] == ["sdpa", "linear.elu", "performer"]
    (failed,) = found["failed"]
    assert failed["variant"] == "compiled" and "compiled for this sentence" in failed["reason"]


EXACT = dict.fromkeys(["matmul", "sdpa", "einsum"], "softmax")
OTHER = {"linear.elu": "its own operator", "performer": "approximates softmax"}


def test_one_of_those_that_are_exact_is_asked_and_stands_for_all(clock, monkeypatch):
    weights = {"map": [[None, 1 / 3] + [0] * 9] * MANY}
    found, engine = ask(clock, {**OTHER, **EXACT}, matmul=(1, weights))
    assert engine.asked == [(name, "causal") for name in ("matmul", "linear.elu", "performer")]
    assert [(m["variant"], m["computes"], m["alike"], m["mask"]) for m in found["maps"]] == [
        ("matmul", "softmax", ["sdpa", "einsum"], "causal"),
        ("linear.elu", "its own operator", [], "causal"),
        ("performer", "approximates softmax", [], "causal"),
    ]
    assert found["maps"][0]["weights"][0][:3] == [None, 0.3333, 0]
    assert found["words"][:3] == ["i", "must", "go"] and len(found["words"]) == MANY
    assert found["failed"] == []
    on = Variant.on
    monkeypatch.setattr(
        Variant, "on", lambda row, at, what: ("none",) if what == "masks" else on(row, at, what)
    )
    assert ask(clock, {"matmul": "softmax"})[1].asked == [("matmul", "none")]


def test_the_time_for_one_and_for_all_is_limited(clock):
    found, _ = ask(clock, {"linear.elu": "its own operator"}, linear_elu=(60, None))
    late = {"variant": "linear.elu", "reason": "it was still running after 4 s"}
    assert (found["maps"], found["failed"]) == ([], [late])  # without the worker's last words
    clock[0] = 100.0
    names = ["linear.elu", "linear.identity", "cosformer", "hedgehog", "cosine", "retention", "gla"]
    slow = {name.replace(".", "_"): (3.9, MAP) for name in names}
    found, engine = ask(clock, dict.fromkeys(names, "its own operator"), **slow)
    assert clock[0] <= 100 + maps.ALL_S and len(found["maps"]) == 5
    assert engine.limits[-1] < maps.EACH_S
    assert found["failed"][-1]["reason"] == "the 20 s for all maps were over"


@pytest.mark.parametrize("weights", [[[1.0] * MANY] * (MANY - 1), [[math.nan] * MANY] * MANY])
def test_what_is_no_map_of_all_words_is_refused(clock, weights):
    names = {"matmul": "softmax", "nobody": "softmax", "mha": "softmax"}
    found, engine = ask(clock, names, matmul=(1, {"map": weights}))
    reasons = [failed["reason"] for failed in found["failed"]]
    assert reasons[0] == "it gave no weight for each pair of words"
    assert "nobody" in reasons[1]  # in no table, or of tokens
    assert reasons[2].startswith("no map can be drawn here: ")
    assert [name for name, _ in engine.asked] == ["matmul"]


def keep(folder, *records):
    said = []
    maps.keep(folder, records, [], said.append)
    return said


@pytest.mark.slow
def test_a_worker_gives_the_maps_that_the_mathematics_gives(tmp_path):
    other = timed("mean_v", 128, 1.0, computes="approximates softmax")
    assert keep(tmp_path, timed("matmul", 128, 1.0), other) == []
    exact, mean = json.loads((tmp_path / "maps.json").read_text())["maps"]
    assert [sum(row) for row in exact["weights"]] == pytest.approx([1.0] * MANY, abs=1e-3)
    assert mean["weights"][3][:5] == [0.25, 0.25, 0.25, 0.25, 0.0]
    assert keep(tmp_path / "gone", untimed("sdpa", 128)) == []
    (said,) = keep(tmp_path / "gone", timed("matmul", 128, 1.0))
    assert said.startswith("no attention maps were kept: ") and "No such file" in said


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_words_and_marks_in_small_letters():
    for text, found in (
        ("The cat sat.", ["the", "cat", "sat", "."]),
        ("Don't, don\u2019t", ["don't", ",", "don\u2019t"]),
    ):
        assert tokens_of(text) == found
        with pytest.raises(BadEmbeddings, match="there is no word in"):
            tokens_of(" \n")


def test_hashed_vectors_of_words_that_look_alike_lie_near():
    first = vectors_of(["the", "cat", "the", "\N{SNOWMAN}", "0"], None)
    assert {len(v) for v in first} == {WIDTH} and all(math.isfinite(x) for v in first for x in v)
    assert first[0] == first[2] != first[1] == vectors_of(["cat"], None)[0]
    for one, alike in (("running", "runner"), ("national", "nation"), ("teacher", "teaching")):
        a, b, far = vectors_of([one, alike, "mud"], None)
        assert cosine(a, b) > cosine(a, far) + 0.1


def test_vectors_are_read_for_the_words_and_a_file_that_lacks_one_says_so(tmp_path):
    file = tmp_path / "glove"
    file.write_text("cat 1 2 3\nthe 4 5 6.5\nsat -7 8e-1 9\n")
    assert vectors_of(["the", "cat", "the"], str(file)) == [[4, 5, 6.5], [1, 2, 3], [4, 5, 6.5]]
    for text, words in (
        (b"the 1 2 3\ncat 1 2\n", ["line 2", "2 numbers", "3"]),
        (b"the 1 2\ncat 1 x\n", ["'x'"]),
        (b"the 1 2\n", ["no vector for cat", "leave --embeddings out"]),
        (b"the 1 2\n\xff\xfe 1 2\ncat 1 2\n", ["not UTF-8"]),
    ):
        file.write_bytes(text)
        with pytest.raises(BadEmbeddings) as caught:
            vectors_of(["the", "cat", "the"], str(file))
        said = str(caught.value)
        assert str(file) in said and said.count("cat") <= 1
        assert [word for word in words if word not in said] == []
