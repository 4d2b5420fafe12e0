"""A sentence as tokens and vectors, and the map of its words."""

import math

import pytest

import impls
from attnbench.answer import maps
from attnbench.answer.maps import BadEmbeddings, vectors_of
from impls.problem import InvalidProblem

MANY = 11


class Engine:
    """Gives every question the same answer."""

    def __init__(self, answer):
        self.answer = answer

    def ask(self, question, limit_s):
        return self.answer


ROW = [[1 / 3] * MANY]


@pytest.mark.parametrize(
    "weights", [ROW * (MANY - 1), [[math.nan] * MANY] * MANY, [[1.0]] * MANY, "x", None]
)
def test_what_is_no_map_of_all_words_is_refused(weights):
    row, vectors = impls.table().find("matmul"), [[1.0]] * MANY
    assert maps.ask(Engine({"map": ROW * MANY}), row, "causal", vectors, 1.0) == ROW * MANY
    with pytest.raises(InvalidProblem, match="it gave no weight for each pair of words"):
        maps.ask(Engine({"map": weights}), row, "causal", vectors, 1.0)


def test_a_variant_that_takes_no_sentence_or_fails_is_refused_with_its_reason():
    layer, row = (impls.table().find(name) for name in ("mha", "matmul"))
    with pytest.raises(InvalidProblem, match="no map can be drawn here: "):
        maps.ask(Engine({}), layer, "none", [[1.0]], 1.0)
    with pytest.raises(InvalidProblem, match="no map can be drawn: it broke"):
        maps.ask(Engine({"error": "it broke"}), row, "none", [[1.0]], 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"the 1 2 3\ncat 1 2\n", "line 2.* 2 numbers .*3"),
        (b"the 1 2\ncat 1 x\n", "'x'"),
        (b"the 1 2\n", "no vector for cat.*leave --embeddings out"),
        (b"the 1 2\n\xff\xfe 1 2\ncat 1 2\n", "not UTF-8"),
    ],
)
def test_vectors_are_read_for_the_words_and_a_file_that_lacks_one_says_so(tmp_path, text, words):
    file = tmp_path / "glove"
    file.write_text("cat 1 2 3\nthe 4 5 6.5\nsat -7 8e-1 9\n")
    assert vectors_of(["the", "cat", "the"], str(file)) == [[4, 5, 6.5], [1, 2, 3], [4, 5, 6.5]]
    file.write_bytes(text)
    with pytest.raises(BadEmbeddings, match=f"glove.*{words}"):
        vectors_of(["the", "cat", "the"], str(file))
