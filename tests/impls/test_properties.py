"""What must hold of every row that has a property, whatever the shape: a shape that breaks it is
looked for. A row that lacks a property is named, with the reason; a new row has all of them until
somebody says why not.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import inputs

# Options that make a few dozen tokens several blocks, chunks, landmarks or clusters.
SMALL = {
    "chunked": "block=5", "online": "q_block=4&k_block=3", "window.blocked": "block=4",
    "strided": "stride=4", "fixed": "stride=4&summary=2", "dilated": "dilation=2&width=6",
    "longformer": "window=4&globals=2", "bigbird": "block=4&globals=1&random=1",
    "topk": "k=3", "lsh": "rounds=2&bucket=8", "routing": "clusters=3",
    "linformer": "rank=4", "nystrom": "landmarks=4", "performer": "features=16&chunk=4",
    "rfa": "features=16&chunk=4", "skyformer": "landmarks=6", "linear.identity": "chunk=4",
    "linear.elu": "chunk=4", "cosformer": "chunk=4", "linear.taylor": "features=3&chunk=4",
    "hedgehog": "chunk=4", "cosine": "chunk=4", "retention": "chunk=4", "gla": "chunk=4",
    "delta": "chunk=4", "ssd": "chunk=4",
}  # fmt: skip

TABLE = impls.table()
ROWS = {
    row.name: TABLE.find(f"{row.name}?{SMALL[row.name]}" if row.name in SMALL else row.name)
    for row in TABLE.rows.values()
    if row.level == "core"
    and "cpu" in row.devices
    and "float64" in row.on("cpu", "dtypes")
    and not row.requires
    and not row.ranks
}
SIGNED = "its weights may be negative"
STATE = "its weights do not sum to one"
MIXED = "its weights are those of mixtures of tokens, and may be negative"
OWN_KERNEL = "its kernel is not the exponential of a product"

NO_HULL = {
    "nystrom": MIXED, "skyformer": MIXED, "rfa": SIGNED, "linear.identity": SIGNED,
    "cosine": SIGNED, "retention": STATE, "gla": STATE, "delta": STATE, "ssd": STATE,
    "routing": "a query that no cluster takes gives zeros",
    "cosformer": "a query whose features are all zero gives zeros",
}  # fmt: skip
NO_SHIFT = {
    "mean_v": "it never looks at the keys, so there is nothing to show",
    **dict.fromkeys(("lsh", "routing"), "what is picked depends on the direction of the keys"),
    **dict.fromkeys(("linformer",), "the shift goes through the projection"),
    **dict.fromkeys(
        ("nystrom", "skyformer", "rfa", "performer", "linear.identity", "linear.elu", "cosformer",
         "linear.taylor", "hedgehog", "cosine", "retention", "gla", "delta", "ssd"),
        OWN_KERNEL,
    ),
}  # fmt: skip
NO_PERMUTATION = dict.fromkeys(
    ("window.blocked", "strided", "fixed", "dilated", "longformer", "bigbird", "lsh", "linformer",
     "nystrom", "skyformer", "cosformer", "retention", "gla", "delta", "ssd"),
    "it uses positions",
)  # fmt: skip
NO_REPEAT = dict.fromkeys(
    ("routing", "retention", "gla", "delta", "ssd"),
    "each key/value head has centroids, a rate or gates of its own",
)


@dataclass(frozen=True)
class Shape:
    """A small problem's extent, and the seed of its inputs."""

    batch: int
    kv_heads: int
    group: int
    length: int
    width: int
    seed: int

    def problem(self, row, **changes):
        """The problem as this row takes it."""
        masks = row.on("cpu", "masks")
        mask = next(m for m in ("none", "causal", "window") if m in masks)
        if row.name == "window.blocked":
            mask = "window"
        heads, n, d = self.kv_heads * (self.group if row.gqa else 1), self.length, self.width
        extent = {"batch": self.batch, "heads": heads, "kv_heads": self.kv_heads, "q_len": n}
        extent |= {"kv_len": n, "head_dim": d, "v_head_dim": d, "dtype": "float64"}
        spelled = mask + ":3,2" * (mask == "window")
        return Problem(**{**extent, "mask": Mask.parse(spelled), **changes})


