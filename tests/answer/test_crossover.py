"""The search for where one overtakes the other, and the sentence: times are closed forms."""

import math
import random
from types import SimpleNamespace

import pytest

import impls
from attnbench.answer import crossover
from attnbench.answer.crossover import CrossoverSearch, pairs_by
from attnbench.answer.search import GRACE_S, Look, ladder, octaves, take_looks
from attnbench.core import stats
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.features.crossover.verb import plan
from attnbench.sweep.compare import Compared
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.presets import Preset
from impls.errors import CantBeDone
from impls.problem import Problem
from tests.sweep.build import ToldEngine
from tests.times import in_pairs, pairs_answer

ENDS = (64, 16384)
LONG = ladder(*ENDS, 16)
PROBLEM = Problem(mask=impls.masks.Mask.parse("none"))


def compared(**what):
    return Compared(problem=PROBLEM, **what)


def polynomial(a, b, c):
    return lambda n: a + b * n + c * n * n


def look(length, ratio, margin=0.01):
    """The other's time over one's; or the logarithms of several."""
    logs = [math.log(ratio)] * 40 if isinstance(ratio, float) else ratio
    comparison = in_pairs(logs, margin)
    return Look(length, compared(comparison=comparison), crossover.leader(comparison))


def failure(length, status, why="one: it failed"):
    return Look(length, compared(status=status, why=why), None, status in crossover.GROW)


def silent(time_a, time_b, fails=lambda n: False, status=Status.FAILED):
    """A world without noise, in which some lengths may fail."""

    def ask(search, length, left_s):
        if fails(length):
            return failure(length, status)
        return look(length, float(time_b(length) / time_a(length)))

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

    def ask(search, length, left_s):
        sides = side(time_a(length)), side(time_b(length))
        pairs = stats.compare(*sides, stats.StopRule(0.01, cap=cap), chance)
        return Look(length, compared(comparison=pairs), crossover.leader(pairs))

    return ask


def search_of():
    return CrossoverSearch(*map(impls.table().find, ("sdpa", "linear.elu")), PROBLEM, ENDS)


def run(ask):
    """The search when it is over, and the lengths that were asked for."""
    search = search_of()
    for _ in take_looks([search], ask, 1e9):
        pass
    asked = [each.size for each in search.looks]
    assert len(asked) == len(set(asked)) and set(asked) <= set(LONG)
    return search, asked


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("truth", [70, 555, 1024, 9999, 16_000])
def test_a_crossover_is_found_to_a_sixteenth_in_few_looks(truth, swapped):
    """n² against truth · n: they are equal at the truth."""
    worlds, names = [polynomial(0, 0, 1.0), polynomial(0, truth, 0)], ["sdpa", "linear.elu"]
    step = -1 if swapped else 1
    search, asked = run(silent(*worlds[::step]))
    (one,) = search.crossovers()
    assert one.low <= truth <= one.high
    assert [one.before, one.after] == names[::step]
    assert one.high - one.low <= 2 * max(16, truth / 16)
    assert len(asked) <= len(octaves(LONG)) + (8 if one.ties else 4)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(10, 60), marks=pytest.mark.slow)])
def test_the_bracket_holds_the_truth_however_the_machine_scatters_and_drifts(seeds):
    """a + bn + cn² against another: where they are equal is known."""
    missed = 0
    for seed in seeds:
        chance = random.Random(seed)
        truth, start = chance.uniform(100, 12_000), chance.uniform(100, 10_000)
        steep = chance.uniform(0.01, 1.0)
        other = polynomial(start + steep * truth * truth / 2, steep * truth / 2, 0)
        brackets = run(noisy(polynomial(start, 0, steep), other, seed))[0].crossovers()
        missed += not (len(brackets) == 1 and brackets[0].low <= truth <= brackets[0].high)
    assert missed <= len(seeds) // 100


CROSSING = polynomial(0, 0, 1.0), polynomial(0, 555, 0)
TIGHT, LOOSE = [(544, 576)], [(512, 1024)]
FULL, FAILED = Status.OUT_OF_MEMORY, Status.FAILED


