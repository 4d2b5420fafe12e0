"""How tokens lie for kernels written in Triton."""

import pytest
import torch

from impls.jit import rows_of


def lying(width, token, channel=1):
    """Tokens of this width, so many numbers apart."""
    return torch.arange(4096.0).as_strided((2, 3, 5, width), (3 * 5 * token, 5 * token, token,
                                                              channel))  # fmt: skip


@pytest.mark.parametrize(("width", "token", "stays"), [
    (16, 16, True), (16, 48, True), (16, 20, False), (72, 72, True), (20, 20, True), (20, 24, True),
    (20, 21, True), (1, 1, True),
])  # fmt: skip
def test_tokens_of_whole_eights_lie_at_whole_eights(width, token, stays):
    x = lying(width, token)
    rows = rows_of(x)
    assert torch.equal(rows, x)
    assert (rows is x) == stays
    assert width % 8 or all(step % 8 == 0 for step in rows.stride()[:-1])


def test_numbers_of_a_token_lie_next_to_each_other():
    x = lying(8, 64, 2)
    rows = rows_of(x)
    assert torch.equal(rows, x)
    assert rows.stride(-1) == 1


def test_an_upstream_gradient_that_is_one_number_lies_nowhere_and_is_written_out():
    rows = rows_of(torch.ones(()).expand(2, 3, 5, 16))
    assert rows.stride() == (240, 80, 16, 1)
