"""A variant put through the ruler's own gate, as a sweep would."""

import impls
from attnbench.truth.gate import Verdict, gate
from attnbench.truth.inputs import make
from attnbench.truth.reference import judge
from impls.outside import load_function
from impls.problem import Problem
from impls.spec import Variant


def verdict(variant: str | Variant, problem: Problem, seed: int = 0) -> Verdict:
    """What the gate finds. ``reason`` is None where the variant is what it says."""
    row = impls.table().find(variant) if isinstance(variant, str) else variant
    refusal = row.supports(problem)
    assert refusal is None, refusal
    judged = judge(problem, make(problem, seed), seed)
    attend = load_function(row.build)(problem, **row.chosen)
    define = row.definition and load_function(row.definition)(problem, **row.chosen)
    return gate(judged, attend, define or None, seed)