@pytest.mark.parametrize(
    ("fails", "status", "bracket", "asked"),
    [
        (lambda n: n >= 4096, Status.WRONG, TIGHT, (4, [1024, 2048, 4096])),
        (lambda n: n >= 900, FULL, TIGHT, (4, [1024, 768, 896])),
        (lambda n: n > 512, FULL, [], (0, [64, 128, 256, 512, 1024, 768])),
        (lambda n: n < 256, Status.WRONG, TIGHT, (0, [64, 128, 256])),
        (lambda n: 512 < n < 1024, FAILED, LOOSE, (4, [1024, 2048])),
        (lambda n: n == 768, FAILED, TIGHT, (4, [1024, 2048])),
        (lambda n: True, FULL, [], (0, [64])),
    ],
)
def test_lengths_that_fail_end_the_search_or_are_gone_around(fails, status, bracket, asked):
    search, looked = run(silent(*CROSSING, fails, status))
    assert [(c.low, c.high) for c in search.crossovers()] == bracket
    assert looked[asked[0] :][: len(asked[1])] == asked[1]
    assert sum(512 < n < 1024 for n in looked) == 2 or bracket != LOOSE


@pytest.mark.parametrize(
    ("took", "seconds", "asked", "cut"),
    [
        (lambda n: 1e-6 if n in octaves(LONG) else 4.0, 7, [*octaves(LONG), 768], 640),
        (lambda n: 0.01 * n * n / 64, 40, [64, 128, 256], None),  # the next would end too late
        (lambda n: 1.0 if n < 1024 else 1e6, 30, [64, 128, 256, 512], 1024),
        # octaves that are dear wait until what was seen is tight
        (lambda n: 0.001 * n, 20, [*octaves(LONG)[:-2], 768, 640, 576, 544, 8192], None),
    ],
)
def test_a_budget_that_is_spent_leaves_what_was_found_so_far(took, seconds, asked, cut):
    at, search, ask = [0.0], search_of(), silent(*CROSSING)

    def late(search, length, left_s):
        at[0] += min(took(length), left_s)
        if took(length) <= left_s:
            return ask(search, length, left_s)
        search.cut = length
        return None

    for _ in take_looks([search], late, seconds, now=lambda: at[0]):
        pass
    assert ([each.size for each in search.looks], search.cut) == (asked, cut)
    assert at[0] <= seconds + GRACE_S and search.ended == crossover.BUDGET


GRID = Preset("one", seq=("64", "256"), heads=(2,), head_dim=(8,), phase=("forward",))


def planned(a="einsum", b="matmul", **changes):
    rows = (impls.table().find(name) for name in (a, b))
    return plan(*rows, GRID.with_(**changes), this_machine())


def test_the_lengths_are_those_of_the_ladder_that_both_take():
    search = planned()
    assert (search.rungs[0], search.rungs[-1], len(search.rungs)) == (64, 256, 13)
    assert (search.at(128).q_len, search.at(128).kv_len, search.left_out()) == (128, 128, [])
    assert planned(phase=("decode",)).at(128).q_len == 1
    search = planned(mask=("padding:100",))
    assert search.rungs[0] == 112
    note = "3 of 13 lengths are left out: the mask padding:100 does not fit them"
    assert search.left_out() == [note]
    assert planned(mask=("padding:256",), seq=("240", "272")).rungs == [256, 272]
    assert planned("mha", "mha?core=einsum", mask=("none",)).problem.level == "layer"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seq": ("64",)}, "--seq 64 is no range: crossover looks between two lengths"),
        ({"seq": ("64", str(10**9))}, "of 1 to 16,777,216"),
        (
            {"mask": ("document:100,156",), "seq": ("64", "200")},
            "document lengths add up to 256",
        ),
        ({"mask": ("document:100,156",)}, "there is no range to search: of the lengths from 64"),
        ({"b": "ring"}, "ring runs over several processes"),
        ({"b": "sdpa.cudnn"}, "sdpa.cudnn needs CUDA"),
        ({"b": "performer", "mask": ("alibi",)}, "13 of 13 lengths are left out: perform"),
    ],
)
def test_what_can_not_be_searched_is_refused_in_a_sentence(changes, why):
    with pytest.raises(CantBeDone) as stopped:
        planned(**changes)
    assert why in str(stopped.value)


