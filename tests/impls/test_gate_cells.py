"""The gate on every row, over cells that cover most pairs of values of what a problem may be."""

import itertools
import random
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from impls.masks import InvalidMask, Mask
from impls.operators import KV_DTYPES, KV_SCALES
from impls.problem import InvalidProblem, Problem
from impls.spec import Unsupported
from tests.brute import saved
from tests.impls.small import OPTIONS, TABLE, verdict
from tests.impls.small import problem as problem_of

NAMES = [
    name
    for name, row in TABLE.rows.items()
    if "cpu" in row.devices and not row.requires and not row.ranks
]
LABELS = {
    f"{name}?{options}" if options else name: 2 if number else 3
    for name in NAMES
    for number, options in enumerate(OPTIONS.get(name, [""]))
}
"""The cells that each has to pass."""
CELLS, GROUPS = 240, 2

AXES = {
    "mask": (
        "none", "causal", "causal", "window", "causal+window", "prefix", "document", "padding",
        "alibi", "causal+alibi", "dense", "bias", "upper-left", "window+padding", "window+alibi",
        "window+document",
    ),
    "lengths": ((45, 45), (1, 1), (13, 45), (45, 13), (69, 69)),
    "heads": ((2, 4, 2), (1, 1, 1), (2, 2, 2), (1, 6, 1)),
    "widths": ((16, 16), (16, 24), (8, 5), (7, 7)),
    "phase": ("train", "train", "forward", "backward", "decode"),
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "inputs": ("normal", "peaky", "outliers", "equal_keys", "sunk"),
}  # fmt: skip


def spelled(kind, shape):
    """A mask of a kind that fits the shape; files hold rows that see nothing."""
    batch, heads, n, m = shape
    words = {
        "window": "window:9,4", "prefix": f"prefix:{m // 3}", "alibi": "alibi",
        "document": f"document:{m // 3},{m - m // 3}", "upper-left": "causal@upper-left",
        "padding": "padding:" + ",".join(str(m - m // 2 * b) for b in range(batch)),
    }  # fmt: skip
    if kind in ("dense", "bias"):
        table = np.random.default_rng(n).choice([-np.inf, 0.5, -1.25, 2.0], (heads, n, m))
        table[:, n // 2] = -np.inf
        return saved(kind, table if kind == "bias" else table > 0)
    return "+".join(words.get(word, word) for word in kind.split("+"))


@cache
def pool(level):
    """Problems that all rows choose from, each with the pairs of values that it has."""
    dice, result = random.Random(level), []
    while len(result) < CELLS:
        cell = {axis: dice.choice(values) for axis, values in AXES.items()}
        (n, m), (b, h, c), (d, e) = cell["lengths"], cell["heads"], cell["widths"]
        n = min(n, 3) if cell["phase"] == "decode" else n
        extent = {"batch": b, "heads": h, "kv_heads": c, "q_len": n, "kv_len": m}
        extent |= {"head_dim": d, "v_head_dim": e}
        if level != "core" and m == 1:  # where all that trains the scores cancels
            cell["inputs"] = "normal"
        rest = {axis: cell[axis] for axis in ("phase", "dtype", "inputs")}
        with suppress(InvalidProblem, InvalidMask):
            mask = Mask.parse(spelled(cell["mask"], (b, h, n, m)))
            problem = Problem(**extent, **rest, mask=mask, level=level)
            result.append((set(itertools.combinations(cell.items(), 2)), problem))
    return result


def fits(row, problem):
    if row.name == "exp.naive" and problem.inputs != "normal":  # the others overflow it
        return False
    windowed = "window" in problem.mask.kinds or not row.name.startswith("window.")
    return windowed and row.supports(problem) is None


def cells(label):
    """Problems that the row may take, each chosen for the pairs of values that none before has."""
    row, covered = TABLE.find(label), set()
    order = random.Random(list(LABELS).index(label) % GROUPS).sample(pool(row.level), CELLS)
    if "kv_dtype" in row.takes:
        kinds = itertools.cycle(itertools.product(KV_DTYPES, KV_SCALES))
        decoding = [cell for cell in order if cell[1].phase == "decode"]
        order = [
            (pairs, problem.with_(kv_dtype=kv_dtype, kv_scale=kv_scale))
            for (pairs, problem), (kv_dtype, kv_scale) in zip(decoding, kinds, strict=False)
        ]
    candidates = [cell for cell in order if fits(row, cell[1])]
    while candidates:
        best = max(candidates, key=lambda x: len(x[0] - covered))
        candidates.remove(best)
        covered |= best[0]
        yield best[1]


@pytest.mark.parametrize(
    "label",
    [pytest.param(each, marks=pytest.mark.slow) if "?" in each else each for each in LABELS],
)
def test_the_gate_holds_on_cells_of_every_kind(label):
    passed = 0
    for problem in cells(label):
        try:
            reason = verdict(label, problem).reason
        except Unsupported:
            continue
        assert reason is None, (problem, reason)
        if (passed := passed + 1) == LABELS[label]:
            return
    assert passed >= LABELS[label] - 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mask", ["causal+alibi", "padding:0,11"])
def test_compiled_is_exact_forward_and_backward(mask):
    p = problem_of(mask, 17, dtype="float32", phase="train")
    verdict("compiled", p)  # the compiler starts a thread, as in a cell before its gate
    assert verdict("compiled", p).reason is None
