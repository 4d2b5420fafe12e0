"""A profile in a terminal, and why one of two is slower."""

from attnbench.features.profile.view import show
from attnbench.features.profile.why_slower import why_slower
from tests.report.profiles import dense, fused, operator, phase


def line_with(text, *words):
    (line,) = (x for x in text.splitlines() if all(w in x for w in words))
    return line


def test_each_has_operators_shares_calls_rates_the_peak_and_flags(shown):
    p = dense()
    p["memory"]["flags"] = ["the process [bold]grew"]
    p["phases"][0]["operators"][0]["flop_rate"] = 3.44e14
    text = shown(show, [p, fused()], ["dense is slower."], width=120)
    assert text.splitlines()[1] == "dense is slower."
    assert "TFLOP/s" in text
    assert line_with(text, "bmm", "20.0").split()[-4:] == ["28", "%", "2", "344"]
    assert line_with(text, "_softmax", "10.0").split()[-1] == "–"
    assert line_with(text, "12 others", "0.0120")
    assert text.count("outside operators") == 4
    words = "unwatched 70 ms, profiled 72 ms (+2.9\u00a0%); 14 GFLOP/s useful; peak 96 MiB"
    assert f"{words} above the inputs, 32 MiB saved for backward" in " ".join(text.split(" "))
    assert "! the process [bold]grew" in text and "! as written" in text


def test_what_both_run_is_compared_where_that_is_the_difference():
    mine = [("bmm", 0.09), ("copy_", 0.01), ("add", 0.005), ("mul", 0.003)]
    theirs = [("bmm", 0.03), ("copy_", 0.01), ("add", 0.01), ("mul", 0.002)]
    slow, fast = (
        {**dense(), "phases": [phase("forward", [operator(*op) for op in ops])]}
        for ops in (mine, theirs)
    )
    text = " ".join(why_slower(slow, {**fast, "plain": {"total_s": 0.03}}))
    assert "Of what both run, 61 ms more: mostly bmm (90 ms against 30 ms)." in text
    assert not [word for word in ("hardly runs", "copy_", "holds all scores") if word in text]


def test_the_slower_is_named_with_its_ratio_whichever_comes_first():
    said = "dense takes 2.33× as long as fused: 70 ms a call against 30 ms."
    for some in ((dense(), fused()), (fused(), dense())):
        assert said in why_slower(*some)


def test_unlike_work_and_work_beyond_what_the_mask_asks_for_are_told():
    slow, fast = dense(), fused()
    fast["cost"] = {"flops": 5e8}
    assert "Its mathematics takes 1 GFLOP, 2.00× the 0.5 GFLOP of fused." in why_slower(slow, fast)
    for flops, extra in ((2e9, True), (1.1e9, False)):
        slow["phases"][0]["operators"][0]["flops"] = flops
        said = [line for line in why_slower(slow, fast) if "where its mask asks" in line]
        assert said == ["Its operators do 2 GFLOP where its mask asks for 1 GFLOP."] * extra
