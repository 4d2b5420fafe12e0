"""The gate on every row, over cells that cover what a problem may be: masks, lengths, heads,
widths, phases, dtypes and inputs, and of two of these most pairs of values.
"""

import itertools
import random

import numpy as np
import pytest

import impls
from impls.masks import InvalidMask, Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Unsupported
from tests.impls.small import OPTIONS

TABLE = impls.table()
NAMES = [
    name
    for name, row in TABLE.rows.items()
    if "cpu" in row.devices and not row.requires and not row.ranks and name != "exp.naive"
]
LABELS = [f"{n}?{o}" if o else n for n in NAMES for o in OPTIONS.get(n, [""])]
CELLS, TRIED = 4, 80

AXES = {
    "mask": (
        "none", "causal", "causal", "window", "causal+window", "prefix", "document", "padding",
        "alibi", "causal+alibi", "dense", "bias", "upper-left",
    ),
    "lengths": ((45, 45), (1, 1), (13, 45), (45, 13), (69, 69)),
    "heads": ((2, 4, 2), (1, 1, 1), (2, 2, 2), (1, 6, 1)),
    "widths": ((16, 16), (16, 24), (8, 5), (7, 7)),
    "phase": ("train", "train", "forward", "backward", "decode"),
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "inputs": ("normal", "peaky", "outliers", "equal_keys"),
}  # fmt: skip

WINDOWS = ("window", "causal+window", "window+padding", "window+alibi", "window+document")


def spelled(kind, shape, folder):
    """A mask of a kind that fits the shape; files hold rows that see nothing."""
    batch, heads, n, m = shape
    words = {
        "window": "window:9,4", "prefix": f"prefix:{m // 3}", "alibi": "alibi",
        "document": f"document:{m // 3},{m - m // 3}", "upper-left": "causal@upper-left",
        "padding": "padding:" + ",".join(str(m - m // 2 * b) for b in range(batch)),
    }  # fmt: skip
    if kind in ("dense", "bias"):
        file = folder / f"{kind}-{batch}-{heads}-{n}-{m}.npy"
        table = np.random.default_rng(n).choice([-np.inf, 0.5, -1.25, 2.0], (heads, n, m))
        table[:, n // 2] = -np.inf
        np.save(file, table if kind == "bias" else table > 0)
        return f"{kind}:{file}"
    return "+".join(words.get(word, word) for word in kind.split("+"))


def cells(label, folder):
    """Problems that the row may take, each chosen for the pairs of values that none before has."""
    drawn, row, tried = random.Random(label), TABLE.find(label), []
    taken = {*row.on("cpu", "masks"), "upper-left"}
    masks = WINDOWS if row.name.startswith("window.") else AXES["mask"]
    axes = AXES | {"mask": [m for m in masks if set(m.split("+")) <= taken]}
    for _ in range(TRIED):
        cell = {axis: drawn.choice(values) for axis, values in axes.items()}
        (n, m), (b, h, c), (d, e) = cell["lengths"], cell["heads"], cell["widths"]
        n = min(n, 3) if cell["phase"] == "decode" else n
        extent = {"batch": b, "heads": h, "kv_heads": c, "q_len": n, "kv_len": m}
        extent |= {"head_dim": d, "v_head_dim": e}
        if row.level != "core" and m == 1:  # where all that trains the scores cancels
            cell["inputs"] = "normal"
        rest = {axis: cell[axis] for axis in ("phase", "dtype", "inputs")}
        try:
            mask = Mask.parse(spelled(cell["mask"], (b, h, n, m), folder))
            problem = Problem(**extent, **rest, mask=mask, level=row.level)
        except (InvalidProblem, InvalidMask):
            continue
        if row.supports(problem) is None:
            tried.append((set(itertools.combinations(cell.items(), 2)), problem))
    covered = set()
    while tried:
        best = max(tried, key=lambda x: len(x[0] - covered))
        tried.remove(best)
        covered |= best[0]
        yield best[1]


@pytest.mark.parametrize("label", LABELS)
def test_the_gate_holds_on_cells_of_every_kind(verdict, label, tmp_path):
    passed = 0
    for problem in cells(label, tmp_path):
        try:
            reason = verdict(label, problem).reason
        except Unsupported:
            continue
        assert reason is None, (problem, reason)
        if (passed := passed + 1) == CELLS:
            return
    assert passed >= 3
