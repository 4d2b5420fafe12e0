"""Masks as they are written: how a spelling is read, and what is no mask of a problem."""

import numpy as np
import pytest

from impls.masks import InvalidMask, Mask, Part, Shape

SPELLINGS = {
    "none": Mask(),
    "causal": Mask((Part("causal"),)),
    "window:5,2": Mask((Part("window", (5, 2)),)),
    "document:5,12": Mask((Part("document", (5, 12)),)),
    "padding:0,17": Mask((Part("padding", (0, 17)),)),
    "alibi": Mask((Part("alibi"),)),
    "bias:C:/file.npy": Mask((Part("bias", file="C:/file.npy"),)),
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


def test_a_loose_spelling_is_the_strict_one():
    for loose, strict in (
        (" causal ", "causal"), ("causal@lower-right", "causal"), ("none+causal", "causal"),
        ("window: 1, 2", "window:1,2"), ("padding:007", "padding:7"),
    ):  # fmt: skip
        assert Mask.parse(loose) == Mask.parse(strict)
        assert str(Mask.parse(loose)) == strict


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the masks are none, causal, window"),
        ("casual", "'casual' is no mask; the masks are none, causal, window"),
        ("causal+", "'' is no mask"), ("window:1,2+causal+window:3,4", "twice"),
        ("window", "window takes 2 numbers"),
        ("window:-1,2", "-1 is below 0"), ("prefix:0", "0 is below 1"),
        ("prefix:2.5", "'2.5' is not whole numbers"),
        ("document:", "document takes at least one number"), ("document:4,0", "0 is below 1"),
        ("causal:3", "causal takes 0 numbers"),
        ("dense", "dense needs a file, as in dense:FILE.npy"),
        ("causal@", "after @ comes upper-left or lower-right"),
        ("causal@upper-left+alibi", "after @ comes upper-left or lower-right"),
    ],
)  # fmt: skip
def test_a_bad_spelling_is_refused_with_a_sentence(text, says):
    with pytest.raises(InvalidMask) as caught:
        Mask.parse(text)
    assert str(caught.value).startswith(f"mask {text!r}")
    assert says in str(caught.value)


def test_a_mask_keeps_the_kinds_that_are_asked_for():
    mask = Mask.parse("causal+window:1,2+alibi@upper-left")
    assert str(mask.only("window", "causal")) == "causal+window:1,2@upper-left"
    assert str(mask.only("bias")) == "none@upper-left"


def test_is_causal_only_for_the_causal_mask_that_both_corners_read_alike():
    given = (("causal", 4), ("causal", 5), ("causal@upper-left", 5), ("causal+alibi", 4))
    said = [Mask.parse(text).is_causal(Shape(1, 1, 4, kv_len)) for text, kv_len in given]
    assert said == [True, False, True, False]


FITS = Shape(2, 4, 3, 5)
SQUARE = Shape(3, 1, 8, 8)
WRONG = [  # a spelling, or a kind and its table
    ("document:3,4", SQUARE, "add up to 7, but the problem has 8 queries and 8 keys"),
    ("document:3,5", Shape(1, 1, 4, 8), "add up to 8, but the problem has 4 queries and 8 keys"),
    ("padding:1,2", SQUARE, "2 lengths for a batch of 3; give one for each"),
    ("padding:9", SQUARE, "a length above kv_len=8"),
    ("prefix:6", FITS, "longer than kv_len=5"),
    ("dense:nowhere/at/all.npy", FITS, "there is no file nowhere/at/all.npy"),
    (("dense", np.ones((3, 6), bool)), FITS, "(2, 4, 3, 5)"),
    (("bias", np.zeros((1, 2, 4, 3, 5))), FITS, "does not broadcast to (2, 4, 3, 5)"),
    (("dense", np.ones((3, 5))), FITS, "float64; a dense mask needs booleans"),
    (("bias", np.ones((3, 5), bool)), FITS, "bool; a bias mask needs numbers"),
    (("bias", np.array(["a"])), FITS, "a bias mask needs numbers"),
]


def test_a_bias_file_of_whole_numbers_is_taken_as_numbers(brute):
    mask = Mask.parse(brute.text([("bias", np.array([[1, -2]]))]))
    assert mask.wrong_for(Shape(1, 1, 2, 2)) is None
    np.testing.assert_array_equal(mask.bias(Shape(1, 1, 2, 2))[0, 0], [[1.0, -2.0]] * 2)


@pytest.mark.parametrize(("mask", "shape", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_a_mask_that_does_not_fit_says_why(brute, mask, shape, says):
    text = mask if isinstance(mask, str) else brute.text([mask])
    wrong = Mask.parse(text).wrong_for(shape)
    assert wrong is not None
    assert wrong.startswith(f"mask {text}")
    assert says in wrong


@pytest.mark.parametrize("content", ["", "this is no array at all", None])
def test_a_file_that_holds_no_array_says_so(tmp_path, content):
    file = tmp_path / "table.npy"
    if content is None:  # an archive of arrays
        with file.open("wb") as out:
            np.savez(out, table=np.ones((3, 5)))
    else:
        file.write_text(content)
    for kind in ("dense", "bias"):
        wrong = Mask.parse(f"{kind}:{file}").wrong_for(FITS)
        assert wrong is not None and wrong.startswith(f"mask {kind}:{file}")
