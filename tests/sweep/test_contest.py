"""What is measured for a choice, what is not, and who goes into pairs."""

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status, Time
from attnbench.sweep import compare
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls.problem import Problem
from tests.times import figures


def plan(length, names=("matmul", "sdpa.flash", "einsum"), **more):
    grid = Preset("one", seq=(str(length),), heads=(8,), phase=("forward",), **more)
    return make_plan(impls.table(), list(names), grid, this_machine())


def timed(variant, median, computes="softmax"):
    time = Time(clock="host", stop="budget", **figures([median]))
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=Problem().to_dict(),
        time=time,
        computes=computes,
    )


def test_whoever_needs_too_much_by_its_own_formula_is_not_measured():
    names, large = compare.within(plan(1024), 20 << 20)
    assert names == ["sdpa.flash"]
    assert set(large) == {"matmul", "einsum"}
    assert large["matmul"] >= 8 * 1024 * 1024 * 4  # one matrix of scores at the least


def test_long_ones_are_tried_on_a_quarter_of_the_tokens():
    found = compare.shorter(plan(65536))
    assert (found.q_len, found.kv_len) == (16384, 16384)
    decode = make_plan(
        impls.table(),
        ["sdpa"],
        Preset(
            "one",
            seq=("4194304",),
            heads=(64,),
            phase=("decode",),
            batch=(64,),
        ),
        this_machine(),
    )
    assert (compare.shorter(decode).q_len, compare.shorter(decode).kv_len) == (1, 1 << 20)


def test_a_mask_that_fits_one_length_alone_is_tried_on_no_other():
    assert compare.shorter(plan(65536, mask=("document:65000,536",))) is None


def test_who_is_far_behind_is_left_out_and_the_fastest_goes_first():
    refused = Record(
        status=Status.UNSUPPORTED, variant="d", problem=Problem().to_dict(), reason="not so short"
    )
    broken = Record(status=Status.WRONG, variant="e", problem=Problem().to_dict(), reason="it is")
    tried = [timed("a", 3.0), timed("b", 1.0), timed("c", 8.5), refused, broken]
    names, behind = compare.hopeful(tried)
    assert names == ["b", "a", "d"]
    assert behind == {"c": 8.5}


def test_who_is_near_the_best_goes_into_pairs_with_it():
    records = [timed("a", 1.1), timed("b", 1.0), timed("c", 1.3), timed("x", 0.5)]
    assert compare.near_the_best(records, ["a", "b", "c"]) == ["b", "a"]
