"""What will do: what is allowed, and what contradicts itself."""

import pytest

from attnbench.answer.choose import Contradiction, Wants


def of(**more):
    return Wants.of(**{"exact": False, "allow": (), "max_memory": None, "max_error": None, **more})


def test_exact_softmax_alone_is_what_is_meant_without_a_word():
    assert of().computes == ("softmax",)
    assert of(exact=True).computes == ("softmax",)


def test_what_is_allowed_joins_it():
    wants = of(allow=("approximate", "other"), max_memory=8 << 30, max_error=1e-2)
    assert wants.computes == ("softmax", "approximates softmax", "its own operator")
    assert wants.words() == ["exact or approximate or other", "in 8 GiB", "error at most 0.01"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"exact": True, "allow": ("other",)}, "contradict each other"),
        ({"allow": ("fast",)}, "'fast' is not one of pattern, approximate, other"),
        ({"max_error": 0.0}, "give one above 0"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(asked, said):
    with pytest.raises(Contradiction, match=said):
        of(**asked)