SHAPES = st.builds(
    Shape,
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 41),
    st.sampled_from([4, 6, 8]),
    st.integers(0, 999),
)
searched = settings(max_examples=8, deadline=None)


def built(row, problem):
    assert row.supports(problem) is None
    return load_function(row.build)(problem, **row.chosen)


def with_property(without):
    """The rows that have it; the names that lack it must exist."""
    assert set(without) <= set(ROWS), sorted(set(without) - set(ROWS))
    return pytest.mark.parametrize("name", [n for n in ROWS if n not in without])


def near(got, want, most=1e-9):
    torch.testing.assert_close(got, want, rtol=most, atol=most * max(1.0, float(want.abs().max())))


def test_rows_are_only_left_out_for_what_they_need():
    left = {n for n, row in TABLE.rows.items() if row.level == "core" and n not in ROWS}
    outside = {n for n in left if "cpu" not in TABLE.rows[n].devices}
    tried_elsewhere = {"numpy", "compiled", "flex", "window.flex", "blocksparse.flex", "natten"}
    tried_elsewhere |= {"ring", "ulysses"}
    assert left - outside == tried_elsewhere


@with_property(NO_HULL)
@searched
@given(shape=SHAPES)
def test_every_output_lies_between_the_smallest_and_the_largest_value(name, shape):
    problem = shape.problem(ROWS[name])
    q, k, v = inputs(problem, seed=shape.seed)
    out = built(ROWS[name], problem)(q, k, v)
    low, high = (x.repeat_interleave(problem.group, 1) for x in (v.amin(2, True), v.amax(2, True)))
    assert bool(((out >= low - 1e-9) & (out <= high + 1e-9)).all())
    ones = built(ROWS[name], problem)(q, k, torch.ones_like(v))
    near(ones, torch.ones_like(ones))


@with_property({})
@searched
@given(shape=SHAPES, scale=st.floats(-3, 3))
def test_the_output_is_linear_in_the_values(name, shape, scale):
    problem = shape.problem(ROWS[name])
    q, k, v = inputs(problem, seed=shape.seed)
    other = inputs(problem, seed=shape.seed + 1)[2]
    attend = built(ROWS[name], problem)
    one, two = attend(q, k, v).clone(), attend(q, k, other).clone()
    near(attend(q, k, v + scale * other), one + scale * two)


@with_property(NO_PERMUTATION)
@searched
@given(shape=SHAPES)
def test_the_order_of_keys_does_not_matter_where_no_position_is_used(name, shape):
    problem = shape.problem(ROWS[name])
    q, k, v = inputs(problem, seed=shape.seed)
    order = torch.randperm(problem.kv_len, generator=torch.Generator().manual_seed(shape.seed))
    attend = built(ROWS[name], problem)
    want = attend(q, k, v).clone()
    near(attend(q, k[:, :, order].contiguous(), v[:, :, order].contiguous()), want)


@with_property(NO_SHIFT)
@searched
@given(shape=SHAPES)
def test_all_keys_moved_by_one_vector_change_nothing(name, shape):
    problem = shape.problem(ROWS[name])
    q, k, v = inputs(problem, seed=shape.seed)
    away = torch.linspace(-1, 1, problem.head_dim, dtype=torch.float64)
    attend = built(ROWS[name], problem)
    want = attend(q, k, v).clone()
    near(attend(q, k + away, v), want)


@with_property(NO_REPEAT)
@searched
@given(shape=SHAPES)
def test_grouped_heads_are_keys_and_values_repeated(name, shape):
    row = ROWS[name]
    problem = shape.problem(row)
    q, k, v = inputs(problem, seed=shape.seed)
    whole = problem.with_(kv_heads=problem.heads)
    repeated = (x.repeat_interleave(problem.group, 1) for x in (k, v))
    near(built(row, problem)(q, k, v), built(row, whole)(q, *repeated))


