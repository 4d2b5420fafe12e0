"""Where one variant overtakes another: the search of ``attnbench crossover``, for a claim."""

from __future__ import annotations

from attnbench.answer.crossover import BUDGET, Answer
from attnbench.claims.figures import Asked
from attnbench.claims.measured.ruler import MARGIN
from attnbench.sweep.crossover import Search, ladder, seek
from attnbench.sweep.duel import Asking, Duel
from attnbench.sweep.engine import LocalEngine
from impls.asked import CantBeDone
from impls.problem import Problem
from impls.spec import Variant


def bracket(opened: LocalEngine, a: Variant, b: Variant, problem: Problem,
            between: tuple[int, int], asked: Asked, seconds: float) -> Answer:  # fmt: skip
    """Who leads where, over the lengths that both take."""
    duel = Duel(a, b, problem, between, [])
    duel.rungs = [n for n in ladder(*between) if _both(duel, n)]
    if len(duel.rungs) < 2:
        raise CantBeDone(f"{a.label} and {b.label} share no lengths to search")
    search = Search(duel.rungs)
    asking = Asking(duel, opened, asked.seed, MARGIN)
    for _ in seek(search, asking, seconds):
        pass
    ended = BUDGET if search.next() is not None else ""
    return Answer(a.label, b.label, "tokens", between, search, ended)


def _both(duel: Duel, length: int) -> bool:
    of = duel.at(length)
    return duel.a.supports(of) is None and duel.b.supports(of) is None


def said(answer: Answer) -> str:
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
