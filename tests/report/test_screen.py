"""The screen that a run ends with: what it says, and that it is one screen whatever the run."""

from pathlib import Path

import pytest

from attnbench.core.record import Status
from attnbench.features.run import view
from impls.masks import Mask
from tests.report.page import runs
from tests.report.page.runs import at, timed, untimed

MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def screen(shown, records):
    """The screen that a run of these records ends with, line by line."""
    page = Path("/box/index.html")
    return shown(view.show_answer, runs.ran(list(records)), "3 min", page).splitlines()


SIZES = {
    "one variant at one length": [timed("sdpa")],
    "nothing exact": [runs.other("linear.elu", 1e-4)],
    "nothing measured": [untimed("einsum", Status.OUT_OF_MEMORY)],
    "eight regimes": runs.many(40, (64, 128, 256, 512, 1024, 2048), ("forward", "train", "decode")),
    "long names and markup": runs.crowd(60),
    "windows": [
        timed(name, seconds, at(n, mask=Mask.parse(mask), phase=phase), flags=["drifted"])
        for name, seconds in (("window.blocked", 1.123e-2), ("sdpa", 3e-2))
        for n in (256, 512, 1024, 2048)
        for mask in ("causal", "window:127,0")
        for phase in ("forward", "train")
    ],
    "faults": [
        timed("sdpa"),
        *(untimed(f"v{n}", Status.WRONG, "so it is " * 99) for n in range(9)),
    ],
}


@pytest.mark.parametrize("records", SIZES.values(), ids=SIZES)
def test_the_screen_is_25_lines_of_100_columns_whatever_the_run(shown, records):
    lines = screen(shown, records)
    assert 2 <= len(lines) <= 25
    assert max(len(x) for x in lines if not x.startswith("Next:")) <= 100
    assert not any(line.strip() == "Traceback" for line in lines)
