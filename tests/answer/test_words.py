"""A sentence as tokens and vectors."""

import math

import pytest

from attnbench.features.show.maps import WIDTH, BadEmbeddings, tokens_of, vectors_of


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The cat sat.", ["the", "cat", "sat", "."]),
        ("Don't, don\u2019t", ["don't", ",", "don\u2019t"]),
        ("a;  c\n\td", ["a", ";", "c", "d"]),
        ("Größe 42?!", ["größe", "42", "?", "!"]),
    ],
)
def test_words_and_marks_in_small_letters(text, found):
    assert tokens_of(text) == found
    with pytest.raises(BadEmbeddings, match="there is no word in"):
        tokens_of(" \n")


def test_hashed_vectors_of_words_that_look_alike_lie_near():
    first = vectors_of(["the", "cat", "the", "\N{SNOWMAN}", "0"], None)
    assert {len(v) for v in first} == {WIDTH} and all(math.isfinite(x) for v in first for x in v)
    assert first[0] == first[2] != first[1] == vectors_of(["cat"], None)[0]
    for one, alike in (("running", "runner"), ("national", "nation"), ("teacher", "teaching")):
        a, b, far = vectors_of([one, alike, "mud"], None)
        assert cosine(a, b) > cosine(a, far) + 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"the 1 2 3\ncat 1 2\n", ["line 2", "2 numbers", "3"]),
        (b"the 1 2\ncat 1 x\n", ["'x'"]),
        (b"the 1 2\n", ["no vector for cat", "leave --embeddings out"]),
        (b"the 1 2\n\xff\xfe 1 2\ncat 1 2\n", ["not UTF-8"]),
        (None, ["can't read", "No such file"]),
    ],
)
def test_a_file_that_can_not_be_used_is_a_sentence(tmp_path, text, words):
    file = tmp_path / "glove"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(BadEmbeddings) as caught:
        vectors_of(["the", "cat", "the"], str(file))
    said = str(caught.value)
    assert str(file) in said and said.count("cat") <= 1
    assert [word for word in words if word not in said] == []


def test_vectors_are_read_for_the_words_in_their_order(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("cat 1 2 3\nthe 4 5 6.5\nsat -7 8e-1 9\n")
    assert vectors_of(["the", "cat", "the"], str(file)) == [[4, 5, 6.5], [1, 2, 3], [4, 5, 6.5]]
