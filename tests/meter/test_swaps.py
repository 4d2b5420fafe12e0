"""A row that puts another kernel in place of torch's own, as torch.fa3 does: by the same Library,
for the same dispatch key, in a worker's own cell.
"""

import pytest

from attnbench.meter.timed import Job
from attnbench.sweep.worker import _measured
from impls.spec import InvalidRow

FLASH, PRODUCT = "aten::_scaled_dot_product_flash_attention", "aten::bmm"
CODE = """
import builtins, weakref

def other(operator):
    library = torch.library.Library("aten", "IMPL", "CUDA")
    library.impl(operator.removeprefix("aten::"), lambda *_, **__: None, "CUDA")
    return library

class Attend:
    def __init__(self, problem):
        self.inner, self.more = right(problem), []
        for library in map(other, BUILT):
            weakref.finalize(self, library._destroy if RESTORES else builtins.kept.append, *KEPT)
            builtins.kept.append(library)

    def __call__(self, *ends):
        if CALLED and not self.more:
            self.more = [other(name) for name in CALLED]
            builtins.kept.extend(self.more)
        return self.inner(*ends)

build = Attend
"""


@pytest.fixture
def ends(cells, monkeypatch):
    """How a cell ends whose variant replaces some operators when it is built, or when called."""
    kept = []
    monkeypatch.setattr("builtins.kept", kept, raising=False)

    def measured(*, built=(), called=(), restores=True, swaps=()):
        more = () if restores else (0,)
        told = f"BUILT, CALLED, RESTORES, KEPT = {built}, {called}, {restores}, {more}\n"
        row = cells.variant(CODE + told, swaps=swaps)
        record = _measured(cells.bench, Job(row, cells.problem(), budget_s=0.01))["record"]
        return record["status"], record["reason"]

    yield measured
    for library in kept:
        if library:
            library._destroy()


WRONG = ("wrong", "it left changed what other variants share: torch's kernels")


@pytest.mark.parametrize(
    ("deed", "end"),
    [
        ({"built": [FLASH], "swaps": [FLASH]}, ("measured", "")),
        ({"built": [FLASH]}, WRONG),
        ({"built": [FLASH], "swaps": [FLASH], "restores": False}, WRONG),
        ({"built": [FLASH, PRODUCT], "swaps": [FLASH]}, WRONG),
        ({"called": [FLASH], "swaps": [FLASH]}, WRONG),
    ],
)
def test_a_kernel_may_be_replaced_only_where_declared_when_built_and_until_the_end(ends, deed, end):
    assert ends(**deed) == end


def test_only_fused_attention_may_be_declared(cells):
    with pytest.raises(InvalidRow, match=r"swaps names 'aten::bmm'; a row may replace only"):
        cells.variant("", swaps=[PRODUCT])
