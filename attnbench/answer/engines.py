"""The answers for a program's calls in the words of the engine that makes them.

An engine takes one implementation for all its layers, so the one to advise is the one that takes
least for all calls together, among those that were timed on each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import inf
from typing import TYPE_CHECKING, Any

from attnbench.answer.paste import (
    PLAIN,
    CallDetails,
    can_serve,
    engine_name,
    find_row,
    in_transformers,
)
from attnbench.answer.ranking import Candidate
from attnbench.core.format import counted, ratio
from attnbench.core.machine import pace
from attnbench.core.stats import Interval

if TYPE_CHECKING:
    from impls.problem import Problem


@dataclass(frozen=True)
class TimedSite:
    """A place that calls attention, and what is known of the variants there."""

    site: str
    problem: Problem
    times: Mapping[str, Candidate]
    """By variant; what a call takes."""
    takes: str
    """The variant to take there."""
    uses: str = ""
    """The variant that does what the place does now; empty where that is not known."""
    details: CallDetails = PLAIN
    calls: int = 1
    setups: int = 0
    """Of how many calls a variant that attnbench puts in has not met the mask or the lengths."""


@dataclass(frozen=True)
class EngineAnswer:
    """The lines that make an engine take a variant; ``why`` there are none."""

    engine: str
    variant: str = ""
    lines: list[str] = field(default_factory=list)
    why: str = ""
    ratio: Interval | None = None
    """What all calls take then over what they take now, where that is known."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        answer = {"name": self.engine, "takes": self.variant or None}
        return {**answer, "lines": self.lines, "why": self.why}


def in_engine(engine: str, sites: Sequence[TimedSite], tables: Sequence[str] = ()) -> EngineAnswer:
    """What makes the engine take the variant that is best for these calls together."""
    if not sites:
        return EngineAnswer(engine, why="no call has an answer")
    if layers := [site.site for site in sites if site.problem.level != "core"]:
        return EngineAnswer(
            engine, why=f"an engine takes cores, and {layers[0]} has its own weights"
        )
    return ANSWERS[engine](sites, tables)


# ---- the best for all calls ----------------------------------------------------------------------

Seconds = Callable[[str], float]
"""Of all calls together, by variant."""


def _calls_s(sites: Sequence[TimedSite], what: str = "median_s") -> Seconds:
    return lambda variant: sum(s.calls * getattr(s.times[variant], what) for s in sites)


BRIDGE_S = 15e-6
"""What attnbench does at each call of a transformers layer, on the machine that ``pace`` is of."""


def _in_model_s(sites: Sequence[TimedSite], what: str = "median_s") -> Seconds:
    """With what it takes besides where attnbench puts the variant into a transformers model."""

    def seconds(variant: str) -> float:
        if engine_name("transformers", variant):
            return _calls_s(sites, what)(variant)
        setup = sum(site.setups * (site.times[variant].setup_s or 0.0) for site in sites)
        bridge = sum(site.calls for site in sites) * BRIDGE_S * pace()
        return _calls_s(sites, what)(variant) + setup + bridge

    return seconds


def _serves(variant: str, site: TimedSite, tables: Sequence[str]) -> bool:
    """Whether it was timed there, or predicted, and can do what the call asks for."""
    timed = variant in site.times
    return timed and can_serve(find_row(variant, tables), site.details) is None


def _for_all(sites: Sequence[TimedSite], tables: Sequence[str], seconds: Seconds) -> list[str]:
    """The variants that serve every call, those that take least first."""
    names = dict.fromkeys(name for site in sites for name in site.times)
    able = [n for n in names if all(_serves(n, site, tables) for site in sites)]
    return sorted(able, key=lambda name: (name != _common_choice(sites), seconds(name)))


def _common_choice(sites: Sequence[TimedSite]) -> str:
    """The variant that all sites take, if it is one; of those that tie it need not be fastest."""
    names = {site.takes for site in sites}
    return names.pop() if len(names) == 1 else ""


def _none_for_all(sites: Sequence[TimedSite], tables: Sequence[str]) -> str:
    if unknown := [site.site for site in sites if not site.times]:
        return f"nothing was timed on {unknown[0]}"
    count = counted(len(sites), "site")
    for name in dict.fromkeys(site.takes for site in sites if site.takes != site.uses):
        for site in sites:
            if not _serves(name, site, tables):
                more = can_serve(find_row(name, tables), site.details)
                return (
                    f"no variant was timed on all {count}: {name} not on {site.site}"
                    if more is None
                    else f"no variant can serve all {count}: {more} ({site.site})"
                )
    return f"no variant was timed on all {count}"


