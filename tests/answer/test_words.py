"""A sentence as tokens and vectors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.features.show.maps import WIDTH, BadEmbeddings, tokens_of, vectors_of


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def glove(folder, text, name="glove.txt"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The cat sat.", ["the", "cat", "sat", "."]),
        ("Don't stop", ["don't", "stop"]),
        ("Don\u2019t", ["don\u2019t"]),
        ("a,b;  c\n\td", ["a", ",", "b", ";", "c", "d"]),
        ("Größe 42", ["größe", "42"]),
        ("?!", ["?", "!"]),
    ],
)
def test_words_and_marks_in_small_letters(text, found):
    assert tokens_of(text) == found


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_a_text_without_a_word_is_refused(text):
    with pytest.raises(BadEmbeddings, match="there is no word in"):
        tokens_of(text)


# ---- hashed --------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4))
def test_hashed_vectors_are_finite_and_of_one_width(words):
    made = vectors_of(words, None)
    assert [len(v) for v in made] == [WIDTH] * len(words)
    assert all(math.isfinite(x) for v in made for x in v)


def test_the_same_word_has_the_same_vector_wherever_it_stands():
    first = vectors_of(["the", "cat", "the"], None)
    assert first[0] == first[2] != first[1]
    assert vectors_of(["cat"], None)[0] == first[1]


def test_words_that_look_alike_lie_nearer_than_words_that_do_not():
    pairs = [("running", "runner"), ("national", "nation"), ("teacher", "teaching")]
    for one, alike in pairs:
        a, b, far = vectors_of([one, alike, "mud"], None)
        assert cosine(a, b) > cosine(a, far) + 0.1


# ---- from a file ---------------------------------------------------------------------------------


def test_vectors_are_read_for_the_words_in_their_order(tmp_path):
    file = glove(tmp_path, "cat 1 2 3\nthe 4 5 6.5\nsat -7 8e-1 9\n")
    assert vectors_of(["the", "cat", "the"], file) == [[4, 5, 6.5], [1, 2, 3], [4, 5, 6.5]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 1 2 3\ncat 1 2\n", ["line 2", "2 numbers", "3"]),
        ("the\ncat 1 2\n", ["line 1"]),
        ("400000 3\nthe 1 2 3\ncat 1 2 3\n", ["line 2"]),
        ("the 1 2\ncat 1 x\n", ["'x'"]),
        ("the 1 2\n", ["no vector for cat", "leave --embeddings out"]),
        ("", ["no vector for the, cat"]),
        (b"the 1 2\n\xff\xfe 1 2\ncat 1 2\n", ["not UTF-8"]),
    ],
)
def test_a_file_that_can_not_be_used_is_a_sentence(tmp_path, text, words):
    file = glove(tmp_path, text)
    with pytest.raises(BadEmbeddings) as caught:
        vectors_of(["the", "cat"], file)
    assert file in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(BadEmbeddings, match=r"can't read .*no\.txt: No such file"):
        vectors_of(["the"], str(tmp_path / "no.txt"))
    with pytest.raises(BadEmbeddings, match="can't read"):
        vectors_of(["the"], str(tmp_path))


def test_a_missing_word_is_named_once(tmp_path):
    file = glove(tmp_path, "the 1 2\n")
    with pytest.raises(BadEmbeddings) as caught:
        vectors_of(["cat", "the", "cat"], file)
    assert str(caught.value).count("cat") == 1
