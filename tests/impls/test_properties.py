"""Properties of every row, whatever the shape; options out of range."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unsupported
from tests.impls.small import OPTIONS, TABLE, both_forms, inputs, problem, takes_more, verdict

ROWS = {
    row.name: TABLE.find("?".join([row.name, *[o for o in OPTIONS.get(row.name, []) if o][:1]]))
    for row in TABLE.rows.values()
    if row.level == "core"
    and "cpu" in row.devices
    and "float64" in row.on("cpu", "dtypes")
    and not row.requires
    and not row.ranks
    and "kv_dtype" not in row.takes  # what is rounded has none of these
    and not takes_more(row, Problem())
}
KERNELS = ("nystrom", "skyformer", "rfa", "performer", "linear.identity", "linear.elu", "cosformer",
           "linear.taylor", "hedgehog", "cosine")  # fmt: skip
EXCUSED = {
    "weights of one in sum, none below zero": (
        "nystrom", "skyformer", "rfa", "linear.identity", "cosine",
        "routing", "cosformer",  # some queries get zeros
    ),
    "what all keys are shifted by counts for nothing": ("mean_v", "lsh", "routing", *KERNELS),
    "the order of the keys counts for nothing": (
        "window.blocked", "strided", "fixed", "dilated", "longformer", "bigbird", "lsh", "moba",
        "linformer", "nystrom", "skyformer", "cosformer",
    ),
    "heads may share keys": ("routing",),  # each has centroids of its own
}  # fmt: skip


SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2), "kv_heads": st.integers(1, 3), "group": st.integers(1, 3),
        "length": st.integers(1, 41), "width": st.sampled_from([4, 6, 8]),
    }
)  # fmt: skip
SEEDS = st.integers(0, 999)


def problem_of(row, batch, kv_heads, group, length, width):
    """A small problem as this row takes it."""
    masks = row.on("cpu", "masks")
    mask = next(m for m in ("none", "causal", "window") if m in masks)
    mask = "window:3,2" if row.name == "window.blocked" else mask
    heads, n, d = kv_heads * (group if row.gqa else 1), length, width
    return Problem(batch, heads, kv_heads, n, n, d, d, "float64", Mask.parse(mask))


searched = settings(max_examples=6)


def built(row, problem):
    assert row.supports(problem) is None
    return both_forms(row.label, problem)[0]


def near(got, want, most=1e-9):
    torch.testing.assert_close(got, want, rtol=most, atol=most * max(1.0, float(want.abs().max())))


def test_rows_are_only_left_out_for_what_they_need():
    assert {name for names in EXCUSED.values() for name in names} <= set(ROWS)
    left = {n for n, r in TABLE.rows.items() if r.level == "core" and "cpu" in r.devices} - {*ROWS}
    assert left == {"numpy", "compiled", "flex", "window.flex", "blocksparse.flex", "natten",
                    "onnxruntime",
                    "cache.sdpa", "cache.online",
                    "ring", "ulysses", "retention", "gla", "delta", "ssd", "gated_delta",
                    "kda", "nsa", "dsa"}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@searched
@given(shape=SHAPES, seed=SEEDS, scale=st.floats(-3, 3))
def test_a_row_has_the_properties_that_it_is_not_excused_from(name, shape, seed, scale):
    mixes, shifts, order_is_free, shares = (name not in names for names in EXCUSED.values())
    row, generator = ROWS[name], torch.Generator().manual_seed(seed)
    problem = problem_of(row, **shape)
    q, k, v = inputs(problem, seed=seed)
    other = inputs(problem, seed=seed + 1)[2]
    attend = built(row, problem)
    out = attend(q, k, v).clone()
    near(attend(q, k, v + scale * other), out + scale * attend(q, k, other).clone())
    if mixes:
        low, high = (end(2, True).repeat_interleave(problem.group, 1) for end in (v.amin, v.amax))
        assert bool(((out >= low - 1e-9) & (out <= high + 1e-9)).all())
        near(attend(q, k, torch.ones_like(v)), torch.ones_like(out))
    if shifts:
        near(attend(q, k + torch.linspace(-1, 1, problem.head_dim, dtype=k.dtype), v), out)
    if order_is_free:
        order = torch.randperm(problem.kv_len, generator=generator)
        near(attend(q, k[:, :, order].contiguous(), v[:, :, order].contiguous()), out)
    if shares:
        repeated = (x.repeat_interleave(problem.group, 1) for x in (k, v))
        near(built(row, problem.with_(kv_heads=problem.heads))(q, *repeated), out)


LIMITS = {
    "topk?k=41": 1e-9, "lsh?bucket=41&rounds=1": 1e-9, "lsh?bucket=50&rounds=3": 1e-9,
    "routing?clusters=1": 1e-9, "linformer?rank=41": 1e-9, "longformer?window=82": 1e-9,
    "strided?stride=41": 1e-9, "fixed?stride=41": 1e-9, "dilated?dilation=1&width=41": 1e-9,
    "bigbird?block=41": 1e-9, "moba?block=8&top=6": 1e-9,
    "nystrom?landmarks=41&iterations=0": 1e-3,  # the inverse of a nearly singular softmax matrix
}  # fmt: skip


@pytest.mark.parametrize("label", LIMITS)
@searched
@given(shape=SHAPES, seed=SEEDS)
def test_with_all_that_there_is_it_is_softmax_attention(label, shape, seed):
    row, exact = TABLE.find(label), TABLE.rows["matmul"]
    problem = problem_of(row, **shape)
    q, k, v = inputs(problem, seed=seed)
    near(built(row, problem)(q, k, v), built(exact, problem)(q, k, v), LIMITS[label])


TUNABLE_ROWS = [
    row
    for row in TABLE.rows.values()
    if "cpu" in row.devices
    and (not row.requires or row.name == "blocksparse.flex")
    and not row.ranks  # those are asked in their own tests
]
NUMBERS = ("0", "99")
COMPILED = [r.name for r in TABLE.rows.values() if "c++" in r.requires]


def values(row, name):
    """Values to try for an option: numbers out of any range, words that mean nothing."""
    default = row.options[name]
    if isinstance(default, bool):
        return []
    if name == "seed":  # any is served
        return ["-1"]
    if isinstance(default, int | float):
        slow = row.name in COMPILED or name == "iterations"
        return [v for v in NUMBERS if not slow or v != "99"]
    return [] if name == "core" else ["nonsense", "/nowhere/to/be/found.npy"]


CASES = [(r.name, name, v) for r in TUNABLE_ROWS for name in r.options for v in values(r, name)]


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_an_option_out_of_range_is_refused_or_served_rightly(name, option, value):
    row = TABLE.find(f"{name}?{option}={value}")
    masks = row.on("cpu", "masks")
    mask = "causal" if "causal" in masks else "none"
    mask = "window:9,0" if name.startswith("window.") else mask
    phase = "train" if "train" in row.on("cpu", "phases") else "forward"
    extent = {"batch": 1, "heads": 2, "kv_heads": 2, "v_head_dim": 16, "dtype": "float32"}
    if "kv_dtype" in row.takes:
        phase, extent = "decode", {**extent, "kv_dtype": "int8"}
    p = problem(mask, 37, phase=phase, level=row.level, **extent)
    try:
        result = verdict(row.label, p)
    except Unsupported as refusal:
        message = str(refusal)
        assert value in message, message
        assert len(message.split()) >= 4, message
        if row.definition and row.level == "core":  # it is build alone that refuses
            load_function(row.definition)(p, **row.chosen)
        load_function(row.cost)(p, **row.chosen)
    else:
        assert result.reason is None