def for_whole_model(sites: Sequence[TimedSite], tables: Sequence[str] = ()) -> EngineAnswer:
    """One implementation for all layers of a transformers model, where it was timed on all of the
    model's calls and they gain by it, set-up for each new mask included; else why there is none.
    """
    engine = "transformers"
    if all(site.takes == site.uses for site in sites):
        return EngineAnswer(engine, why="no call would gain by another variant")
    if unknown := [s.site for s in sites if s.uses not in s.times or not s.times[s.uses].measured]:
        now = "how long its calls take now is not known"
        return EngineAnswer(engine, why=f"{unknown[0]} is among the model's sites, and {now}")
    measured = [
        replace(site, times={n: c for n, c in site.times.items() if c.measured}) for site in sites
    ]
    unchanged = {site.uses for site in sites}
    able = [
        name for name in _for_all(measured, tables, _in_model_s(measured)) if unchanged != {name}
    ]
    if not able:
        return EngineAnswer(engine, why=_none_for_all(sites, tables))
    best = min(able, key=_in_model_s(sites))

    def now_s(what: str) -> float:
        return sum(s.calls * getattr(s.times[s.uses], what) for s in sites)

    def then_s(what: str) -> float:
        return _in_model_s(sites, what)(best)

    gain = Interval(
        then_s("median_s") / now_s("median_s"),
        then_s("low_s") / now_s("high_s"),
        then_s("high_s") / now_s("low_s"),
    )
    if gain.high < 1:
        return EngineAnswer(engine, best, in_transformers(best, tables), ratio=gain)
    why = (
        f"set_attn_implementation would set {best} for all {counted(len(sites), 'site')}, and with "
        "what attnbench does at each call and for each new mask or length they would take "
        f"{gain} what they take now"
    )
    return EngineAnswer(engine, why=why, ratio=gain)


# ---- each engine ---------------------------------------------------------------------------------

KERNEL, MATH = "sdpa_kernel", "sdpa.math"
VLLM_MASKS = {"none", "causal", "window"}
"""The masks that vLLM makes for a model; it is given none."""
FLASH_VERSIONS = {"flash_attn2": 2, "flash_attn3": 3, "flash_attn4": 4}
NO_MASK = {"_native_flash", "flash", "_flash_3", "flash_4_hub", "sage"}
"""What diffusers calls the backends that refuse an ``attn_mask``."""


def _one_for_all(
    engine: str,
    sites: Sequence[TimedSite],
    tables: Sequence[str],
    refused: Callable[[str, TimedSite], str | None],
    lines_of: Callable[[str], list[str]],
) -> EngineAnswer:
    """The lines for the best, if the engine can take it everywhere; else what else it could."""
    seconds = _calls_s(sites)
    able = _for_all(sites, tables, seconds)
    if not able:
        return EngineAnswer(engine, why=_none_for_all(sites, tables))

    def refusal(name: str) -> str | None:
        return next(filter(None, (refused(name, site) for site in sites)), None)

    best = able[0]
    if (why := refusal(best)) is None:
        return EngineAnswer(engine, best, lines_of(best))
    if other := next((name for name in able[1:] if refusal(name) is None), None):
        longer = ratio(seconds(other) / seconds(best))
        why += f". It can take {other}, {longer} as long: {'; '.join(lines_of(other))}"
    return EngineAnswer(engine, why=why)


def _for_transformers(sites: Sequence[TimedSite], tables: Sequence[str]) -> EngineAnswer:
    if any(site.uses for site in sites):
        return for_whole_model(sites, tables)
    return _one_for_all(
        "transformers",
        sites,
        tables,
        lambda name, site: None,
        lambda name: in_transformers(name, tables),
    )


def _refused_by_vllm(name: str, site: TimedSite) -> str | None:
    problem = site.problem
    if problem.device == "cpu":
        return "on a CPU vLLM runs CPU_ATTN, whatever it is asked for"
    if problem.gradients:
        return f"vLLM doesn't train, and {problem} does"
    if other := [kind for kind in problem.mask.kinds if kind not in VLLM_MASKS]:
        return f"vLLM makes its masks itself (none, causal, a window), and no {' or '.join(other)}"
    if engine_name("vllm", name):
        return None
    only = ", but in the encoders of multimodal models: --mm-encoder-attn-backend TORCH_SDPA"
    return f"vLLM has no {name}" + (only if name == "sdpa" else "")


def _vllm_flags(name: str) -> list[str]:
    version = FLASH_VERSIONS.get(name)
    flags = f"--attention-backend {engine_name('vllm', name)}"
    return [flags + (f" --attention-config.flash_attn_version {version}" if version else "")]


def _for_vllm(sites: Sequence[TimedSite], tables: Sequence[str]) -> EngineAnswer:
    """One backend for all layers, or one for those with a window and one for the rest."""

    def best(some: Sequence[TimedSite]) -> EngineAnswer:
        return _one_for_all("vllm", some, tables, _refused_by_vllm, _vllm_flags)

    windows = [site for site in sites if "window" in site.problem.mask.kinds]
    rest = [site for site in sites if "window" not in site.problem.mask.kinds]
    if not windows or not rest:
        return best(sites)
    full, window = best(rest), best(windows)
    names = [engine_name("vllm", each.variant) for each in (full, window)]
    if not (full.lines and window.lines) or names[0] == names[1]:
        return best(sites)
    config: dict[str, Any] = {
        "backend": names[0],
        "backend_per_kind": {"sliding_window": names[1]},
    }
    if version := FLASH_VERSIONS.get(full.variant) or FLASH_VERSIONS.get(window.variant):
        config["flash_attn_version"] = version
    variants = f"{full.variant}, and {window.variant} in windows"
    return EngineAnswer("vllm", variants, [f"--attention-config '{json.dumps(config)}'"])


