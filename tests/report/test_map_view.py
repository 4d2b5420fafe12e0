"""An attention map, in words and as a picture: every weight, and whatever the words are."""

import pytest

from attnbench.features.show import view
from attnbench.features.show.view import BadPicture, draw


def test_a_map_has_a_row_and_a_column_for_each_word(shown):
    words = ["the", "[", "cat", "the"]
    weights = [[0.1 * r + 0.01 * c for c in range(4)] for r in range(4)]
    lines = shown(view.show, words, weights).splitlines()
    assert lines[0].split() == words
    for line, word, row_of in zip(lines[1:], words, weights, strict=False):
        assert line.split() == [word, *(f"{w:.2f}" for w in row_of)]


def test_a_weight_that_is_no_number_says_so(shown):
    assert "nan" in shown(view.show, ["a"], [[None]])


def test_a_map_of_a_long_sentence_keeps_every_weight(capsys):
    words = [f"word{n}" for n in range(30)]
    view.show(words, [[0.25] * 30] * 30)
    assert capsys.readouterr().out.count("0.25") == 900


def test_a_picture_that_is_no_picture_or_can_not_be_written_is_a_sentence(tmp_path):
    with pytest.raises(BadPicture, match=r"\.png or \.svg"):
        draw(["a"], [[1.0]], "t", tmp_path / "map.jpg")
    with pytest.raises(BadPicture, match="can't write"):
        draw(["a"], [[1.0]], "t", tmp_path / "no" / "map.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "start"), [("m.png", b"\x89PNG"), ("m.svg", b"<?xml")])
def test_a_picture_is_drawn_of_any_words_and_of_missing_weights(tmp_path, name, start):
    draw(["$", "a_b", "$"], [[1.0, None, 0.0]] * 3, "t $x$", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
