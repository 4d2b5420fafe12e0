"""Maps of a run: who is asked, for how long, and that nothing that goes wrong costs the run."""

import json
from pathlib import Path

import pytest

import impls
from attnbench.features.show import maps
from attnbench.sweep.engine import WorkerLost
from impls.loading import load_file
from impls.spec import Variant

made = load_file(Path(__file__).with_name("lines.py"))
MANY = 11


class Engine:
    """Answers as it was told to, by variant; moves the clock on by what an answer takes."""

    def __init__(self, clock, **told):
        self.clock, self.told, self.asked, self.limits = clock, told, [], []

    def ask(self, question, limit_s):
        name = question["map"]["variant"]["name"]
        self.asked.append((name, question["map"]["problem"]["mask"]))
        self.limits.append(limit_s)
        taken, answer = self.told.get(name.replace(".", "_"), (1.0, None))
        self.clock[0] += min(taken, limit_s)
        if taken > limit_s:
            raise WorkerLost(
                f"it was still running after {limit_s:.0f} s", "/secret", timed_out=True
            )
        return {"map": [[1 / 3] * MANY] * MANY} if answer is None else answer


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(maps, "monotonic", lambda: now[0])
    return now


def ask(clock, timed, **told):
    engine = Engine(clock, **told)
    return maps.maps(timed, impls.table(), engine), engine


EXACT = dict.fromkeys(["matmul", "sdpa", "einsum"], "softmax")
OTHER = {"linear.elu": "its own operator", "performer": "approximates softmax"}


def test_one_of_those_that_are_exact_is_asked_and_stands_for_all(clock):
    found, engine = ask(clock, {**OTHER, **EXACT})
    assert [name for name, _ in engine.asked] == ["matmul", "linear.elu", "performer"]
    assert [(m["variant"], m["computes"], m["alike"]) for m in found["maps"]] == [
        ("matmul", "softmax", ["sdpa", "einsum"]),
        ("linear.elu", "its own operator", []),
        ("performer", "approximates softmax", []),
    ]
    assert found["words"][:3] == ["i", "must", "go"] and len(found["words"]) == MANY
    assert found["failed"] == []


def test_weights_are_rounded(clock):
    found, _ = ask(
        clock, {"matmul": "softmax"}, matmul=(1, {"map": [[None, 1 / 3] + [0] * 9] * MANY})
    )
    assert found["maps"][0]["weights"][0][:3] == [None, 0.3333, 0]


def test_the_mask_is_causal_where_it_takes_one(clock):
    found, engine = ask(clock, {"matmul": "softmax"})
    assert found["maps"][0]["mask"] == "causal"
    assert engine.asked == [("matmul", "causal")]


def test_where_it_takes_no_causal_mask_there_is_none(clock, monkeypatch):
    on = Variant.on
    monkeypatch.setattr(
        Variant,
        "on",
        lambda row, device, what: ("none",) if what == "masks" else on(row, device, what),
    )
    found, engine = ask(clock, {"matmul": "softmax"})
    assert found["maps"][0]["mask"] == "none"
    assert engine.asked == [("matmul", "none")]


def test_the_next_exact_one_is_asked_where_the_first_has_none(clock):
    found, engine = ask(clock, EXACT, matmul=(1, {"error": "matmul raised ValueError: no"}))
    assert [name for name, _ in engine.asked] == ["matmul", "sdpa"]
    assert (found["maps"][0]["variant"], found["maps"][0]["alike"]) == ("sdpa", ["einsum"])
    assert found["failed"] == [{"variant": "matmul", "reason": "matmul raised ValueError: no"}]


def test_who_takes_too_long_is_left_out_and_the_worker_s_last_words_are_not_kept(clock):
    found, _ = ask(clock, {"linear.elu": "its own operator"}, linear_elu=(60, None))
    assert found["maps"] == []
    assert found["failed"] == [
        {"variant": "linear.elu", "reason": "it was still running after 4 s"}
    ]


