"""What whoever asks will have: how exact, in how much memory, with how large an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attnbench.answer.predict import TRUSTED
from attnbench.core.format import size
from attnbench.core.record import FINDINGS
from impls.asked import CantBeDone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attnbench.answer.predict import Estimate, VariantRecords

    pass
    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant


KINDS = {
    "pattern": "softmax on its own pattern",
    "approximate": "approximates softmax",
    "other": "its own operator",
}
"""What may be allowed besides exact softmax, in a word."""
EXACT = "softmax"


class Contradiction(CantBeDone):
    """Limits that nothing can meet together; a sentence."""


@dataclass(frozen=True)
class Wants:
    """Limits, and what else than exact softmax will do."""

    max_memory: int | None = None
    """Bytes above the inputs, at the worst instant."""
    max_error: float | None = None
    """Relative to exact softmax: of an exact variant its rounding, of another its distance."""
    allowed: tuple[str, ...] = ()
    """Words of :data:`KINDS`."""

    @classmethod
    def of(
        cls, *, exact: bool, allow: Sequence[str], max_memory: int | None, max_error: float | None
    ) -> Wants:
        """What was asked for; raises a sentence where it contradicts itself."""
        if exact and allow:
            raise Contradiction(
                f"--exact and --allow {','.join(allow)} contradict each other: leave one out"
            )
        if unknown := [word for word in allow if word not in KINDS]:
            raise Contradiction(
                f"--allow {unknown[0]!r} is not one of {', '.join(KINDS)} (exact softmax is always "
                "allowed)"
            )
        if max_error is not None and max_error <= 0:
            raise Contradiction(f"an error of {max_error:g} or less is nobody's: give one above 0")
        return cls(max_memory, max_error, tuple(dict.fromkeys(allow)))

    @property
    def computes(self) -> tuple[str, ...]:
        """What a variant may compute."""
        return (EXACT, *(KINDS[word] for word in self.allowed))

    def words(self) -> list[str]:
        """As they are said: ``exact``, ``in 8 GiB``, ``error at most 0.01``."""
        found = [f"exact or {' or '.join(self.allowed)}" if self.allowed else "exact"]
        found += [f"in {size(self.max_memory)}"] if self.max_memory else []
        found += [f"error at most {self.max_error:g}"] if self.max_error else []
        return found


TOO_MUCH = ("out_of_memory", "timed_out")
"""Whoever was so on a problem that is nowhere larger would be so on this one."""


class Why(StrEnum):
    """What keeps a variant out."""

    COMPUTES = "computes something else"
    SUPPORT = "doesn't take it"
    MEMORY = "memory"
    ERROR = "error"
    STATUS = "came to grief"
    SLOW = "far behind"
    UNKNOWN = "not known"
    ABSENT = "not in the run"


@dataclass(frozen=True)
class Candidate:
    """A variant that could be chosen."""

    variant: str
    computes: str
    median_s: float
    low_s: float
    high_s: float
    measured: bool
    """Its time, on this very problem; else predicted."""
    memory_bytes: int | None = None
    error: float | None = None
    """To exact softmax, relative."""
    skill: float | None = None
    """Of what isn't exact: how much of what softmax does beyond averaging it keeps."""
    setup_s: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether it is softmax and nothing else."""
        return self.computes == EXACT

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "flags": list(self.flags)}


@dataclass(frozen=True)
class Excluded:
    """A variant that can't be chosen."""

    variant: str
    why: Why
    said: str
    needs: Mapping[str, float] = field(default_factory=dict)
    """What the limits that it breaks would have to be: bytes of ``memory``, or an ``error``."""
    about_s: float | None = None
    """Of one of whose time too little is known: what it may be about, if even that is known."""
    at_best_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "needs": dict(self.needs)}


def judged(
    label: str, row: Variant | None, known: VariantRecords, problem: Problem, wants: Wants
) -> Candidate | Excluded:
    """One variant. ``row`` is None where the table has none of that name."""
    computes = row.computes if row else known.seen[0].computes
    if computes not in wants.computes:
        return Excluded(label, Why.COMPUTES, f"it computes {computes}")
    if (refusal := _refusal(row, known.seen, problem)) is not None:
        return Excluded(label, Why.SUPPORT, refusal)
    if (grief := _grief(known.seen, problem)) is not None:
        return Excluded(label, Why.STATUS, grief)
    memory, error = known.memory(problem), known.error(problem)
    if (broken := _breaks(label, memory, error, wants)) is not None:
        return broken
    time = known.time(problem)
    if isinstance(time, str):
        return Excluded(label, Why.UNKNOWN, time)
    if not time.measured and time.off > TRUSTED:
        said = f"its time there is known to within {time.off:.0%} only"
        return Excluded(label, Why.UNKNOWN, said, about_s=time.middle, at_best_s=time.low)
    own, (near, *_) = known.on(problem), known.nearest(problem)
    return Candidate(
        label,
        computes,
        time.middle,
        time.low,
        time.high,
        time.measured,
        memory_bytes=None if memory is None else round(memory.middle),
        error=error,
        skill=near.distance.skill if near.distance and computes != EXACT else None,
        setup_s=near.setup_s,
        flags=tuple(own.time.flags) if own and own.time else (),
    )


def _breaks(
    label: str, memory: Estimate | None, error: float | None, wants: Wants
) -> Excluded | None:
    """The limits that it breaks, or that nobody can say it keeps."""
    if wants.max_memory is not None and memory is None:
        return Excluded(label, Why.UNKNOWN, "how much memory it needs there is not known")
    if wants.max_error is not None and error is None:
        return Excluded(label, Why.UNKNOWN, "its error there is not known")
    needs, said = {}, []
    if wants.max_memory is not None and memory is not None and memory.high > wants.max_memory:
        needs["memory"] = memory.high
        about = "about " * (memory.high > 1.01 * memory.low)
        said.append(f"it needs {about}{size(memory.middle)}")
    if wants.max_error is not None and error is not None and error > wants.max_error:
        needs["error"] = error
        said.append(f"its error is {error:.2g}")
    if not needs:
        return None
    why = Why.MEMORY if "memory" in needs else Why.ERROR
    return Excluded(label, why, " and ".join(said), needs)


def _refusal(row: Variant | None, seen: Sequence[Record], problem: Problem) -> str | None:
    """Why it doesn't take the problem: by its row, by its own word, or by where it was asked."""
    if row is not None and (refusal := row.supports(problem)) is not None:
        return refusal
    for each in seen:
        own = each.status == "unsupported" and each.problem == problem
        if own or each.status == "unavailable":
            return each.reason
    return None


def _grief(seen: Sequence[Record], problem: Problem) -> str | None:
    """What became of it that rules it out, in a sentence."""
    for each in seen:
        if each.status in FINDINGS:
            return f"{each.status} on {each.problem}: {each.reason}"
        if each.status in TOO_MUCH and _nowhere_larger(each.problem, problem):
            return f"{each.status.replace('_', ' ')} already on {each.problem}: {each.reason}"
    return None


def _nowhere_larger(one: Problem, other: Problem) -> bool:
    sizes = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    return all(getattr(one, name) <= getattr(other, name) for name in sizes)
