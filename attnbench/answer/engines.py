"""The lines or flags by which an engine takes a variant, and the variants that it can take.

An engine takes one variant for all its layers: for a program, the one that takes least for all of
its calls together, among those that were timed on each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from attnbench.answer.paste import (
    PLAIN,
    CallDetails,
    beyond_torch,
    can_serve,
    find_row,
    in_transformers,
    transformers_name,
)
from attnbench.core.call import BACKENDS
from attnbench.core.format import counted, ratio
from attnbench.core.machine import pace
from impls.spec import listed

if TYPE_CHECKING:
    from attnbench.answer.ranking import Candidate, Ranking
    from impls.problem import Problem

Lines = tuple[str, ...]


def _sdpa_kernel(*backends: str) -> Lines:
    names = ", ".join(f"SDPBackend.{name}" for name in backends)
    return (
        "from torch.nn.attention import SDPBackend, sdpa_kernel",
        f"with sdpa_kernel([{names}], set_priority=True):",
        "    ...  # your program's calls",
    )


def _vllm(backend: str, version: int = 0) -> Lines:
    words = f"--attention-backend {backend}"
    return (words + (f" --attention-config.flash_attn_version {version}" if version else ""),)


def _diffusers(backend: str) -> Lines:
    return (f'pipe.transformer.set_attention_backend("{backend}")',)


LINES: dict[str, dict[str, Lines]] = {
    "sdpa_kernel": {
        "sdpa.flash": _sdpa_kernel(BACKENDS["flash"], "MATH"),  # MATH takes every call
        "sdpa.efficient": _sdpa_kernel(BACKENDS["efficient"], "MATH"),
        "sdpa.cudnn": _sdpa_kernel(BACKENDS["cudnn"], "MATH"),
        "sdpa.math": _sdpa_kernel("MATH"),
        "sdpa": ("# torch chooses among its backends by itself: no sdpa_kernel is needed",),
    },
    "vllm": {
        "flash_attn2": _vllm("FLASH_ATTN", 2),
        "flash_attn3": _vllm("FLASH_ATTN", 3),
        "flash_attn4": _vllm("FLASH_ATTN", 4),
        "flashinfer": _vllm("FLASHINFER"),
        "flex": _vllm("FLEX_ATTENTION"),
    },
    "diffusers": {
        "sdpa": _diffusers("native"),
        "sdpa.flash": _diffusers("_native_flash"),
        "sdpa.efficient": _diffusers("_native_efficient"),
        "sdpa.cudnn": _diffusers("_native_cudnn"),
        "sdpa.math": _diffusers("_native_math"),
        "flex": (
            *_diffusers("flex"),
            "pipe.transformer.compile()  # without it FlexAttention runs uncompiled",
        ),
        "flash_attn2": _diffusers("flash"),
        "flash_attn3": _diffusers("_flash_3"),
        "flash_attn4": _diffusers("flash_4_hub"),
        "sageattention": _diffusers("sage"),
        "xformers": _diffusers("xformers"),
    },
}
"""By engine and variant, for torch 2.13, vLLM 0.33 and diffusers 0.42. transformers takes all."""
NO_MASK = {"sdpa.flash", "flash_attn2", "flash_attn3", "flash_attn4", "sageattention"}
"""The variants whose backends in diffusers refuse an ``attn_mask``."""
VLLM_MASKS = {"none", "causal", "window"}
"""The masks that vLLM makes for a model; nobody can pass it another."""


USES = {"eager": "matmul", "flex": "flex", "sdpa": "sdpa"}
"""By a word of how a call was captured: the variant that it uses now."""
BRIDGE_S = 15e-6
"""Seconds of attnbench at each call of a transformers layer, on the machine of ``pace``."""


@dataclass(frozen=True)
class EngineCall:
    """A place that calls attention; ``ranking``: of the variants there, None without an answer."""

    place: str
    problem: Problem
    ranking: Ranking | None
    calls: int = 1
    details: CallDetails = PLAIN
    uses: str = ""
    """The variant that does what the place does now; empty where that is not known."""
    setups: int = 0
    """The calls at which a variant that attnbench puts in has not met the mask or the lengths."""

    @cached_property
    def measured(self) -> dict[str, Candidate]:
        """The variants that were measured there."""
        by_name = self.ranking.by_name if self.ranking else {}
        return {name: c for name, c in by_name.items() if c.measured}


@dataclass(frozen=True)
class Alternative:
    """The fastest variant that an engine can take in place of the best, so many times as long."""

    variant: str
    times: float
    lines: list[str]


@dataclass(frozen=True)
class EngineAnswer:
    """The lines by which an engine takes a variant; ``why`` there are none, and what it can take
    ``instead``.
    """

    name: str
    takes: str | None = None
    lines: list[str] = field(default_factory=list)
    why: str = ""
    instead: Alternative | None = None


def in_engine(engine: str, calls: Sequence[EngineCall], tables: Sequence[str] = ()) -> EngineAnswer:
    """The lines for the variant that is best for all calls together, or why the engine can't take
    it, and the fastest that it can.
    """
    seconds = _seconds(calls, tables)
    if why := _no_answer(engine, calls, seconds):
        return EngineAnswer(engine, why=why)
    winners = {call.ranking.winner.variant for call in calls if call.ranking}
    advised = winners.pop() if len(winners) == 1 else ""  # one of a tie need not be the fastest
    best = advised if advised in seconds else min(seconds, key=seconds.__getitem__)
    if not (why := _refusal(engine, best, calls, tables)):
        return EngineAnswer(engine, best, _lines(engine, best, calls, tables))
    others = [name for name in seconds if not _refusal(engine, name, calls, tables)]
    if not others:
        return EngineAnswer(engine, why=f"{why}. It can take none of the others that were measured")
    other = min(others, key=seconds.__getitem__)
    times = seconds[other] / seconds[best]
    instead = Alternative(other, times, _lines(engine, other, calls, tables))
    why = f"{why}. It can take {other}, {ratio(times)} as long"
    return EngineAnswer(engine, why=why, instead=instead)


def _seconds(calls: Sequence[EngineCall], tables: Sequence[str]) -> Mapping[str, float]:
    """The time of all calls together, by each variant that was timed on all and can serve them."""
    times = [call.ranking.by_name if call.ranking else {} for call in calls]
    return {
        name: sum(c.calls * each[name].median_s for c, each in zip(calls, times, strict=True))
        for name in (times[0] if times else ())
        if all(name in each for each in times)
        and all(_serves(name, call.details, tables) for call in calls)
    }


def _serves(variant: str, details: CallDetails, tables: Sequence[str]) -> bool:
    return details == PLAIN or can_serve(find_row(variant, tables), details) is None


def _no_answer(engine: str, calls: Sequence[EngineCall], seconds: Mapping[str, float]) -> str:
    """A sentence where no variant at all can be set for these calls; else nothing."""
    for call in calls:
        if call.problem.level != "core":
            return f"an engine takes cores, and {call.place} has its own weights"
        if call.ranking is None:
            return f"there is no answer for {call.place}"
        if engine == "vllm" and (why := _refused_by_vllm(call.problem)):
            return why
    which = f"all {counted(len(calls), 'call')}" if len(calls) > 1 else "the call"
    return "" if seconds else f"no variant was measured on {which} and does what is asked for there"


def _refused_by_vllm(problem: Problem) -> str:
    if problem.device == "cpu":
        return "on a CPU vLLM runs CPU_ATTN, whatever it is asked for"
    if problem.gradients:
        return f"vLLM doesn't train, and {problem} does"
    if other := [kind for kind in problem.mask.kinds if kind not in VLLM_MASKS]:
        return f"vLLM makes its masks itself (none, causal, a window), and no {' or '.join(other)}"
    return ""


def _refusal(engine: str, variant: str, calls: Sequence[EngineCall], tables: Sequence[str]) -> str:
    """The reason why an engine can't take a variant for these calls; empty where it can."""
    if not _lines(engine, variant, calls, tables):
        return f"{engine} has no {variant}"
    if engine in LINES:
        for call in calls:
            if names := beyond_torch(call.problem):
                return f"{engine} is not known to hand {listed(names)} to {variant}"
    for call in calls if engine == "diffusers" else ():
        mask = call.problem.mask
        causal = mask.is_causal(call.problem.shape)
        if variant in NO_MASK and not mask.plain and not causal:
            return f"diffusers' backend of {variant} takes no attn_mask, as for {mask.kinds[0]}"
        if variant == "flex" and causal:
            return "diffusers' flex leaves is_causal out"
    return ""


