"""Records of the suite's own problem, and what asv keeps of a commit."""

from itertools import product

from attnbench.core.record import Error, Memory, Record, Status, Time
from attnbench.core.wire import plain
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import PRESETS
from tests.times import around, figures


def measured(variant="sdpa"):
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=plain(next(problems(PRESETS["history"]))),
        time=Time(clock="host", stop="budget", **figures(around(0.001, 0.005))),
        memory=Memory(peak_bytes=1 << 20, saved_bytes=None, expected_bytes=None, method="m"),
        error={"forward": Error(relative=1.23456e-7, max=0.0, worst_row=0.0, cosine=1.0)},
    )


def cells(path, name="attention.time"):
    """Of a file of asv's: what each cell's result and samples are, by asv's own reading."""
    from asv.results import Results

    results = Results.load(str(path))
    params = results.get_result_params(name)
    values = results.get_result_value(name, params), results.get_result_samples(name, params)
    return dict(zip(product(*params), zip(*values, strict=True), strict=True))
