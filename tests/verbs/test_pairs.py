"""``attnbench compare`` and ``crossover``: what is asked, what is said, how it ends."""

import json
import math
import os
import signal

import pytest

from attnbench.core.evidence import save_beside
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL
from tests.calling import well
from tests.times import pairs_answer

CROSSOVER = ("crossover", "matmul", "einsum")
SMALL = ("--seq", "64,1024", "--margin", "0.01")


def length(question):
    return question["compare"][0]["problem"]["kv_len"]


@pytest.fixture
def pairs(worker):
    """The second takes 300 tokens' time whatever the length, the first one as long as that."""

    def answer(question):
        n = length(question)
        margin = question["margin"] or 0.02
        return pairs_answer([math.log(300 / n)] * 40, margin, 1e-6 * n, 3e-4)

    worker.answer = answer
    return worker


def test_two_variants_are_compared_on_the_grid(pairs, tmp_path):
    words = ("--seq", "64,1024", "--budget", "2.5", "--json", "--out", tmp_path)
    done = well("compare", "mean_v", "matmul", *words)
    sent = json.loads(done.stdout)
    assert (sent["judged"], sent["against"]) == ("mean_v", "matmul")
    assert sent["counts"] == {"FASTER": 1, "SLOWER": 1}
    assert [c["problem"]["kv_len"] for c in sent["cells"]] == [64, 1024]
    assert "no noise floor is stored for this machine" in done.stderr
    assert "note: mean_v computes approximates softmax, matmul softmax: " in done.stderr
    assert {asked["budget_s"] for asked in pairs.asked} == {2.5}


KEPT = {"threads": this_machine().threads, "allocator": "kept"}


@pytest.mark.parametrize(
    ("changed", "allocator", "sent"),
    [
        ({}, "plain", [{"call_s": 0.001, "floor": 0.02}]),
        ({}, "kept", []),
        ({"protocol": PROTOCOL + 1}, "plain", []),
        ({"settings": {"threads": 99}}, "plain", []),
        ({"settings": KEPT}, "plain", []),
        ({"settings": KEPT}, "kept", [{"call_s": 0.001, "floor": 0.02}]),
    ],
)
def test_the_floors_of_this_machine_are_sent_along(pairs, tmp_path, changed, allocator, sent):
    machine = this_machine()
    noise = [{"call_s": 0.001, "floor": 0.02, "apart": 0.03, "trials": 8, "pairs": 80}]
    facts = {"protocol": PROTOCOL, "machine": machine.facts(), "noise": noise}
    facts["settings"] = {"threads": machine.threads}
    save_beside(tmp_path, machine.name, "env.json", {**facts, **changed})
    well("compare", "einsum", "matmul", "--allocator", allocator, "--out", tmp_path)
    assert pairs.asked[0]["floors"] == sent


def test_a_crossover_is_answered_and_each_look_is_said_as_it_ends(pairs, tmp_path):
    done = well(*CROSSOVER, *SMALL, "--out", tmp_path)
    assert len(pairs.asked) == 9 and " s, 4 min at the most" in done.stderr
    words = " ".join(done.stdout.split())
    assert "from 64 to 288 tokens matmul is faster; from 304 to 1,024 einsum is faster." in words
    assert "einsum overtakes matmul between 288 and 304 (360 pairs at 9 lengths)." in words
    rows = [line.split() for line in done.stdout.splitlines()]
    look = "288 matmul 0.288 0.300 1.042 [1.042, 1.042] 40 1 %"
    assert look.split() in rows


@pytest.mark.parametrize(("status", "code"), [("wrong", 1), ("out_of_memory", 0)])
def test_a_wrong_variant_is_a_finding_and_one_too_large_is_not(pairs, tmp_path, status, code):
    well_, stopped = pairs.answer, {"stopped": {"status": status, "why": "matmul: so it was"}}
    pairs.answer = lambda question: stopped if length(question) >= 512 else well_(question)
    out = " ".join(well(*CROSSOVER, *SMALL, "--out", tmp_path, status=code).stdout.split())
    assert "from 512 on they can't be compared" in out and "matmul: so it was" in out
    assert "einsum overtakes matmul between 288 and 304" in out
    compared = well("compare", "einsum", "matmul", "--seq", "512", "--out", tmp_path, status=code)
    assert status.replace("_", " ") in compared.stdout.replace("_", " ")


def test_ctrl_c_twice_ends_it_at_once_with_what_was_found(pairs, tmp_path):
    answer = pairs.answer

    def twice(question):
        for _ in range(2 * (length(question) == 256)):
            os.kill(os.getpid(), signal.SIGINT)
        return answer(question)

    pairs.answer = twice
    done = well(*CROSSOVER, *SMALL, "--json", "--out", tmp_path, status=130)
    assert [each["length"] for each in json.loads(done.stdout)["looks"]] == [64, 128]
