"""The sentences say what the profiles say, about the slower of the two, and nothing more."""

import pytest

from attnbench.features.profile.why_slower import profiled_seconds, why_slower

MIB = 2**20


def operator(name, seconds):
    of = {"share": 0.0, "calls": 1, "flops": None, "flop_rate": None}
    return {"name": f"aten::{name}", "self_s": seconds, **of}


def profile(name, operators, *, peak=8, largest=2, count=1):
    total = sum(x["self_s"] for x in operators)
    phase = {"name": "forward", "of": "operators", "profiled_s": total, "outside_s": 0.0}
    size = {"bytes": largest * MIB, "count": count}
    return {
        "variant": name,
        "computes": "softmax",
        "plain": {"total_s": total, "forward_s": total, "backward_s": None},
        "phases": [{**phase, "operators": operators}],
        "memory": {"peak_bytes": peak * MIB, "scores_bytes": 32 * MIB, "largest": size},
        "problem": {"phase": "forward"},
        "cost": {"flops": 2 * 10**9},
    }


@pytest.fixture
def dense():
    ran = [
        operator("bmm", 0.06),
        operator("_softmax", 0.03),
        operator("copy_", 0.01),
    ]
    return profile("dense", ran, peak=136, largest=32, count=3)


@pytest.fixture
def fused():
    return profile("fused", [operator("flash", 0.024), operator("copy_", 0.001)])


def test_it_is_about_the_slower_whichever_is_named_first(dense, fused):
    assert why_slower(dense, fused) == why_slower(fused, dense)
    first, second, *_ = why_slower(dense, fused)
    text = " ".join(why_slower(dense, fused))
    assert "dense takes 4.00× as long as fused: 100 ms a call against 25 ms" in first
    assert "its peak is 136 MiB against 8 MiB (17.0×)" in first
    assert second.startswith("90\u00a0% of its time goes to operators that fused hardly runs")
    assert "bmm 60\u00a0%, _softmax 30\u00a0%" in second
    assert "fused spends 96\u00a0% in its own (flash 96\u00a0%)" in second
    assert "It allocates 32 MiB at once, the size of all scores, 3 times" in text
    assert "and fused never more than 2 MiB" in text
    assert not [word for word in ("copy_", "mathematics", "Beware", "asks for") if word in text]


def test_what_both_run_is_compared_where_that_is_the_difference():
    mine = [operator("bmm", 0.09), operator("copy_", 0.01), operator("add", 0.005)]
    theirs = [operator("bmm", 0.03), operator("copy_", 0.01), operator("add", 0.01)]
    text = " ".join(why_slower(profile("slow", mine), profile("fast", theirs)))
    assert "Of what both run, 60 ms more: mostly bmm (90 ms against 30 ms)." in text
    assert not [word for word in ("hardly runs", "copy_") if word in text]


def test_unlike_work_and_work_beyond_what_the_mask_asks_for_are_told(dense, fused):
    fused["cost"] = {"flops": 10**9}
    words = "Its mathematics takes 2 GFLOP, 2.00× the 1 GFLOP of fused."
    assert why_slower(dense, fused)[1] == words
    fused["cost"] = None
    assert "mathematics" not in " ".join(why_slower(dense, fused))
    fused["cost"] = dense["cost"]
    words = "Its operators do 4 GFLOP where its mask asks for 2 GFLOP."
    for flops, told in ((4e9, True), (2.1e9, False)):
        dense["phases"][0]["operators"][0]["flops"] = flops
        assert (words in why_slower(dense, fused)) == told


def test_a_disturbed_machine_is_told(dense, fused):
    fused["plain"]["total_s"] = 0.005
    assert "Beware" in why_slower(dense, fused)[0]
    fused["plain"] |= {"total_s": 0.08, "forward_s": 0.08}
    first = why_slower(dense, fused)[0]
    assert "while they were profiled it was 4.00× as long" in first and "quiet" in first


def test_where_backward_alone_is_timed_the_profiled_forward_is_left_out(dense, fused):
    for p in (dense, fused):
        forward = {**p["phases"][0], "profiled_s": 9.0}
        p["phases"] = [forward, {**p["phases"][0], "name": "backward"}]
        p["problem"] = {"phase": "backward"}
    assert profiled_seconds(dense) == pytest.approx(0.1)
    assert "Beware" not in why_slower(dense, fused)[0]
