"""``attnbench.choose`` as a notebook's user meets it."""

import pytest

import attnbench
from attnbench.core.machine import this_machine
from impls.asked import CantBeDone
from tests.verbs import chosen_runs as made

SHAPE = {"heads": 4, "phase": "forward"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "results" / this_machine().name / "one"
    return made.written(folder, made.lines(sdpa=1.0, matmul=2.0))


def test_it_says_who_and_gives_what_to_paste_and_what_proves_it(run):
    found = attnbench.choose(512, **SHAPE, runs=run)
    assert found.variant == "sdpa"
    assert "use sdpa" in str(found) and "use sdpa" in repr(found)
    assert found.code.endswith("is_causal=True)")
    assert found.proof.startswith("attnbench compare sdpa matmul --seq 512")
    assert list(found.to_frame()["variant"]) == ["sdpa", "matmul"]
    shown = found._repr_html_()
    assert "<table" in shown and "use sdpa" in shown and "<pre>" in shown


def test_without_an_answer_it_is_a_sentence(run):
    found = attnbench.choose(512, heads=64, phase="forward", runs=run)
    assert (found.variant, found.code, found.proof) == (None, "", "")
    assert "no answer: outside what was measured" in found._repr_html_()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"seq": [128, 256]}, "make 2"),
        ({"seq": 128, "max_memory": 0}, "is not a size"),
        ({"seq": 128, "max_error": float("nan")}, "is not a number above 0"),
        ({"seq": 128, "runs": "nowhere"}, "there is no nowhere"),
    ],
)
def test_what_can_t_be_asked_is_a_sentence(words, said):
    with pytest.raises(CantBeDone, match=said):
        attnbench.choose(**words)