def _refused_by_diffusers(variant: str, site: TimedSite) -> str | None:
    name, mask = engine_name("diffusers", variant), site.problem.mask
    if not name:
        return f"diffusers has no {variant}"
    causal = mask.is_causal(site.problem.shape)
    if name in NO_MASK and not mask.plain and not causal:
        return f"diffusers' {name} takes no attn_mask, and the mask is {mask.kinds[0]}"
    if name == "flex" and causal:
        return "diffusers' flex leaves is_causal out"
    return None


def _diffusers_lines(variant: str) -> list[str]:
    name = engine_name("diffusers", variant)
    compiled = ["pipe.transformer.compile()  # without it FlexAttention runs uncompiled"]
    return [
        f'pipe.transformer.set_attention_backend("{name}")',
        *(compiled if name == "flex" else []),
    ]


def _for_diffusers(sites: Sequence[TimedSite], tables: Sequence[str]) -> EngineAnswer:
    return _one_for_all("diffusers", sites, tables, _refused_by_diffusers, _diffusers_lines)


# ---- sdpa_kernel ---------------------------------------------------------------------------------


def _for_sdpa_kernel(sites: Sequence[TimedSite], tables: Sequence[str]) -> EngineAnswer:
    """torch's backends in an order: each call goes to the first that takes it."""
    engine = KERNEL
    order = _backends_in_order(sites, tables)
    if not order:
        return EngineAnswer(engine, why="no order of torch's backends was timed on all these calls")
    code = _kernel_lines(order)
    foreign = [s for s in sites if s.takes not in ("", "sdpa") and not engine_name(engine, s.takes)]
    if foreign:
        variant, first = foreign[0].takes, order[0]
        why = f"sdpa_kernel chooses among torch's backends, and {variant} is none of them"
        if len(sites) == 1:
            longer = ratio(sites[0].times[first].median_s / sites[0].times[variant].median_s)
            why += f". Of these {first} takes {longer} as long: {code[1]}"
        return EngineAnswer(engine, why=why)
    if _torch_chooses_as_well(sites, order, tables):
        why = "torch chooses the fastest of its backends by itself: no sdpa_kernel is needed"
        return EngineAnswer(engine, "sdpa", why=why)
    return EngineAnswer(engine, ", then ".join(order), code)


def _backends_in_order(sites: Sequence[TimedSite], tables: Sequence[str]) -> list[str]:
    """torch's backends up to MATH, which takes every call, in the order in which all calls together
    take least; where that decides nothing, those first that are least behind the best.
    """
    names = dict.fromkeys(n for site in sites for n in site.times if engine_name(KERNEL, n))

    def behind(name: str) -> float:
        timed = [site.times for site in sites if name in site.times]
        best = [min(c.median_s for n, c in times.items() if n in names) for times in timed]
        times = [each[name].median_s for each in timed]
        return sum(t / b for t, b in zip(times, best, strict=True)) / len(timed)

    orders = permutations(sorted(names, key=behind))
    first = (_common_choice(sites),)
    best = min(orders, key=lambda o: (o[:1] != first, _by_order_s(o, sites, tables)))
    if _by_order_s(best, sites, tables) == inf:
        return []
    return [*best, MATH][: [*best, MATH].index(MATH) + 1]


def _by_order_s(
    order: Sequence[str], sites: Sequence[TimedSite], tables: Sequence[str], what: str = "median_s"
) -> float:
    """Seconds of all calls, each by the first that takes it; infinite where that was not timed."""

    def call_s(site: TimedSite) -> float:
        for name in order:
            if _serves(name, site, tables):
                return float(getattr(site.times[name], what))
            if name == MATH or find_row(name, tables).supports(site.problem) is None:
                return inf
        return inf

    return sum(site.calls * call_s(site) for site in sites)


def _torch_chooses_as_well(
    sites: Sequence[TimedSite], order: Sequence[str], tables: Sequence[str]
) -> bool:
    """Whether torch's own choice takes no longer, for all that is known."""
    if _common_choice(sites) or not all("sdpa" in site.times for site in sites):
        return _common_choice(sites) == "sdpa"
    return _calls_s(sites, "low_s")("sdpa") <= _by_order_s(order, sites, tables, "high_s")


def _kernel_lines(order: Sequence[str]) -> list[str]:
    names = [f"SDPBackend.{engine_name(KERNEL, name)}" for name in order]
    return [
        "from torch.nn.attention import SDPBackend, sdpa_kernel",
        f"with sdpa_kernel([{', '.join(names)}], set_priority=True):",
        "    ...  # your program's calls",
    ]


ANSWERS: dict[str, Callable[[Sequence[TimedSite], Sequence[str]], EngineAnswer]] = {
    "transformers": _for_transformers,
    KERNEL: _for_sdpa_kernel,
    "vllm": _for_vllm,
    "diffusers": _for_diffusers,
}
