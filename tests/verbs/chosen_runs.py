"""Run folders whose times are known, for whoever chooses among them."""

import impls
from attnbench.answer.mends import Priced
from attnbench.core.call import CallForm, TensorForm
from attnbench.core.machine import this_machine, why_not
from attnbench.core.stats import Interval
from tests.answer.build import problem, seen
from tests.report.page import runs

LENGTHS = (128, 256, 512, 1024, 2048)


def quadratic(p, once=1e-4):
    return once + 4e-9 * p.heads * p.q_len * p.kv_len


def record(variant, p, seconds, peak=1 << 20, **more):
    return seen(variant, p, seconds, peak=peak, **more)


def lines(phases=("forward",), mask="causal", settings=None, **factors):
    """Records at five lengths of variants that take so many times a quadratic time."""
    settings = settings or {}
    problems = [problem(n, phase=phase, mask=mask, **settings) for phase in phases for n in LENGTHS]
    return [
        record(name.replace("_", "."), p, factor * quadratic(p))
        for p in problems
        for name, factor in factors.items()
    ]


def everybody(phases=("forward",), mask="causal", slow=2.0, but=(), **factors):
    """The same, of all exact variants that could run here: ``slow`` times a quadratic time."""
    p = problem(512, phase=phases[0], mask=mask)
    names = [
        row.name
        for row in impls.table().rows.values()
        if row.exact
        and row.level == "core"
        and not row.ranks
        and row.name not in but
        and row.supports(p) is None
        and why_not(row, this_machine()) is None
    ]
    return lines(phases, mask, **{name: factors.get(name, slow) for name in names})


def written(folder, records, **header):
    """A run of this machine as it lies in a results folder."""
    here = this_machine()
    said = {"machine": here.facts(), "settings": {"threads": here.threads}}
    return runs.written(
        folder, records, **{**said, "grid": {"title": "a grid", "device": "cpu"}, **header}
    )


X = TensorForm((1, 4, 512, 64), (131072, 32768, 64, 1), "float32")
FORM = CallForm("sdpa", X, X, X)


class Halves:
    """In place of pairs: there is nothing to mend, and a variant halves the time."""

    def __init__(self, *_):
        pass

    def price(self):
        return Priced(why="nothing to change")

    def best_variant(self, names, priced, **how):
        ratio, words = Interval(0.5, 0.45, 0.55), (f"take {names[0]}",)
        return Priced((names[0],), words, now_s=1e-3, then_s=5e-4, ratio=ratio)
