"""A sentence as tokens and vectors, and the map of its words."""

import pytest

import impls
from attnbench.features.show import maps
from attnbench.features.show.maps import vectors_of
from impls.errors import CantBeDone
from impls.problem import InvalidProblem


class Engine:
    """Gives every question the same answer."""

    def __init__(self, answer):
        self.answer = answer

    def ask(self, question, limit_s):
        return self.answer


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
    with pytest.raises(CantBeDone, match=f"glove.*{words}"):
        vectors_of(["the", "cat", "the"], str(file))