CAUSAL = [n for n, row in ROWS.items() if "causal" in row.on("cpu", "masks")]


@pytest.mark.parametrize("name", CAUSAL)
@searched
@given(shape=SHAPES, data=st.data())
def test_no_causal_row_moves_by_a_bit_when_a_later_key_does(name, shape, data):
    row = ROWS[name]
    text = "causal+window:5,0" if name == "window.blocked" else "causal"
    problem = shape.problem(row, mask=Mask.parse(text))
    q, k, v = inputs(problem, seed=shape.seed)
    key = data.draw(st.integers(0, problem.kv_len - 1))
    attend = built(row, problem)
    before = attend(q, k, v).clone()
    k[:, :, key] = -3.0 * k[:, :, key] - 1.0
    v[:, :, key] = 100.0
    assert torch.equal(attend(q, k, v)[:, :, :key], before[:, :, :key])


def _steps(row, problem, q, k, v):
    """Token after token from an empty memory, as a decoder runs."""
    one = problem.with_(q_len=1, phase="decode")
    attend = built(row, one.with_(kv_len=problem.kv_len))
    memory, outs = attend.remember(k[:, :, :0], v[:, :, :0]), []
    for i in range(problem.q_len):
        now = slice(i, i + 1)
        out, memory = attend.step(q[:, :, now], k[:, :, now], v[:, :, now], memory)
        outs.append(out)
    return torch.cat(outs, 2)


def _has_step(row):
    if "decode" not in row.on("cpu", "phases") or "causal" not in row.on("cpu", "masks"):
        return False
    text = "causal+window:5,0" if row.name == "window.blocked" else "causal"
    problem = Problem(1, 1, 1, 1, 9, 4, 4, "float64", Mask.parse(text), "decode")
    return hasattr(built(row, problem), "step")


RECURRENT = [n for n, row in ROWS.items() if _has_step(row)]
RELATIVE_LENGTH = {"cosformer": "its cosine is of the distance over the length, which grows"}


def test_the_linear_family_decodes_from_a_state():
    family = {n for n, row in ROWS.items() if row.family == "linear"}
    assert family - set(RECURRENT) <= {"cosine"}
    assert {"performer", "rfa"} <= set(RECURRENT)


@pytest.mark.parametrize("name", [n for n in RECURRENT if n not in RELATIVE_LENGTH])
@searched
@given(shape=SHAPES, chunk=st.integers(1, 50))
def test_chunked_is_recurrent_for_every_chunk(name, shape, chunk):
    row = ROWS[name].with_options({"chunk": str(chunk)})
    problem = shape.problem(row, mask=Mask.parse("causal"))
    q, k, v = inputs(problem, seed=shape.seed)
    near(built(row, problem)(q, k, v), _steps(row, problem, q, k, v), 1e-8)


# ---- at their limit they are exact softmax attention ---------------------------------------------

LIMITS = {
    "topk?k=41": 1e-9, "lsh?bucket=41&rounds=1": 1e-9, "lsh?bucket=50&rounds=3": 1e-9,
    "routing?clusters=1": 1e-9, "linformer?rank=41": 1e-9, "longformer?window=82": 1e-9,
    "strided?stride=41": 1e-9, "fixed?stride=41": 1e-9, "dilated?dilation=1&width=41": 1e-9,
    "bigbird?block=41": 1e-9,
    "nystrom?landmarks=41&iterations=0": 1e-3,  # the inverse of a nearly singular softmax matrix
}  # fmt: skip


@pytest.mark.parametrize("label", LIMITS)
@searched
@given(shape=SHAPES)
def test_with_all_that_there_is_it_is_softmax_attention(label, shape):
    row, exact = TABLE.find(label), TABLE.rows["matmul"]
    problem = shape.problem(row)
    q, k, v = inputs(problem, seed=shape.seed)
    near(built(row, problem)(q, k, v), built(exact, problem)(q, k, v), LIMITS[label])
