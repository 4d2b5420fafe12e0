"""A row becomes something to call: in this process, or in the ranks of a team."""

from __future__ import annotations

from attnbench.measure.team.together import together
from attnbench.truth.call import Attend
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant


def runs_over_ranks(variant: Variant) -> bool:
    """Whether a row runs over several processes; rows of an earlier commit do not say."""
    return getattr(variant, "ranks", False)


def attend_of(variant: Variant, problem: Problem) -> Attend:
    """What ``build`` returns, or what stands for all that the ranks have built."""
    if runs_over_ranks(variant):
        return together(variant, problem)
    attend: Attend = load_function(variant.build)(problem, **variant.chosen)
    return attend
