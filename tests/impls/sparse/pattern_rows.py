"""The rows with a pattern, small problems for them, and the pairs that a row's definition sees."""

import torch

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem


def problem(length, mask="none", **more):
    shape = {"heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "batch": 1}
    shape |= {"q_len": length, "kv_len": length, "mask": Mask.parse(mask)}
    return Problem(**{**shape, **more})


def row_of(variant):
    return impls.table().find(variant)


def attend_of(variant, given):
    row = row_of(variant)
    return load_function(row.build)(given, **row.chosen)


def seen_by(variant, given):
    """The pairs that the definition lets meet: bool [n, n], read off the gradient of the values."""
    row, n = row_of(variant), given.q_len
    define = load_function(row.definition)(given, **row.chosen)
    q = torch.zeros(1, given.heads, n, given.head_dim, dtype=torch.float64)
    v = torch.eye(n, dtype=torch.float64).expand(1, given.heads, n, n)
    return (define(q, q, v, torch.arange(n))[0, 0] > 0).numpy()


SMALL = {
    "strided": "strided?stride=7", "fixed": "fixed?stride=9&summary=2",
    "dilated": "dilated?dilation=3&width=5", "longformer": "longformer?window=6&globals=3",
    "bigbird": "bigbird?block=8&globals=1&random=2",
}  # fmt: skip
ROWS = list(SMALL)
