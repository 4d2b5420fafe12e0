"""Masks against every pair of a query and a key and by hand; spellings, and what is none."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from impls.masks import InvalidMask, Mask, Shape, alibi_slopes
from tests.brute import bias, saved, visible


def _table(draw, shape, values):
    """An array that broadcasts to the shape, of one to four dimensions."""
    dims = draw(st.integers(1, 4))
    extent = [draw(st.sampled_from([1, n])) for n in shape[4 - dims :]]
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).choice(values, size=extent)


def _spelled(draw, kind, shape):
    match kind:
        case "window":
            numbers = draw(st.tuples(st.integers(0, 10), st.integers(0, 10)))
        case "chunk":
            numbers = [draw(st.integers(1, 10))]
        case "prefix":
            numbers = [draw(st.integers(1, shape.kv_len))]
        case "document" | "blocks":
            total = shape.kv_len
            cuts = sorted(draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
            numbers = [b - a for a, b in itertools.pairwise([0, *cuts, total])]
            if kind == "blocks":
                runs = [(n, len([*run])) for n, run in itertools.groupby(numbers)]
                numbers = [f"{n}x{many}" if many > 1 else n for n, many in runs]
        case "padding" | "leftpad":
            lengths = st.integers(0, shape.kv_len)
            many = draw(st.sampled_from([1, shape.batch]))
            numbers = draw(st.lists(lengths, min_size=many, max_size=many))
        case "dense":
            return saved(kind, _table(draw, shape, [True, False]))
        case "bias":
            return saved(kind, _table(draw, shape, [-np.inf, 0.0, 1.5, -2.25]))
        case _:
            return kind
    return f"{kind}:{','.join(map(str, numbers))}"


@st.composite
def worlds(draw):
    """A shape, a mask that fits it, and the pairs that it lets meet."""
    length = st.integers(1, 9)
    q_len = draw(length)
    kv_len = q_len if draw(st.booleans()) else draw(length)
    shape = Shape(draw(st.integers(1, 3)), draw(st.integers(1, 4)), q_len, kv_len)
    kinds = ["causal", "window", "chunk", "prefix", "blocks", "padding", "leftpad", "alibi"]
    kinds += ["document"] * (q_len == kv_len) + ["dense", "bias"]
    picks = draw(st.lists(st.sampled_from(kinds), unique=True, max_size=3))
    text = "+".join(_spelled(draw, kind, shape) for kind in picks) or "none"
    text += draw(st.sampled_from(["", "@upper-left"]))
    mask = Mask.parse(text)
    assert str(mask) == text and hash(mask) == hash(Mask.parse(text))
    assert mask.kinds == (tuple(picks) or ("none",))
    assert mask.wrong_for(shape) is None
    return mask, shape, visible(text, shape)


def _full(array, shape):
    """The array over the whole batch and all heads; its own extent there must be 1 or all."""
    assert array.shape[0] in (1, shape.batch)
    assert array.shape[1] in (1, shape.heads)
    return np.broadcast_to(array, (shape.batch, shape.heads, *array.shape[2:]))


@settings(max_examples=80)
@given(world=worlds(), data=st.data())
def test_a_mask_sees_and_adds_what_each_pair_does_and_its_spans_enclose_what_it_sees(world, data):
    mask, shape, pairs = world
    assert mask.visible(shape).dtype == bool
    np.testing.assert_array_equal(_full(mask.visible(shape), shape), pairs)
    key = data.draw(st.integers(0, shape.kv_len - 1))
    np.testing.assert_array_equal(_full(mask.sees(shape, key), shape), pairs[..., key])
    np.testing.assert_array_equal(_full(mask.blind_rows(shape), shape), ~pairs.any(-1))
    assert mask.pairs(shape) == int(pairs.sum())
    assert mask.keys_seen(shape) == int(pairs.any((1, 2)).sum())
    added, total = mask.bias(shape), bias(str(mask), shape)
    assert (added is None) == (not {"alibi", "bias"} & set(mask.kinds))
    if added is not None:
        np.testing.assert_allclose(_full(added, shape), total, rtol=1e-14, atol=0)
    rows = np.array(data.draw(st.lists(st.integers(0, shape.q_len - 1), min_size=1, max_size=5)))
    np.testing.assert_array_equal(_full(mask.visible(shape, rows), shape), pairs[:, :, rows])
    if added is not None:
        some = _full(mask.bias(shape, rows), shape)
        np.testing.assert_allclose(some, total[:, :, rows], rtol=1e-14, atol=0)
    for some, sees in ((None, pairs), (rows, pairs[:, :, rows])):
        spans, extent = mask.spans(shape, some), (shape.batch, sees.shape[2])
        assert all(x.shape[0] in (1, shape.batch) and x.shape[1:] == extent[1:] for x in spans)
        first, past = (np.broadcast_to(x, extent)[:, None, :, None] for x in spans)
        assert ((first >= 0) & (first <= past) & (past <= shape.kv_len)).all()
        inside = (np.arange(shape.kv_len) >= first) & (np.arange(shape.kv_len) < past)
        assert not (sees & ~inside).any()
        if not {"dense", "bias"} & set(mask.kinds):  # these hold others too
            np.testing.assert_array_equal(np.broadcast_to(inside, sees.shape), sees)


@pytest.mark.parametrize("lengths", ["lognormal", "exponential", "equal"])
def test_packed_documents_are_drawn_anew_for_each_batch_element(lengths):
    shape = Shape(3, 1, 4096, 4096)
    mask = Mask.parse(f"packed:{lengths},100,7")
    first, past = mask.spans(shape)
    assert str(mask) == f"packed:{lengths},100,7"
    for low, high in zip(first, past, strict=True):
        edges = sorted({*low.tolist(), 4096})
        documents = list(itertools.pairwise(edges))
        want = np.concatenate([np.full(b - a, a) for a, b in documents])
        np.testing.assert_array_equal(low, want)
        np.testing.assert_array_equal(high, np.repeat([b for _, b in documents], np.diff(edges)))
        mean = 4096 / len(documents)
        assert mean == pytest.approx(100, rel=0.02 if lengths == "equal" else 0.5)
    differ = (first[0] != first[1]).any() and (first[1] != first[2]).any()
    assert differ == (lengths != "equal")
    again = Mask.parse(f"packed:{lengths},100,8").spans(shape)[0]
    assert (again != first).any() == (lengths != "equal")


@settings(max_examples=25)
@given(world=worlds())
def test_the_flex_mask_is_the_visible_pairs_and_the_flex_score_adds_the_bias(world):
    mask, shape, pairs = world
    modifier = mask.flex_mask(shape, "cpu")
    if modifier is None:
        assert pairs.all()
    else:
        np.testing.assert_array_equal(create_mask(modifier, *shape, device="cpu").numpy(), pairs)
    modifier = mask.flex_score(shape, "cpu")
    assert (modifier is None) == (not {"alibi", "bias"} & set(mask.kinds))
    if modifier is None:
        return
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis in range(3, -1, -1):
        dims = [None] * 5
        dims[1 + axis], dims[0] = 0, 0
        modifier = torch.vmap(modifier, in_dims=tuple(dims))
    index = [torch.arange(n) for n in shape]
    expected = scores.numpy() + bias(str(mask), shape)
    np.testing.assert_allclose(modifier(scores, *index).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_counting_at_a_million_tokens_needs_no_square():
    n = 10**6
    shape = Shape(2, 3, n, n)
    assert Mask.parse("causal").pairs(shape) == 6 * n * (n + 1) // 2
    assert Mask.parse("causal+window:99,5").pairs(shape) == 6 * (100 * n - 99 * 100 // 2)
    assert Mask.parse("padding:0,7").keys_seen(shape) == 7
    assert Mask.parse("causal").visible(shape, np.array([n - 1])).shape == (1, 1, 1, n)


def test_alibi_slopes_follow_the_rule_of_the_paper():
    eight = [2.0**-x for x in range(1, 9)]
    between = [1 / math.sqrt(2), 1 / math.sqrt(8), 1 / math.sqrt(32), 1 / math.sqrt(128)]
    for want in ([2**-8.0], [2**-4.0, 2**-8.0, 1 / 4], eight, eight + between):
        np.testing.assert_allclose(alibi_slopes(len(want)), want, rtol=1e-15)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the masks are none, causal, window"),
        ("causal+", "'' is no mask"),
        ("window:1,2+causal+window:3,4", "twice"),
        ("window", "window takes 2 numbers"),
        ("window:-1,2", "-1 is below 0"),
        ("prefix:2.5", "'2.5' is not whole numbers"),
        ("document:", "document takes at least one number"),
        ("dense", "dense needs a file, as in dense:FILE.npy"),
        ("causal@upper-left+alibi", "after @ comes upper-left or lower-right"),
    ],
)
def test_a_bad_spelling_is_refused_with_a_sentence(text, says):
    with pytest.raises(InvalidMask) as caught:
        Mask.parse(text)
    assert str(caught.value).startswith(f"mask {text!r}") and says in str(caught.value)


@pytest.mark.parametrize(
    ("mask", "says"),
    [  # that tests/goldens/refused.txt has not
        ("blocks:1x2,2", "add up to 4 tokens, but the problem has 5 keys"),
        ("document:2,3", "add up to 5, but the problem has 3 queries and 5 keys"),
        ("prefix:6", "longer than kv_len=5"),
        (saved("dense", np.ones((3, 6), bool)), "(2, 4, 3, 5)"),
        (saved("dense", np.ones((3, 5))), "float64; a dense mask needs booleans"),
        (saved("bias", np.array(["a"])), "a bias mask needs numbers"),
    ],
    ids=lambda text: text.split(":")[0],  # no file: other processes have others
)
def test_a_mask_that_does_not_fit_says_why(mask, says):
    wrong = Mask.parse(mask).wrong_for(Shape(2, 4, 3, 5))
    assert wrong is not None and wrong.startswith(f"mask {mask}") and says in wrong