def stopped(status, why):
    return {"stopped": {"status": status, "why": why}}


PAIRS = pairs_answer([0.5] * 40)
LATE = WorkerLost("it was still running", "", timed_out=True)
NO_MEMORY = stopped("out_of_memory", "einsum: 9 GiB")


@pytest.mark.parametrize(
    ("answers", "left_s", "status"),
    [
        ([stopped("wrong", "einsum: row 3 moved")], 100.0, Status.WRONG),
        ([WorkerLost("it wrote", "", timed_out=False, wrong=True)], 100.0, Status.WRONG),
        ([NO_MEMORY, PAIRS], 100.0, Status.MEASURED),  # once more, in a new worker
        ([NO_MEMORY, NO_MEMORY], 100.0, Status.OUT_OF_MEMORY),
        ([LATE], 30.0, None),  # only the wall clock ended it
        ([LATE], 3000.0, Status.TIMED_OUT),
    ],
)
def test_what_becomes_of_a_worker_that_does_not_answer(answers, left_s, status):
    engine, search = ToldEngine(*answers), planned()
    result = pairs_by(engine, 7, 0.02)(search, 64, left_s)
    assert (result and result.result.status) == status
    assert search.cut == (None if result else 64)
    assert engine.closed == (len(answers) == 2)
    assert result is None or (result.side == "a") == (status is Status.MEASURED)


def answer(*looks, rungs=None):
    search = search_of()
    search.rungs = rungs or [each.size for each in looks]
    search.looks += looks
    return search


TORN = look(128, [0.3, -0.3] * 20)
FAILS = failure(256, Status.OUT_OF_MEMORY, "sdpa: it needs 9 GiB")


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        (
            [look(64, 1.5), look(1024, 1.2), look(1088, 0.9), look(4096, 0.2)],
            "from 64 to 1,024 tokens sdpa is faster; from 1,088 to 4,096 ELU is faster. "
            "ELU overtakes sdpa between 1,024 and 1,088 (160 pairs at 4 lengths)",
        ),
        (
            [look(64, 1.5), look(1088, 1.004), look(1408, 0.999, margin=0.025), look(1472, 0.9)],
            "at 64 tokens sdpa is faster; from 1,088 to 1,408 they are tied, margin "
            "2.5\u00a0%; at 1,472 ELU is faster. ELU overtakes sdpa between 64 "
            "and 1,472. Where they tie, use sdpa: it is torch's own (160 pairs at 4 lengths)",
        ),
        ([TORN, look(256, 1.2)], "at 128 tokens the pairs did not decide; at 256 sdpa is faster ("),
    ],
)
def test_the_sentence_says_who_leads_where_and_what_is_no_softmax(looks, words):
    elu = "linear.elu (its own operator, not softmax)"
    assert answer(*looks).sentence().startswith(f"sdpa and ELU: {words}".replace("ELU", elu))
    assert answer(FAILS).sentence() == f"sdpa and {elu} were compared at no length"


def test_what_else_must_be_known_is_noted():
    search = answer(look(64, 1.4), look(128, 1.3), rungs=[64, 128, 256])
    assert search.notes() == ["the budget was spent before 256 was looked at"]
    search.cut = 256
    assert search.notes() == ["the budget was spent while 256 was looked at"]
    wrong = failure(96, Status.WRONG, "linear.elu: row 3 moved")
    assert answer(look(64, 1.4), wrong, TORN, FAILS).notes() == [
        "at 96 they can't be compared: wrong: linear.elu: row 3 moved",
        "from 256 on they can't be compared: out of memory: sdpa: it needs 9 GiB",
        "at 128 the pairs did not decide",
    ]