def _lines(
    engine: str, variant: str, calls: Sequence[EngineCall], tables: Sequence[str]
) -> list[str]:
    if engine in LINES:
        return list(LINES[engine].get(variant, ()))
    return in_transformers(variant, tables, [call.problem for call in calls])


# ---- one implementation for all layers of a model of transformers --------------------------------


def for_whole_model(calls: Sequence[EngineCall], tables: Sequence[str] = ()) -> EngineAnswer:
    """One implementation for all layers of a transformers model, where it was timed on all of the
    model's calls and they gain by it, set-up for each new mask included; else why there is none.
    """
    engine, problems = "transformers", [call.problem for call in calls]
    if unknown := [c.place for c in calls if c.uses not in c.measured]:
        return EngineAnswer(engine, why=f"how long the calls of {unknown[0]} take now is not known")

    def serves(variant: str, call: EngineCall) -> bool:
        there = variant in call.measured and bool(in_transformers(variant, tables, problems))
        return there and _serves(variant, call.details, tables)

    def then_s(variant: str, what: str = "median_s") -> float:
        seconds: float = sum(c.calls * getattr(c.measured[variant], what) for c in calls)
        if transformers_name(variant, problems):
            return seconds
        setup = sum(c.setups * (c.measured[variant].setup_s or 0.0) for c in calls)
        return seconds + setup + sum(c.calls for c in calls) * BRIDGE_S * pace()

    def now_s(what: str) -> float:
        return sum(c.calls * getattr(c.measured[c.uses], what) for c in calls)

    able = [name for name in calls[0].measured if all(serves(name, call) for call in calls)]
    able = [name for name in able if {name} != {call.uses for call in calls}]
    if not able:
        why = f"no other variant serves all {counted(len(calls), 'site')}"
        return EngineAnswer(engine, why=why)
    best = min(able, key=then_s)
    if then_s(best, "high_s") < now_s("low_s"):
        return EngineAnswer(engine, best, in_transformers(best, tables, problems))
    factor = ratio(then_s(best) / now_s("median_s"))
    return EngineAnswer(
        engine,
        why=f"with {best} for all {counted(len(calls), 'site')}, and what attnbench does at each "
        f"call and for each new mask or length, they would take {factor} what they take now",
    )
