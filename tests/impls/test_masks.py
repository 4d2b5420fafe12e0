"""Masks against a double loop over queries and keys."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from impls.masks import InvalidMask, Mask, Part, Shape, alibi_slopes
from impls.spec import MASK_KINDS

EXAMPLES = settings(max_examples=80, deadline=None)
FEW = settings(max_examples=25, deadline=None)


# ---- spelling ------------------------------------------------------------------------------------

SPELLINGS = {
    "none": Mask(),
    "causal": Mask((Part("causal"),)),
    "window:5,2": Mask((Part("window", (5, 2)),)),
    "window:0,0": Mask((Part("window", (0, 0)),)),
    "prefix:9": Mask((Part("prefix", (9,)),)),
    "document:5,12": Mask((Part("document", (5, 12)),)),
    "padding:0,17": Mask((Part("padding", (0, 17)),)),
    "padding:3": Mask((Part("padding", (3,)),)),
    "alibi": Mask((Part("alibi"),)),
    "dense:some/file.npy": Mask((Part("dense", file="some/file.npy"),)),
    "bias:C:/file.npy": Mask((Part("bias", file="C:/file.npy"),)),
    "causal+alibi": Mask((Part("causal"), Part("alibi"))),
    "causal+document:100,156": Mask((Part("causal"), Part("document", (100, 156)))),
    "causal@upper-left": Mask((Part("causal"),), upper_left=True),
    "window:1,0+alibi+padding:4@upper-left": Mask(
        (Part("window", (1, 0)), Part("alibi"), Part("padding", (4,))), upper_left=True
    ),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_spelling_is_parsed_into_its_conditions_and_written_back(text):
    mask = Mask.parse(text)
    assert mask == SPELLINGS[text]
    assert str(mask) == text
    assert hash(mask) == hash(Mask.parse(text))


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        (" causal ", "causal"),
        ("causal@lower-right", "causal"),
        ("none+causal", "causal"),
        ("window: 1, 2", "window:1,2"),
        ("padding:007", "padding:7"),
    ],
)
def test_a_loose_spelling_is_the_strict_one(loose, strict):
    assert Mask.parse(loose) == Mask.parse(strict)
    assert str(Mask.parse(loose)) == strict


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the masks are none, causal, window"),
        ("casual", "'casual' is no mask; the masks are none, causal, window"),
        ("Causal", "'Causal' is no mask"),
        ("causal+", "'' is no mask"),
        ("+causal", "'' is no mask"),
        ("causal,alibi", "'causal,alibi' is no mask"),
        ("causal+causal", "twice"),
        ("window:1,2+causal+window:3,4", "twice"),
        ("window", "window takes 2 numbers"),
        ("window:5", "window takes 2 numbers"),
        ("window:1,2,3", "window takes 2 numbers"),
        ("window:a,b", "'a,b' is not whole numbers"),
        ("window:1,", "'1,' is not whole numbers"),
        ("window:-1,2", "-1 is below 0"),
        ("prefix", "prefix takes 1 number"),
        ("prefix:1,2", "prefix takes 1 number"),
        ("prefix:0", "0 is below 1"),
        ("prefix:2.5", "'2.5' is not whole numbers"),
        ("document", "document takes at least one number"),
        ("document:", "document takes at least one number"),
        ("document:4,0", "0 is below 1"),
        ("padding", "padding takes at least one number"),
        ("padding:4,-1", "-1 is below 0"),
        ("causal:3", "causal takes 0 numbers"),
        ("alibi:2", "alibi takes 0 numbers"),
        ("none:3", "none takes 0 numbers"),
        ("dense", "dense needs a file, as in dense:FILE.npy"),
        ("bias:", "bias needs a file, as in bias:FILE.npy"),
        ("causal@", "after @ comes upper-left or lower-right"),
        ("causal@top-left", "after @ comes upper-left or lower-right"),
        ("causal@upper-left+alibi", "after @ comes upper-left or lower-right"),
        ("@upper-left", "'' is no mask"),
    ],
)
def test_a_bad_spelling_is_refused_with_a_sentence(text, says):
    with pytest.raises(InvalidMask) as caught:
        Mask.parse(text)
    assert str(caught.value).startswith(f"mask {text!r}")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kinds", "plain"),
    [
        ("none", ("none",), True),
        ("none@upper-left", ("none",), True),
        ("alibi", ("alibi",), False),
        ("causal+window:1,2", ("causal", "window"), False),
    ],
)
def test_a_mask_names_its_kinds(text, kinds, plain):
    assert Mask.parse(text).kinds == kinds
    assert Mask.parse(text).plain is plain


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (("alibi",), "alibi@upper-left"),
        (("window", "causal"), "causal+window:1,2@upper-left"),
        (("bias",), "none@upper-left"),
    ],
)
def test_only_keeps_the_conditions_of_the_kinds_named_and_the_corner(kinds, left):
    assert str(Mask.parse("causal+window:1,2+alibi@upper-left").only(*kinds)) == left


@pytest.mark.parametrize(
    ("text", "q_len", "kv_len", "expected"),
    [
        ("causal", 4, 4, True),
        ("causal", 4, 5, False),
        ("causal@upper-left", 4, 4, True),
        ("causal@upper-left", 4, 5, True),
        ("causal+alibi", 4, 4, False),
        ("none", 4, 4, False),
    ],
)
def test_is_causal_only_for_the_causal_mask_that_both_corners_read_alike(
    text, q_len, kv_len, expected
):
    assert Mask.parse(text).is_causal(Shape(1, 1, q_len, kv_len)) is expected


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
@given(world=worlds())
def test_any_mask_survives_its_own_spelling(brute, world):
    _, conditions, upper_left = world
    text = brute.text(conditions, upper_left)
    assert str(Mask.parse(text)) == text
    assert Mask.parse(text).kinds == (tuple(kind for kind, _ in conditions) or ("none",))


@EXAMPLES
@given(world=worlds())
def test_visible_is_what_the_double_loop_sees(brute, world):
    mask, shape, seen = _mask(brute, world)
    visible = mask.visible(shape)
    assert visible.dtype == bool
    np.testing.assert_array_equal(_full(visible, shape), seen)


@EXAMPLES
@given(world=worlds(), data=st.data())
def test_visible_of_some_rows_is_those_rows_of_the_whole(brute, world, data):
    mask, shape, seen = _mask(brute, world)
    rows = data.draw(st.lists(st.integers(0, shape.q_len - 1), min_size=1, max_size=5))
    visible = mask.visible(shape, np.array(rows))
    np.testing.assert_array_equal(_full(visible, shape), seen[:, :, rows])


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
@given(world=worlds())
def test_spans_enclose_what_a_file_leaves_visible(brute, world):
    mask, shape, seen = _mask(brute, world)
    first, past = mask.spans(shape)
    key = np.arange(shape.kv_len)
    inside = (key >= first[..., None]) & (key < past[..., None])
    assert not (seen & ~inside[:, None]).any()


@EXAMPLES
@given(world=worlds(), data=st.data())
def test_sees_names_the_rows_that_may_see_a_key(brute, world, data):
    mask, shape, seen = _mask(brute, world)
    key = data.draw(st.integers(0, shape.kv_len - 1))
    np.testing.assert_array_equal(_full(mask.sees(shape, key), shape), seen[..., key])


@EXAMPLES
@given(world=worlds())
def test_blind_rows_see_no_key(brute, world):
    mask, shape, seen = _mask(brute, world)
    np.testing.assert_array_equal(_full(mask.blind_rows(shape), shape), ~seen.any(-1))


@EXAMPLES
@given(world=worlds())
def test_pairs_counts_the_visible_pairs_of_the_batch_and_the_heads(brute, world):
    mask, shape, seen = _mask(brute, world)
    assert mask.pairs(shape) == sum(bool(x) for x in seen.flat)


@EXAMPLES
@given(world=worlds())
def test_keys_seen_counts_the_keys_that_some_row_of_the_element_sees(brute, world):
    mask, shape, seen = _mask(brute, world)
    some = [seen[b, :, :, j].any() for b in range(shape.batch) for j in range(shape.kv_len)]
    assert mask.keys_seen(shape) == sum(some)


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


# ---- examples worked out by hand -----------------------------------------------------------------


def _drawn(text, q_len, kv_len):
    seen = Mask.parse(text).visible(Shape(1, 1, q_len, kv_len))[0, 0]
    return ["".join("x" if s else "." for s in row) for row in seen]


@pytest.mark.parametrize(
    ("text", "q_len", "kv_len", "picture"),
    [
        ("causal", 2, 4, ["xxx.", "xxxx"]),
        ("causal@upper-left", 2, 4, ["x...", "xx.."]),
        ("causal", 4, 2, ["..", "..", "x.", "xx"]),
        ("causal@upper-left", 4, 2, ["x.", "xx", "xx", "xx"]),
        ("window:1,0", 3, 3, ["x..", "xx.", ".xx"]),
        ("window:0,1", 3, 3, ["xx.", ".xx", "..x"]),
        ("window:1,1", 2, 4, [".xxx", "..xx"]),
        ("window:1,1", 4, 2, ["..", "x.", "xx", "xx"]),
        ("window:0,0@upper-left", 3, 2, ["x.", ".x", ".."]),
        ("prefix:2", 4, 4, ["xx..", "xx..", "xxx.", "xxxx"]),
        ("prefix:1", 3, 2, ["x.", "x.", "xx"]),
        ("document:1,2", 3, 3, ["x..", ".xx", ".xx"]),
        ("causal+document:1,2", 3, 3, ["x..", ".x.", ".xx"]),
        ("causal+prefix:2", 3, 3, ["x..", "xx.", "xxx"]),
        ("padding:2", 2, 3, ["xx.", "xx."]),
        ("causal+padding:0", 2, 2, ["..", ".."]),
        ("alibi", 2, 2, ["xx", "xx"]),
    ],
)
def test_a_mask_looks_as_drawn(text, q_len, kv_len, picture):
    assert _drawn(text, q_len, kv_len) == picture


BY_HEAD = np.array(
    [
        [[True, False, False], [False, False, False]],
        [[False, False, False], [False, True, False]],
    ]
)  # two heads of two queries and three keys


@pytest.mark.parametrize("kind", ["dense", "bias"])
def test_a_file_may_differ_by_head(brute, kind):
    table = BY_HEAD if kind == "dense" else np.where(BY_HEAD, 0.5, -np.inf)
    mask, shape = Mask.parse(brute.text([(kind, table)])), Shape(5, 2, 2, 3)
    assert mask.pairs(shape) == 5 * 2
    assert mask.keys_seen(shape) == 5 * 2
    assert mask.blind_rows(shape).tolist() == [[[False, True], [True, False]]]
    assert mask.sees(shape, 1).tolist() == [[[False, False], [False, True]]]
    assert not mask.sees(shape, 2).any()


def test_a_file_may_differ_by_element(brute):
    table = np.array([[[[True, True]]], [[[False, True]]]])
    mask, shape = Mask.parse(brute.text([("dense", table), ("causal", ())])), Shape(2, 3, 2, 2)
    assert mask.pairs(shape) == 3 * (3 + 1)
    assert mask.keys_seen(shape) == 2 + 1
    assert mask.blind_rows(shape).tolist() == [[[False, False]], [[True, False]]]


def test_counting_at_a_million_tokens_needs_no_square():
    n = 10**6
    shape = Shape(2, 3, n, n)
    assert Mask.parse("causal").pairs(shape) == 6 * n * (n + 1) // 2
    assert Mask.parse("causal+window:99,5").pairs(shape) == 6 * (100 * n - 99 * 100 // 2)
    assert Mask.parse("padding:0,7").keys_seen(shape) == 7
    assert Mask.parse("causal").visible(shape, np.array([n - 1])).shape == (1, 1, 1, n)


SLOPES = {
    1: [2**-8.0],
    2: [2**-4.0, 2**-8.0],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [
        *[1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
        *[1 / math.sqrt(2), 1 / math.sqrt(8), 1 / math.sqrt(32), 1 / math.sqrt(128)],
    ],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_follow_the_rule_of_the_paper(heads):
    np.testing.assert_allclose(alibi_slopes(heads), SLOPES[heads], rtol=1e-15)


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_alibi_takes_off_a_slope_for_each_step_from_the_position(heads):
    lower = Mask.parse("alibi").bias(Shape(1, heads, 2, 3))
    upper = Mask.parse("alibi@upper-left").bias(Shape(1, heads, 2, 3))
    for h, slope in enumerate(SLOPES[heads]):
        np.testing.assert_allclose(lower[0, h], [[-slope, 0, -slope], [-2 * slope, -slope, 0]])
        np.testing.assert_allclose(upper[0, h], [[0, -slope, -2 * slope], [-slope, 0, -slope]])


def test_a_bias_file_and_alibi_are_added_together(brute):
    table = np.array([[0.5, -np.inf], [2.0, 0.0]])
    added = Mask.parse(brute.text([("alibi", ()), ("bias", table)])).bias(Shape(1, 2, 2, 2))
    slope = 1 / 16  # 2^(-8/2)
    np.testing.assert_allclose(added[0, 0], [[0.5, -np.inf], [2.0 - slope, 0.0]])


def test_a_bias_file_of_whole_numbers_is_taken_as_numbers(brute):
    mask = Mask.parse(brute.text([("bias", np.array([[1, -2]]))]))
    assert mask.wrong_for(Shape(1, 1, 2, 2)) is None
    np.testing.assert_array_equal(mask.bias(Shape(1, 1, 2, 2))[0, 0], [[1.0, -2.0]] * 2)


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


@pytest.mark.parametrize("text", ["none", "alibi", "none@upper-left", "alibi@upper-left"])
def test_there_is_no_flex_mask_where_every_key_is_seen(text):
    assert Mask.parse(text).flex_mask(Shape(1, 2, 3, 4), "cpu") is None


@pytest.mark.parametrize("text", ["none", "causal", "window:1,2+padding:3"])
def test_there_is_no_flex_score_where_nothing_is_added(text):
    assert Mask.parse(text).flex_score(Shape(1, 2, 3, 4), "cpu") is None


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


FLEX = {
    "causal+alibi": ([("causal", ())], 9, 9),
    "cross": ([("causal", ()), ("alibi", ())], 5, 9),
    "blind": ([("causal", ())], 9, 5),
    "padding": ([("padding", (0, 7)), ("alibi", ())], 9, 9),
    "bias": ([("bias", np.random.default_rng(3).choice([-np.inf, 0.5, -1.0], (2, 4, 9, 9)))], 9, 9),
}


@pytest.mark.parametrize("case", FLEX)
def test_flex_attention_under_both_forms_is_the_attention_of_the_double_loop(brute, case):
    conditions, q_len, kv_len = FLEX[case]
    shape = Shape(2, 4, q_len, kv_len)
    mask = Mask.parse(brute.text(conditions))
    torch.manual_seed(0)
    q = torch.randn(2, 4, q_len, 8)
    k, v = torch.randn(2, 2, 4, kv_len, 8)
    block_mask, modifier = None, mask.flex_mask(shape, "cpu")
    if modifier is not None:
        block_mask = create_block_mask(modifier, *shape, device="cpu")
    out = flex_attention(q, k, v, mask.flex_score(shape, "cpu"), block_mask)
    expected = brute.attention(
        *(x.double().numpy() for x in (q, k, v)),
        brute.visible(conditions, shape), brute.bias(conditions, shape), 8**-0.5,
    )  # fmt: skip
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)


# ---- masks that don't fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "says"),
    [
        ("document:3,4", (1, 1, 8, 8), "add up to 7, but the problem has 8 queries and 8 keys"),
        ("document:3,5", (1, 1, 4, 8), "add up to 8, but the problem has 4 queries and 8 keys"),
        ("padding:1,2", (3, 1, 4, 4), "2 lengths for a batch of 3; give one for each"),
        ("padding:5", (3, 1, 4, 4), "a length above kv_len=4"),
        ("padding:1,5,0", (3, 1, 4, 4), "a length above kv_len=4"),
        ("prefix:5", (1, 1, 9, 4), "longer than kv_len=4"),
        ("causal+prefix:5", (1, 1, 9, 4), "mask prefix:5: the prefix is longer"),
        ("dense:nowhere/at/all.npy", (1, 1, 4, 4), "there is no file nowhere/at/all.npy"),
    ],
)
def test_a_mask_that_does_not_fit_says_why(text, shape, says):
    wrong = Mask.parse(text).wrong_for(Shape(*shape))
    assert wrong is not None
    assert wrong.startswith("mask ")
    assert says in wrong


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("none", (1, 1, 1, 1)),
        ("document:3,5", (2, 1, 8, 8)),
        ("padding:0,4,4", (3, 1, 9, 4)),
        ("padding:4", (3, 1, 9, 4)),
        ("prefix:4", (1, 1, 1, 4)),
        ("window:100,100", (1, 1, 2, 3)),
    ],
)
def test_a_mask_that_fits_says_nothing(text, shape):
    assert Mask.parse(text).wrong_for(Shape(*shape)) is None


FITS = Shape(2, 4, 3, 5)
WRONG_TABLES = {
    "too many keys": ("dense", np.ones((3, 6), bool), "(2, 4, 3, 5)"),
    "the heads of another problem": ("bias", np.zeros((3, 3, 5)), "(2, 4, 3, 5)"),
    "one key where the problem has more rows": ("dense", np.ones((4, 1), bool), "(2, 4, 3, 5)"),
    "five dimensions": ("bias", np.zeros((1, 2, 4, 3, 5)), "does not broadcast to (2, 4, 3, 5)"),
    "larger than a problem of one": ("bias", np.zeros((7, 2, 4, 3, 5)), "(2, 4, 3, 5)"),
    "numbers in a dense mask": ("dense", np.ones((3, 5)), "float64; a dense mask needs booleans"),
    "booleans in a bias": ("bias", np.ones((3, 5), bool), "bool; a bias mask needs numbers"),
    "text in a bias": ("bias", np.array(["a"]), "a bias mask needs numbers"),
    "complex numbers in a bias": ("bias", np.ones((3, 5), complex), "a bias mask needs numbers"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_a_file_that_does_not_fit_says_why(brute, case):
    kind, table, says = WRONG_TABLES[case]
    wrong = Mask.parse(brute.text([(kind, table)])).wrong_for(FITS)
    assert wrong is not None
    assert wrong.startswith(f"mask {kind}:")
    assert says in wrong


def test_a_file_larger_than_a_length_of_one_does_not_stretch_the_problem(brute):
    mask = Mask.parse(brute.text([("bias", np.zeros((3, 5)))]))
    assert "does not broadcast" in mask.wrong_for(Shape(1, 1, 1, 5))


@pytest.mark.parametrize("content", ["empty", "junk", "archive"])
@pytest.mark.parametrize("kind", ["dense", "bias"])
def test_a_file_that_holds_no_array_says_so(tmp_path, kind, content):
    file = tmp_path / "table.npy"
    if content == "archive":
        with file.open("wb") as out:
            np.savez(out, table=np.ones((3, 5)))
    else:
        file.write_text("" if content == "empty" else "this is no array at all")
    wrong = Mask.parse(f"{kind}:{file}").wrong_for(FITS)
    assert wrong is not None
    assert wrong.startswith(f"mask {kind}:{file}")


def test_every_kind_of_mask_is_in_the_spellings_tested():
    tested = {kind for mask in SPELLINGS.values() for kind in mask.kinds}
    assert tested == set(MASK_KINDS)
