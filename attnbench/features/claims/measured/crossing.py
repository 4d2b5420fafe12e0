"""Where one variant overtakes another: the search of ``attnbench crossover``, for a claim."""

from __future__ import annotations

from attnbench.features.claims.claim import ClaimRequest
from attnbench.features.claims.measured.ruler import MARGIN
from attnbench.features.crossover.answer import BUDGET, CrossoverAnswer
from attnbench.features.crossover.search import CrossoverSearch, Duel, PairServer, ladder, seek
from attnbench.sweep.engine import LocalEngine
from impls.asked import CantBeDone
from impls.problem import Problem
from impls.spec import Variant


def bracket(
    opened: LocalEngine,
    a: Variant,
    b: Variant,
    problem: Problem,
    between: tuple[int, int],
    asked: ClaimRequest,
    seconds: float,
) -> CrossoverAnswer:
    """Who leads where, over the lengths that both take."""
    duel = Duel(a, b, problem, between, [])
    duel.rungs = [n for n in ladder(*between) if _both(duel, n)]
    if len(duel.rungs) < 2:
        raise CantBeDone(f"{a.label} and {b.label} share no lengths to search")
    search = CrossoverSearch(duel.rungs)
    asking = PairServer(duel, opened, asked.seed, MARGIN)
    for _ in seek(search, asking, seconds):
        pass
    ended = BUDGET if search.next() is not None else ""
    return CrossoverAnswer(a.label, b.label, "tokens", between, search, ended)


def _both(duel: Duel, length: int) -> bool:
    of = duel.at(length)
    return duel.a.supports(of) is None and duel.b.supports(of) is None


def said(answer: CrossoverAnswer) -> str:
    """In a cell of a table: the bracket, or who leads throughout."""
    crossings = answer.crossovers()
    if crossings:
        return "; ".join(f"{c.after} from {c.high:,} on (not yet at {c.low:,})" for c in crossings)
    leaders = [stretch.leader for stretch in answer.stretches() if stretch.leader]
    lengths = [look.length for look in answer.looks]
    if not lengths:
        return "no length was compared"
    where = f"from {lengths[0]:,} to {lengths[-1]:,}"
    why = f" ({answer.ended})" * bool(answer.ended)
    return (f"{leaders[0]} {where}" if leaders else f"can't be told apart {where}") + why
