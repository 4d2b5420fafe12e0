"""How a rank that is gone ended, in words."""

import pytest

from attnbench.meter.ranks import died


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (3, "ended with status 3"),
        (-9, "died of SIGKILL"),
        (-42, "died of signal 42"),
    ],
)
def test_a_rank_that_is_gone_is_named_with_how_it_went_though_a_signal_has_no_name(status, how):
    assert str(died(1, status, "forward", "")) == f"rank 1 {how} in its forward"
