"""What a user can paste: the lines that use a variant, and the command that proves it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnbench.answer.choose import Choice
    from impls.problem import Problem


def words_of(p: Problem) -> list[str]:
    """A problem as the command line says it, whole, so that no preset may change it."""
    ordinary = 1 if p.phase == "decode" else p.kv_len
    words: list[Any] = ["--seq", p.kv_len if p.q_len == ordinary else f"{p.q_len}x{p.kv_len}"]
    for name in ("batch", "heads", "kv_heads", "head_dim", "v_head_dim"):
        alike = {"kv_heads": "heads", "v_head_dim": "head_dim"}.get(name)
        if alike is None or getattr(p, name) != getattr(p, alike):
            words += [f"--{name.replace('_', '-')}", getattr(p, name)]
    words += ["--dtype", p.dtype, "--mask", p.mask, "--phase", p.phase]
    words += ["--inputs", p.inputs] * (p.inputs != "normal") + ["--device", p.device]
    return [str(word) for word in words]


def words_beside_default(p: Problem) -> list[str]:
    """What the command line must say of a problem: its length, and all that is not the default."""
    from attnbench.sweep.plan import problems
    from attnbench.sweep.presets import one_problem

    default, own = words_of(next(problems(one_problem(p.device)))), words_of(p)
    usual = set(zip(default[::2], default[1::2], strict=True))
    pairs = zip(own[::2], own[1::2], strict=True)
    return [w for pair in pairs if pair[0] == "--seq" or pair not in usual for w in pair]


BACKENDS = {
    "sdpa.math": "MATH",
    "sdpa.flash": "FLASH_ATTENTION",
    "sdpa.efficient": "EFFICIENT_ATTENTION",
    "sdpa.cudnn": "CUDNN_ATTENTION",
}
"""The variants that are torch's own, by what torch calls their backends."""
PREFIX = "attnbench:"


def lines(variant: str, problem: Problem) -> list[str]:
    """Python that computes this problem with this variant, of q, k, v [batch, heads, tokens, d]."""
    mask, one = str(problem.mask), problem.q_len == 1
    torchs = (variant == "sdpa" or variant in BACKENDS) and mask in ("none", "causal")
    if not torchs or not (one or problem.q_len == problem.kv_len):  # else its mask is a tensor
        return [
            "import attnbench",
            f'attend = attnbench.attention("{variant}")',
            f'out = attend(q, k, v, mask="{mask}")',
        ]
    words = ["q, k, v"] + ["is_causal=True"] * (mask == "causal" and not one)
    words += ["enable_gqa=True"] * (problem.group > 1)
    call = f"out = F.scaled_dot_product_attention({', '.join(words)})"
    start = ["import torch.nn.functional as F"]
    if variant == "sdpa":
        return [*start, call]
    return [
        *start,
        "from torch.nn.attention import SDPBackend, sdpa_kernel",
        f"with sdpa_kernel(SDPBackend.{BACKENDS[variant]}):",
        f"    {call}",
    ]


def lines_for(variant: str, problems: Iterable[Problem]) -> list[str]:
    """The same for several problems: where one line would not be right for each, its mask is an
    argument, one of those named below.
    """
    each = {tuple(lines(variant, problem)): str(problem.mask) for problem in problems}
    if len(each) == 1:
        return list(*each)
    masks = " or ".join(f'"{mask}"' for mask in dict.fromkeys(each.values()))
    return [
        "import attnbench",
        f'attend = attnbench.attention("{variant}")',
        "out = attend(q, k, v, mask=mask)",
        f"# mask: {masks}",
    ]


def in_transformers(variant: str) -> list[str]:
    """The same for a model of transformers."""
    start = ["import attnbench.models.transformers"]
    if "?" in variant:
        start.append(f'attnbench.models.transformers.register("{variant}")')
    return [*start, f'model.set_attn_implementation("{spelled(variant)}")']


def spelled(variant: str) -> str:
    """The name of a variant for transformers, which takes ``flash`` in a name for its own."""
    return PREFIX + variant.replace("flash", "FLASH")


def proof(choice: Choice) -> str:
    """The command that holds the winner against the runner-up, in pairs; or measures it alone."""
    if (r := choice.ranking) is None:
        return ""
    verb = "run" if r.runner_up is None else "compare"
    names = [c.variant for c in (r.winner, r.runner_up) if c]
    return shlex.join(["attnbench", verb, *names, *words_of(choice.problem), *choice.settings])


def pasted(choice: Choice) -> dict[str, Any]:
    """All of it; of a choice without a winner nothing."""
    found: dict[str, Any] = {"code": [], "transformers": [], "proof": proof(choice)}
    if choice.ranking and choice.problem.level == "core":  # others have weights: a module
        name = choice.ranking.winner.variant
        found |= {"code": lines(name, choice.problem), "transformers": in_transformers(name)}
    return found
