"""The built-in texts hold what they say; a file of texts is read, or refused in a sentence."""

from collections import Counter

import pytest

from attnbench.features.quality.pretrained import KINDS, BadTexts, built_in, of_file


def test_there_are_pairs_of_each_kind_and_texts_of_many_lengths():
    found = built_in()
    assert Counter(pair.kind for pair in found.pairs) == dict.fromkeys(KINDS, 12)
    words = [len(text.split()) for text in found.texts]
    assert min(words) <= 4 and len({n for n in words if n < 60}) >= 20
    assert sum(n > 220 for n in words) == 16
    assert len(set(found.texts)) == len(found.texts) == 112


def test_a_pair_says_which_texts_it_means():
    found = built_in()
    snow = found.pairs[0]
    assert (snow.kind, found.texts[snow.a], found.texts[snow.b]) == (
        "paraphrase",
        "The train was late because of snow.",
        "Snow delayed the train.",
    )


def test_no_pair_is_split_between_what_is_learnt_and_what_is_judged():
    found = built_in()
    learnt, judged = map(set, found.halves())
    assert learnt | judged == set(range(112)) and not learnt & judged
    for pair in found.pairs:
        assert {pair.a, pair.b} <= learnt or {pair.a, pair.b} <= judged


def test_a_file_is_a_text_a_line_each_paired_with_the_next(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes("\ufeffOne is here.\n\n  Zwei für dich \r\nthree\nvier\n".encode())
    found = of_file(file)
    assert found.texts == ("One is here.", "Zwei für dich", "three", "vier")
    assert [(p.a, p.b) for p in found.pairs] == [(0, 1), (1, 2), (2, 3)]
    assert found.source == "own.txt"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"caf\xe9 au lait\nb\nc\nd\n", r"not UTF-8 \(byte 3 is 0xe9\); save it as UTF-8"),
        (b"", "holds 0 texts; give 4 to 2,000"),
        (b"one\n\n  \n", "holds 1 texts"),
        (b"x\n" * 2001, "holds 2001 texts"),
    ],
)
def test_a_file_without_texts_is_refused_with_what_to_do(tmp_path, content, said):
    file = tmp_path / "own.txt"
    file.write_bytes(content)
    with pytest.raises(BadTexts, match=said):
        of_file(file)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(BadTexts, match=r"can't read --texts .*: No such file"):
        of_file(tmp_path / "nothing.txt")