def test_the_time_for_all_is_limited(clock):
    names = ["linear.elu", "linear.identity", "cosformer", "hedgehog", "cosine", "retention", "gla"]
    slow = {name.replace(".", "_"): (3.9, None) for name in names}
    found, engine = ask(clock, dict.fromkeys(names, "its own operator"), **slow)
    assert clock[0] <= 100 + maps.ALL_S
    assert len(found["maps"]) == 5
    assert engine.limits[-1] < maps.EACH_S
    assert found["failed"][-1]["reason"] == "the 20 s for all maps were over"


@pytest.mark.parametrize(
    "weights", [[], [[1.0]], [[1.0] * MANY] * (MANY - 1), [[1.0] * (MANY + 1)] * MANY]
)
def test_what_is_no_map_of_all_words_is_refused(clock, weights):
    found, _ = ask(clock, {"matmul": "softmax"}, matmul=(1, {"map": weights}))
    assert found["failed"][0]["reason"] == "it gave no weight for each pair of words"


def test_who_is_in_no_table_or_takes_tokens_has_a_reason(clock):
    found, engine = ask(clock, {"nobody": "softmax", "mha": "softmax"})
    assert engine.asked == []
    assert "nobody" in found["failed"][0]["reason"]
    assert found["failed"][1]["reason"].startswith("no map can be drawn here: ")


@pytest.fixture
def no_worker(monkeypatch):
    """An engine that starts nothing, and what becomes of asking it."""

    def will(answer):
        class Fake:
            def __init__(self, settings):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def ask(self, question, limit_s):
                if isinstance(answer, Exception):
                    raise answer
                return answer

        monkeypatch.setattr(maps, "LocalEngine", Fake)

    return will


def keep(folder, *records):
    said = []
    maps.keep(folder, records, [], said.append)
    return said


def test_they_are_kept_beside_the_records(tmp_path, no_worker):
    no_worker({"map": [[0.5] * MANY] * MANY})
    assert keep(tmp_path, made.timed("matmul", 128, 1.0), made.untimed("sdpa", 128)) == []
    kept = json.loads((tmp_path / "maps.json").read_text())
    assert [(m["variant"], m["alike"]) for m in kept["maps"]] == [("matmul", [])]
    assert (kept["schema"], kept["sentence"]) == (1, "I must go back to my ship and to my crew")


def test_where_nothing_has_a_time_nobody_is_asked(tmp_path, no_worker):
    no_worker(AssertionError("asked"))
    assert keep(tmp_path, made.untimed("sdpa", 128)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "weights", [None, 3, [["x"] * MANY] * MANY, [[float("nan")] * MANY] * MANY]
)
def test_an_answer_that_is_no_map_costs_nothing(tmp_path, no_worker, weights):
    no_worker({"map": weights})
    assert keep(tmp_path, made.timed("matmul", 128, 1.0)) == []
    kept = json.loads((tmp_path / "maps.json").read_text())
    assert kept["failed"][0]["reason"] == "it gave no weight for each pair of words"


def test_what_goes_wrong_is_a_sentence(tmp_path, no_worker):
    no_worker({"map": [[0.5] * MANY] * MANY})
    (said,) = keep(tmp_path / "gone", made.timed("matmul", 128, 1.0))
    assert said.startswith("no attention maps were kept: ") and "No such file" in said


@pytest.mark.slow
def test_a_worker_gives_the_maps_that_the_mathematics_gives(tmp_path):
    other = made.timed("mean_v", 128, 1.0, computes="approximates softmax")
    assert keep(tmp_path, made.timed("matmul", 128, 1.0), other) == []
    exact, mean = json.loads((tmp_path / "maps.json").read_text())["maps"]
    assert [sum(row) for row in exact["weights"]] == pytest.approx([1.0] * MANY, abs=1e-3)
    assert mean["weights"][3][:5] == [0.25, 0.25, 0.25, 0.25, 0.0]
