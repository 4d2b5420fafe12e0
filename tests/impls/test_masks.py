"""Masks against a double loop over queries and keys."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from impls.masks import Mask, Shape

EXAMPLES = settings(max_examples=80, deadline=None)
FEW = settings(max_examples=25, deadline=None)


# ---- what a row sees, against the double loop ----------------------------------------------------


def _table(draw, shape, values):
    """An array that broadcasts to the shape, of one to four dimensions."""
    dims = draw(st.integers(1, 4))
    extent = [draw(st.sampled_from([1, n])) for n in shape[4 - dims :]]
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).choice(values, size=extent)


def _lengths_of_documents(draw, total):
    cuts = sorted(draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    edges = [0, *cuts, total]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def _payload(draw, kind, shape):
    match kind:
        case "window":
            return draw(st.tuples(st.integers(0, 10), st.integers(0, 10)))
        case "prefix":
            return (draw(st.integers(1, shape.kv_len)),)
        case "document":
            return _lengths_of_documents(draw, shape.kv_len)
        case "padding":
            lengths = st.integers(0, shape.kv_len)
            many = draw(st.sampled_from([1, shape.batch]))
            return tuple(draw(st.lists(lengths, min_size=many, max_size=many)))
        case "dense":
            return _table(draw, shape, [True, False])
        case "bias":
            return _table(draw, shape, [-np.inf, 0.0, 1.5, -2.25])
    return ()


@st.composite
def worlds(draw, files=True):
    """A shape, the conditions of a mask that fits it, and the corner."""
    length = st.integers(1, 9)
    q_len = draw(length)
    kv_len = q_len if draw(st.booleans()) else draw(length)
    shape = Shape(draw(st.integers(1, 3)), draw(st.integers(1, 4)), q_len, kv_len)
    kinds = ["causal", "window", "prefix", "padding", "alibi"]
    kinds += ["document"] * (q_len == kv_len) + ["dense", "bias"] * files
    chosen = draw(st.lists(st.sampled_from(kinds), unique=True, max_size=3))
    conditions = [(kind, _payload(draw, kind, shape)) for kind in chosen]
    return shape, conditions, draw(st.booleans())


def _mask(brute, world):
    shape, conditions, upper_left = world
    mask = Mask.parse(brute.text(conditions, upper_left))
    assert mask.wrong_for(shape) is None
    return mask, shape, brute.visible(conditions, shape, upper_left)


def _full(array, shape):
    """The array over the whole batch and all heads; its own extent there must be 1 or all."""
    assert array.shape[0] in (1, shape.batch)
    assert array.shape[1] in (1, shape.heads)
    return np.broadcast_to(array, (shape.batch, shape.heads, *array.shape[2:]))


@EXAMPLES
@given(world=worlds(), data=st.data())
def test_a_mask_sees_what_the_double_loop_sees_whole_and_in_part(brute, world, data):
    mask, shape, seen = _mask(brute, world)
    assert Mask.parse(str(mask)) == mask
    assert mask.kinds == (tuple(kind for kind, _ in world[1]) or ("none",))
    visible = mask.visible(shape)
    assert visible.dtype == bool
    np.testing.assert_array_equal(_full(visible, shape), seen)
    rows = data.draw(st.lists(st.integers(0, shape.q_len - 1), min_size=1, max_size=5))
    some = mask.visible(shape, np.array(rows))
    np.testing.assert_array_equal(_full(some, shape), seen[:, :, rows])
    key = data.draw(st.integers(0, shape.kv_len - 1))
    np.testing.assert_array_equal(_full(mask.sees(shape, key), shape), seen[..., key])
    np.testing.assert_array_equal(_full(mask.blind_rows(shape), shape), ~seen.any(-1))
    assert mask.pairs(shape) == int(seen.sum())
    assert mask.keys_seen(shape) == int(seen.any((1, 2)).sum())
    first, past = mask.spans(shape)
    key = np.arange(shape.kv_len)
    inside = (key >= first[..., None]) & (key < past[..., None])
    assert not (seen & ~inside[:, None]).any()


@EXAMPLES
@given(world=worlds(files=False), data=st.data())
def test_spans_hold_exactly_the_visible_keys(brute, world, data):
    mask, shape, seen = _mask(brute, world)
    rows = data.draw(st.none() | st.lists(st.integers(0, shape.q_len - 1), min_size=1, max_size=5))
    picked = range(shape.q_len) if rows is None else rows
    first, past = mask.spans(shape, None if rows is None else np.array(rows))
    assert first.shape == past.shape
    assert first.shape[0] in (1, shape.batch)
    assert first.shape[1] == len(picked)
    for b in range(shape.batch):
        element = b if first.shape[0] > 1 else 0
        for place, row in enumerate(picked):
            low, high = first[element, place], past[element, place]
            assert 0 <= low <= high <= shape.kv_len
            assert np.flatnonzero(seen[b, 0, row]).tolist() == list(range(low, high))


@EXAMPLES
@given(world=worlds(), data=st.data())
def test_bias_is_what_the_double_loop_adds(brute, world, data):
    mask, shape, _ = _mask(brute, world)
    _, conditions, upper_left = world
    rows = data.draw(st.none() | st.lists(st.integers(0, shape.q_len - 1), min_size=1, max_size=5))
    added = mask.bias(shape, None if rows is None else np.array(rows))
    if not {"alibi", "bias"} & set(mask.kinds):
        assert added is None
        return
    expected = brute.bias(conditions, shape, upper_left)
    expected = expected if rows is None else expected[:, :, rows]
    np.testing.assert_allclose(_full(added, shape), expected, rtol=1e-14, atol=0)


# ---- FlexAttention -------------------------------------------------------------------------------


@FEW
@given(world=worlds())
def test_the_flex_mask_is_the_visible_pairs(brute, world):
    mask, shape, seen = _mask(brute, world)
    modifier = mask.flex_mask(shape, "cpu")
    if modifier is None:
        assert seen.all()
        return
    np.testing.assert_array_equal(create_mask(modifier, *shape, device="cpu").numpy(), seen)


@FEW
@given(world=worlds())
def test_the_flex_score_adds_the_bias(brute, world):
    mask, shape, _ = _mask(brute, world)
    _, conditions, upper_left = world
    modifier = mask.flex_score(shape, "cpu")
    if modifier is None:
        assert not {"alibi", "bias"} & set(mask.kinds)
        return
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis in range(3, -1, -1):
        dims = [None] * 5
        dims[1 + axis], dims[0] = 0, 0
        modifier = torch.vmap(modifier, in_dims=tuple(dims))
    index = [torch.arange(n) for n in shape]
    expected = scores.numpy() + brute.bias(conditions, shape, upper_left)
    np.testing.assert_allclose(modifier(scores, *index).numpy(), expected, rtol=1e-6, atol=1e-6)
