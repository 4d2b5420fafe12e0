"""The search for where one overtakes the other, and what is said of it: times are closed forms."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

import impls
from attnbench.core import stats
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.stats import Pairs, paired
from attnbench.features.crossover import search as crossover
from attnbench.features.crossover.search import CrossoverSearch, LengthRatio, ladder, octaves
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.presets import Preset
from impls.errors import CantBeDone
from tests.sweep.build import ToldEngine

LONG = ladder(64, 16384)


def polynomial(a, b, c):
    return lambda n: a + b * n + c * n * n


def silent(time_a, time_b, fails=lambda n: False, status=Status.FAILED):
    """A world without noise, in which some lengths may fail."""

    def ask(length, left_s):
        if fails(length):
            return LengthRatio(length, None, status, "one: it failed")
        ratio = math.log(time_b(length) / time_a(length))
        return LengthRatio(length, paired([ratio] * 40, 0.01))

    return ask


def noisy(time_a, time_b, seed, cap=640):
    """Calls scatter and the machine drifts: real pairs, of made-up calls."""
    chance = random.Random(seed)
    machine = SimpleNamespace(slow=0.0)

    def side(seconds):
        def sample():
            machine.slow += chance.gauss(0, 0.01)
            return seconds * math.exp(machine.slow + 0.05 * chance.gauss(0, 1))

        return SimpleNamespace(fresh=lambda: None, sample=sample)

    def ask(length, left_s):
        sides = side(time_a(length)), side(time_b(length))
        taken = stats.compare(*sides, stats.StopRule(0.01, cap=cap), chance)
        return LengthRatio(length, taken.comparison)

    return ask


def run(ask, rungs=LONG):
    search = CrossoverSearch(rungs)
    asked = [look.length for look, _ in crossover.seek(search, ask, 1e9)]
    assert len(asked) == len(set(asked)) and set(asked) <= set(rungs)
    return crossover.CrossoverAnswer("one", "other", "tokens", (rungs[0], rungs[-1]), search), asked


@pytest.mark.parametrize("ends", [(64, 16384), (1, 4096), (1000, 1001), (5000, 70_001)])
def test_rungs_go_from_end_to_end_and_are_a_sixteenth_apart_or_sixteen_tokens(ends):
    rungs = ladder(*ends)
    assert (rungs[0], rungs[-1]) == ends
    assert all(0 < high - low <= max(16, low / 16) for low, high in pairwise(rungs))
    assert all(n % 16 == 0 for n in rungs[1:-1])
    assert {n for n in (1 << k for k in range(4, 20)) if ends[0] < n < ends[1]} <= set(rungs)
    assert octaves(ladder(100, 1000)) == [100, 128, 256, 512, 1000]


@pytest.mark.parametrize("truth", [70, 555, 1024, 9999, 16_000])
def test_a_crossover_is_found_to_a_sixteenth_in_few_looks(truth):
    """n² against truth · n: they are equal at the truth."""
    sides = polynomial(0, 0, 1.0), polynomial(0, truth, 0)
    for (one, other), names in ((sides, ("one", "other")), (sides[::-1], ("other", "one"))):
        found, asked = run(silent(one, other))
        (one,) = found.crossovers()
        assert one.low <= truth <= one.high and one.tight
        assert (one.before, one.after) == names
        assert one.high - one.low <= 2 * max(16, truth / 16)
        assert len(asked) <= len(octaves(LONG)) + (8 if one.ties else 4)


def test_without_a_crossover_nothing_but_the_octaves_is_looked_at():
    for factor in (0.5, 1.0, 2.0):
        found, asked = run(silent(lambda n: n, lambda n, factor=factor: factor * n))
        assert asked == octaves(LONG) and found.crossovers() == []
    for seed in range(3):
        found, asked = run(noisy(lambda n: n, lambda n: n, seed, cap=160))
        assert asked == octaves(LONG) and found.crossovers() == []


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(10, 60), marks=pytest.mark.slow)])
def test_the_bracket_holds_the_truth_however_the_machine_scatters_and_drifts(seeds):
    """a + bn + cn² against another: where they are equal is known."""
    missed = 0
    for seed in seeds:
        chance = random.Random(seed)
        truth, start = chance.uniform(100, 12_000), chance.uniform(100, 10_000)
        steep = chance.uniform(0.01, 1.0)
        other = polynomial(start + steep * truth * truth / 2, steep * truth / 2, 0)
        found = run(noisy(polynomial(start, 0, steep), other, seed))[0].crossovers()
        missed += not (len(found) == 1 and found[0].low <= truth <= found[0].high)
    assert missed <= len(seeds) // 100


CROSSING = polynomial(0, 0, 1.0), polynomial(0, 555, 0)


def test_lengths_that_fail_end_the_search_or_are_gone_around():
    for fails, status, bracket, asked in (
        # where it is tight; which lengths were asked, from a place on
        (lambda n: n >= 4096, Status.WRONG, (544, 576, True), (4, [1024, 2048, 4096])),
        (lambda n: n >= 900, Status.OUT_OF_MEMORY, (544, 576, True), (4, [1024, 768, 896])),
        (lambda n: n > 512, Status.OUT_OF_MEMORY, None, (0, [64, 128, 256, 512, 1024, 768])),
        (lambda n: n < 256, Status.WRONG, (544, 576, True), (0, [64, 128, 256])),
        (lambda n: 512 < n < 1024, Status.FAILED, (512, 1024, False), (4, [1024, 2048])),
        (lambda n: n == 768, Status.FAILED, (544, 576, True), (4, [1024, 2048])),
    ):
        found, looked = run(silent(*CROSSING, fails, status))
        assert [(c.low, c.high, c.tight) for c in found.crossovers()] == [bracket] * bool(bracket)
        assert looked[asked[0] :][: len(asked[1])] == asked[1]
        assert sum(512 < n < 1024 for n in looked) == 2 or bracket is None or bracket[2]


@pytest.mark.parametrize(
    ("took", "seconds", "asked", "cut"),
    [
        (lambda n: 1e-6 if n in octaves(LONG) else 4.0, 7, [*octaves(LONG), 768], 640),
        (lambda n: 0.01 * n * n / 64, 45, [64, 128, 256], None),  # the next would end too late
        (lambda n: 1.0 if n < 1024 else 1e6, 30, [64, 128, 256, 512], 1024),
        # octaves that are dear wait until what was seen is tight
        (lambda n: 0.001 * n, 20, [*octaves(LONG)[:-2], 768, 640, 576, 544, 8192], None),
    ],
)
def test_a_budget_that_is_spent_leaves_what_was_found_so_far(took, seconds, asked, cut):
    at, search = [0.0], CrossoverSearch(LONG)
    ask = silent(*CROSSING)

    def late(length, left_s):
        at[0] += min(took(length), left_s)
        return ask(length, left_s) if took(length) <= left_s else None

    looks = [look.length for look, _ in crossover.seek(search, late, seconds, lambda: at[0])]
    assert (looks, search.cut) == (asked, cut) and at[0] <= seconds


GRID = Preset("one", seq=("64", "256"), heads=(2,), head_dim=(8,), phase=("forward",))


def planned(a="einsum", b="matmul", **changes):
    rows = (impls.table().find(name) for name in (a, b))
    return crossover.plan(*rows, GRID.with_(**changes), this_machine())


def test_the_lengths_are_those_of_the_ladder_that_both_take():
    duel = planned()
    assert (duel.rungs[0], duel.rungs[-1], len(duel.rungs), duel.notes()) == (64, 256, 13, [])
    assert (duel.at(128).q_len, duel.at(128).kv_len) == (128, 128)
    assert planned(phase=("decode",)).at(128).q_len == 1
    duel = planned(mask=("padding:100",))
    assert duel.rungs[0] == 112
    said = "3 lengths from 64 to 96 are left out: the mask padding:100 does not fit them"
    assert duel.notes() == [said]
    assert planned("mha", "mha?core=einsum", mask=("none",)).problem.level == "layer"


def test_what_can_not_be_searched_is_refused_in_a_sentence():
    for changes, why in (
        ({"seq": ("64",)}, "--seq 64 is no range: crossover looks between two lengths"),
        ({"seq": ("64", str(10**9))}, "of 1 to 16,777,216"),
        ({"mask": ("document:100,156",), "seq": ("64", "200")}, "no range of lengths can be"),
        ({"mask": ("document:100,156",)}, "there is no range to search: of the lengths from 64"),
        ({"b": "ring"}, "ring runs over several processes"),
        ({"b": "sdpa.cudnn"}, "sdpa.cudnn needs CUDA"),
        ({"b": "performer", "mask": ("alibi",)}, "13 lengths from 64 to 256 are left out: perform"),
    ):
        with pytest.raises(CantBeDone) as stopped:
            planned(**changes)
        assert why in str(stopped.value)


def asking(*answers):
    engine = ToldEngine(*answers)
    return crossover.PairServer(planned(), engine, 7, 0.02, ()), engine


def test_what_becomes_of_a_worker_that_does_not_answer():
    full = {"stopped": {"status": "out_of_memory", "why": "einsum: 9 GiB"}}
    late = WorkerLost("it was still running", "", timed_out=True)
    wrote = WorkerLost("it wrote", "", timed_out=False, wrong=True)
    stopped = {"stopped": {"status": "wrong", "why": "einsum: row 3 moved"}}
    look = asking(stopped)[0](64, 100.0)
    assert look == LengthRatio(64, None, Status.WRONG, "einsum: row 3 moved")
    assert asking(wrote)[0](64, 100.0).status is Status.WRONG
    pairs = Pairs(paired([0.5] * 40, 0.01), [0.002] * 40, [0.001] * 40, "decided").to_dict()
    ask, engine = asking(full, {"pairs": pairs})  # it is tried once more in a new worker
    assert (ask(64, 100.0).leader, engine.closed) == ("a", 1)
    assert asking(full, full)[0](64, 100.0).status is Status.OUT_OF_MEMORY
    assert asking(late)[0](64, 30.0) is None  # only the wall clock ended it
    assert asking(late)[0](64, 3000.0).status is Status.TIMED_OUT


def look(length, ratio, margin=0.01, spread=0.0):
    """The other's time over one's."""
    logs = [math.log(ratio) + spread * (i % 9 - 4) for i in range(40)]
    return LengthRatio(length, paired(logs, margin), a_s=0.001, b_s=0.001 * ratio)


def answer(*looks, rungs=None, ended="", what="tokens", asked=None):
    lengths = [each.length for each in looks]
    search = CrossoverSearch(rungs or lengths or [64, 128])
    for each in looks:
        search.hear(each)
    asked = asked or (search.rungs[0], search.rungs[-1])
    return crossover.CrossoverAnswer("sdpa", "elu", what, asked, search, ended)


TORN = LengthRatio(128, paired([0.3, -0.3] * 20, 0.01))
FAILED = LengthRatio(256, None, Status.OUT_OF_MEMORY, "sdpa: it needs 9 GiB")


def test_the_sentence_says_who_leads_where_and_where_that_changes():
    for looks, said in (
        (
            [look(64, 1.5), look(1024, 1.2), look(1088, 0.9), look(4096, 0.2)],
            "from 64 to 1,024 tokens sdpa is faster; from 1,088 to 4,096 elu is faster. "
            "elu overtakes sdpa between 1,024 and 1,088 (160 pairs at 4 lengths)",
        ),
        (
            [look(64, 1.5), look(1088, 1.004), look(1408, 0.999, margin=0.025), look(1472, 0.9)],
            "at 64 tokens sdpa is faster; from 1,088 to 1,408 they are tied, margin "
            "1\u00a0% to 2.5\u00a0%; at 1,472 elu is faster. elu overtakes sdpa between 64 and "
            "1,472. Where they tie, use sdpa: it is torch's own (160 pairs at 4 lengths)",
        ),
        (
            [look(64, 1.4), look(128, 1.2), FAILED],
            "sdpa is faster throughout, from 64 to 128 tokens: it takes 0.714 [0.714, 0.714] at 64 "
            "and 0.833 [0.833, 0.833] at 128 of the time of elu (80 pairs at 2 lengths)",
        ),
        (
            [TORN, look(256, 1.2)],
            "at 128 tokens the pairs did not decide; at 256 sdpa is faster (80 pairs at 2 lengths)",
        ),
        (
            [TORN],
            "the pairs did not decide between sdpa and elu, at 128 tokens (40 pairs at 1 length)",
        ),
        ([FAILED], "sdpa and elu were compared at no length"),
    ):
        assert answer(*looks, asked=(64, 4096)).sentence() == said


def test_beside_who_leads_stands_what_is_no_softmax():
    elu, kinds = (
        "elu (its own operator, not softmax)",
        {"sdpa": "softmax", "elu": "its own operator"},
    )
    for ratios, said in (
        ((1.2, 0.5), f"at 64 tokens sdpa is faster; at 128 {elu} is faster. {elu} overtakes sdpa"),
        ((0.5, 0.5), f"{elu} is faster throughout, from 64 to 128 tokens: it takes 0.5 [0.5, 0.5]"),
        ((2.0, 2.0), f"of the time of {elu} (80 pairs"),
        ((1.0, 1.0), f"sdpa and {elu} are tied, margin"),
    ):
        looks = [look(n, ratio) for n, ratio in zip((64, 128), ratios, strict=True)]
        found = replace(answer(*looks), computes=kinds)
        assert said in found.sentence() and found.to_dict()["computes"] == kinds


def test_what_else_must_be_known_is_noted():
    found = answer(look(64, 1.4), look(128, 1.3), rungs=[64, 128, 256], ended=crossover.BUDGET)
    assert "the budget was spent before 256 was looked at" in found.notes()
    found.search.cut = 256
    assert "the budget was spent while 256 was looked at" in found.notes()
    assert "before" not in " ".join(found.notes())
    wrong = LengthRatio(96, None, Status.WRONG, "elu: row 3 moved")
    assert answer(look(64, 1.4), wrong, TORN, FAILED).notes() == [
        "at 96 they can't be compared: wrong: elu: row 3 moved",
        "from 256 on they can't be compared: out of memory: sdpa: it needs 9 GiB",
        "at 128 the pairs did not decide",
        "two crossovers within an octave of lengths would not be seen",
    ]
