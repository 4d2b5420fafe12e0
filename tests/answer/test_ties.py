"""Which of several that tie is advised: torch's own, then what needs least memory."""

from dataclasses import replace

import pytest

import impls
from attnbench.answer.ranking import Closeness, advised, answers, torch_rank
from attnbench.core.record import Memory, Record, Status, Time
from impls.problem import Problem

PROBLEM = Problem(q_len=64, kv_len=64).to_dict()


def timed(variant, seconds, peak, off=0.01):
    time = Time(
        median_s=seconds,
        low_s=seconds * (1 - off),
        high_s=seconds * (1 + off),
        q25_s=seconds,
        q75_s=seconds,
        min_s=seconds,
        n=9,
        clock="host",
        stop="budget",
        samples_s=[seconds],
    )
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="profiler")
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=PROBLEM,
        time=time,
        memory=memory,
        computes="softmax",
    )


@pytest.mark.parametrize(
    ("some", "use"),
    [
        # (variant, seconds, peak): the advice is neither the fastest nor the first
        ([("chunked", 1.0, 8), ("sdpa", 1.014, 9)], "sdpa"),
        ([("sdpa.flash", 1.0, 1), ("sdpa", 1.01, 9)], "sdpa"),
        ([("chunked", 1.0, 1), ("sdpa.math", 1.01, 9), ("flex", 1.005, 2)], "sdpa.math"),
        ([("chunked", 1.0, 1), ("flex", 1.01, 9)], "flex"),
        (
            [("mha", 1.0, 1), ("mha.native?need_weights=true", 1.01, 9)],
            "mha.native?need_weights=true",
        ),
        ([("matmul", 1.0, 9), ("chunked?block=64", 1.02, 8), ("mine", 1.01, 7)], "mine"),
        ([("matmul", 1.0, 9), ("chunked", 1.01, 9)], "matmul"),  # as much memory: the fastest
        ([("chunked", 1.0, 8), ("sdpa", 1.2, 1)], "chunked"),  # no tie
        (
            [("chunked", 1.0, 8, 0.2), ("sdpa", 1.2, 1, 0.2)],
            "chunked",
        ),  # a tie of wide intervals alone
    ],
)
def test_the_advice_among_ties(some, use):
    for order in (some, some[::-1]):
        (answer,) = answers([timed(*one) for one in order])
        assert answer.winner == use
        taken = next(seconds for name, seconds, *_ in some if name == use)
        assert answer.time.median_s == taken
        assert set(answer.leaders) <= {name for name, *_ in some}


def test_the_lead_is_that_of_the_variant_advised():
    (answer,) = answers([timed("matmul", 1.0, 1), timed("sdpa", 1.02, 1), timed("bmm", 2.0, 1)])
    assert (answer.winner, answer.equal, answer.next) == ("sdpa", ("matmul",), "bmm")
    assert answer.lead == pytest.approx(2.0 / 1.02)
    assert answer.lead_low == pytest.approx(2.0 * 0.99 / (1.02 * 1.01))
    assert answer.sentence().startswith("forward, mask none, 64 tokens")
    assert "sdpa is the one to use of 2 that tie, at" in answer.sentence()


def test_what_torch_has_is_told_by_the_row_and_not_by_the_name():
    ranks = {name: torch_rank(name) for name in impls.table().rows}
    assert [n for n, rank in ranks.items() if rank == 0] == ["sdpa"]
    assert [n for n, rank in ranks.items() if rank == 1] == [
        "sdpa.math",
        "sdpa.flash",
        "sdpa.efficient",
        "sdpa.cudnn",
    ]
    assert [n for n, rank in ranks.items() if rank == 2] == [
        "flex",
        "window.flex",
        "blocksparse.flex",
        "mha.native",
        "block.native",
        "torch.varlen",
    ]


def test_if_only_one_may_be_chosen_torchs_own_is_where_it_keeps_as_near():
    flash = Closeness("sdpa.flash", (1.0,) * 10, 10)
    sdpa = Closeness("sdpa", (1.0,) * 9 + (1.04,), 10)
    assert advised([flash, sdpa]).variant == "sdpa"
    mostly = replace(sdpa, ratios=(1.0,) * 9 + (1.3,))
    assert advised([flash, mostly]).variant == "sdpa"  # on nine in ten it keeps to 1.05 as well
    apart = replace(flash, ratios=(1.0,) * 5 + (1.2,) * 5)
    assert advised([apart, replace(sdpa, ratios=(1.2,) * 10)]).variant == "sdpa"  # both to 1.25
    assert advised([flash, replace(sdpa, ratios=(1.0,) * 5 + (1.2,) * 5)]).variant == "sdpa.flash"
    windows = Closeness("window.blocked", (1.0,) * 7 + (3.0,) * 3, 10)  # 2x is the last factor
    assert advised([windows, replace(sdpa, ratios=(1.0,) * 5 + (9.0,) * 5)]) is windows
