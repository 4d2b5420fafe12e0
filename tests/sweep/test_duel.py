"""Two variants over a range: what is refused before anything runs, and what a worker is asked."""

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.stats import Pairs, paired
from attnbench.features.crossover.search import PAIRS_S, PairServer, plan
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.presets import Preset
from impls.asked import CantBeDone
from tests.sweep.build import ToldEngine as Told

GRID = Preset("one", seq=("64", "256"), heads=(2,), head_dim=(8,), phase=("forward",))


class Engine(Told):
    """Also counts how often it was ended."""

    closed = 0

    def ask(self, question, limit_s):
        self.limit_s = limit_s
        return super().ask(question, limit_s)

    def close(self):
        self.closed += 1


def planned(a="einsum", b="matmul", **changes):
    rows = (impls.table().find(name) for name in (a, b))
    return plan(*rows, GRID.with_(**changes), this_machine())


def refused(a="einsum", b="matmul", **changes):
    with pytest.raises(CantBeDone) as stopped:
        planned(a, b, **changes)
    return str(stopped.value)


def answered(log_ratio, margin=0.01):
    found = paired([log_ratio] * 40, margin)
    return {"pairs": Pairs(found, [0.002] * 40, [0.001] * 40, "decided").to_dict()}


# ---- what can be searched -----------------------------------------------------------------------


def test_the_lengths_are_those_of_the_ladder_as_many_queries_as_keys():
    duel = planned()
    assert (duel.rungs[0], duel.rungs[-1], len(duel.rungs)) == (64, 256, 13)
    assert (duel.at(128).q_len, duel.at(128).kv_len) == (128, 128)
    assert duel.notes() == []


def test_lengths_that_the_mask_does_not_fit_are_left_out_and_said():
    duel = planned(mask=("padding:100",))
    assert duel.rungs[0] == 112
    (note,) = duel.notes()
    assert note == "3 lengths from 64 to 96 are left out: the mask padding:100 does not fit them"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"b": "einsum"}, "einsum can't overtake itself; name two variants"),
        ({"seq": ("64",)}, "--seq 64 is no range: crossover looks between two lengths"),
        ({"seq": ("64", "128", "256")}, "--seq 64,128,256 is no range"),
        ({"seq": ("64x1", "128")}, "is no range"),
        ({"seq": ("256", "64")}, "holds no lengths: the shorter comes first"),
        ({"seq": ("64", "64")}, "holds no lengths: the shorter comes first"),
        ({"seq": ("0", "64")}, "holds no lengths: a length is 1 or more"),
        ({"seq": ("64", str(10**9))}, "is too far"),
        ({"heads": (2, 4), "mask": ("none", "causal")}, "one value of --heads, --mask"),
        ({"inputs": ("captured:x.npz",)}, "captured inputs have one length"),
        ({"mask": ("document:100,156",), "seq": ("64", "200")}, "no range of lengths can be"),
        ({"mask": ("document:100,156",)}, "there is no range to search: of the lengths from 64"),
        ({"b": "ring"}, "ring runs over several processes, and crossover looks at one"),
        ({"b": "sdpa.cudnn"}, "sdpa.cudnn runs on cuda"),
        ({"b": "performer", "mask": ("alibi",)}, "13 lengths from 64 to 256 are left out: perform"),
        ({"device": "cuda"}, "device cuda is not here"),
    ],
)
def test_what_can_not_be_searched_is_refused_in_a_sentence(changes, why):
    assert why in refused(**changes)


# ---- what a worker is asked ---------------------------------------------------------------------


def asking(*answers, margin=0.02, floors=()):
    engine = Engine(*answers)
    return PairServer(planned(), engine, 7, margin, floors), engine


def test_a_worker_is_asked_for_b_against_a_at_the_length():
    ask, engine = asking(answered(-0.5))
    look = ask(128, 100.0)
    (asked,) = engine.asked
    assert [job["variant"]["name"] for job in asked["compare"]] == ["einsum", "matmul"]
    assert {job["problem"]["kv_len"] for job in asked["compare"]} == {128}
    assert {job["seed"] for job in asked["compare"]} == {7}
    assert (asked["margin"], asked["budget_s"]) == (0.02, PAIRS_S)
    assert (look.leader, look.a_s, look.b_s) == ("b", 0.002, 0.001)
    assert engine.limit_s == 105.0


def test_without_a_margin_and_a_floor_the_first_look_measures_one_for_all():
    ask, engine = asking(answered(-0.5, 0.03), answered(-0.5, 0.03), margin=None)
    ask(64, 100.0)
    ask(128, 100.0)
    assert [asked["margin"] for asked in engine.asked] == [None, 0.03]


def test_with_floors_each_look_has_its_own_margin():
    floors = [{"call_s": 0.001, "floor": 0.02}]
    ask, engine = asking(answered(-0.5, 0.03), answered(-0.5), margin=None, floors=floors)
    ask(64, 100.0)
    ask(128, 100.0)
    assert [(a["margin"], a["floors"]) for a in engine.asked] == [(None, floors)] * 2


def test_what_runs_out_of_memory_is_tried_once_more_in_a_new_worker():
    full = {"stopped": {"status": "out_of_memory", "why": "einsum: 9 GiB"}}
    ask, engine = asking(full, answered(0.5))
    assert (ask(64, 100.0).leader, engine.closed) == ("a", 1)
    ask, engine = asking(full, full)
    assert (ask(64, 100.0).status, len(engine.asked)) == (Status.OUT_OF_MEMORY, 2)


def test_what_only_the_wall_clock_ended_is_no_look_and_what_hangs_is_one():
    late = WorkerLost("it was still running", "", timed_out=True)
    ask, _ = asking(late, late)
    assert ask(64, 30.0) is None
    assert ask(64, 3000.0).status is Status.TIMED_OUT
