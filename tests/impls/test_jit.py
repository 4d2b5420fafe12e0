"""The layout of tokens for kernels written in Triton."""

import pytest
import torch

from impls.jit import fitting, rows_of
from impls.spec import Unsupported


def test_tokens_of_whole_eights_lie_at_whole_eights():
    for width, token, channel, stays in (
        *((16, 48, 1, True), (16, 20, 1, False), (72, 72, 1, True)),
        *((20, 21, 1, True), (1, 1, 1, True), (8, 64, 2, False)),
    ):
        shape, steps = (2, 3, 5, width), (15 * token, 5 * token, token, channel)
        rows = rows_of(x := torch.arange(4096.0).as_strided(shape, steps))
        assert torch.equal(rows, x) and rows.stride(-1) == 1
        assert (rows is x) == stays
        assert width % 8 or all(step % 8 == 0 for step in rows.stride()[:-1])
        one = rows_of(torch.ones(()).expand(shape))  # an upstream gradient that is one number
        assert one.stride() == torch.empty(shape).stride()


def test_blocks_that_a_gpu_has_no_room_for_are_not_supported_there():
    class OutOfResources(Exception):
        """As triton's, by name and words."""

    message = "out of resource: shared memory, Required: 102400, Hardware limit: 101376."

    @fitting("some.row")
    def launch(error):
        raise error

    with pytest.raises(Unsupported) as refused:
        launch(OutOfResources(f"{message} Reducing block sizes or `num_stages` may help."))
    assert (
        str(refused.value) == f"some.row was told blocks that this GPU has no room for: {message}"
    )
    with pytest.raises(RuntimeError, match="another"):
        launch(RuntimeError("another"))
