"""Text that a user can paste: the lines that use a variant, and the command that proves it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import impls
from attnbench.core.call import BACKENDS, RETURNS
from attnbench.core.settings import KEPT, allocator_of
from impls import Table, own_rows
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.operators import OUTPUTS, further

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from attnbench.answer.choose import Choice
    from attnbench.core.record import Record
    from impls.problem import Problem
    from impls.spec import Variant


def command_words(p: Problem, *, whole: bool = True) -> list[str]:
    """A problem as the command line says it: whole, so that no preset may change it; or its length
    and all that is not the default.
    """
    from attnbench.sweep.presets import PROBLEM

    usual = {("--device", p.device)}
    for name in ("batch", "heads", "head_dim", "dtype", "mask", "phase"):
        (value,) = getattr(PROBLEM[p.device.split(":")[0]], name)
        usual.add((f"--{name.replace('_', '-')}", str(value)))
    return [word for each in _options_of(p) if whole or each not in usual for word in each]


def _options_of(p: Problem) -> list[tuple[str, ...]]:
    """Each option with its value, if it takes one."""
    ordinary = 1 if p.phase == "decode" else p.kv_len
    options: list[tuple[Any, ...]] = [
        ("--seq", p.kv_len if p.q_len == ordinary else f"{p.q_len}x{p.kv_len}")
    ]
    for name in ("batch", "heads", "kv_heads", "head_dim", "v_head_dim"):
        alike = {"kv_heads": "heads", "v_head_dim": "head_dim"}.get(name)
        if alike is None or getattr(p, name) != getattr(p, alike):
            options += [(f"--{name.replace('_', '-')}", getattr(p, name))]
    options += [("--dtype", p.dtype), ("--mask", p.mask), ("--phase", p.phase)]
    options += [("--inputs", p.inputs)] if p.inputs != "normal" else []
    for name, value in p.parameters.items():
        option = f"--{name.replace('_', '-')}"
        options += [(option,) if value is True else (option, _digits(value))]
    options += [("--device", p.device)]
    return [tuple(map(str, option)) for option in options]


def _digits(number: float) -> str:
    """All of its digits, so that the problem is the same."""
    return str(number).removesuffix(".0")


@dataclass(frozen=True)
class CallDetails:
    """Demands of a call beside its problem."""

    dropout: float = 0.0
    returns: str = ""
    """A second value that it must return: ``lse``, the log-sum-exp of each row's scores, or
    ``weights``."""


PLAIN = CallDetails()


def can_serve(row: Variant, details: CallDetails) -> str | None:
    """None where the variant can do what the call asks for, else a sentence."""
    if details.returns:
        words = RETURNS.get(details.returns, details.returns)
        if details.returns in row.parameters:
            return (
                f"{row.label} is measured without the {words}, and the call needs it: --"
                f"{details.returns} measures it with"
            )
        return f"{row.label} returns the output alone, and the call needs the {words}"
    if details.dropout and not row.dropout:
        return f"{row.label} does no dropout, and the call drops {details.dropout:g} of the weights"
    return None


def beyond_torch(problem: Problem) -> list[str]:
    """The problem's parameters that scaled_dot_product_attention hasn't."""
    return [name for name in problem.parameters if name not in ("scale", "v_in_k")]


TRANSFORMERS = {
    "sdpa": "sdpa",
    "matmul": "eager",  # flex_attention is left out: many models refuse it
    **{f"flash_attn{number}": f"flash_attention_{number}" for number in (2, 3, 4)},
}
"""The names that transformers (5.23) has for variants."""
PREFIX = "attnbench:"
OWN = "its own operator"
CAUSAL = Mask.parse("causal")
FILES = {"dense", "bias"}
"""Masks without a name, which a program holds as a tensor."""
OF_A_BATCH = {"padding", "document"}


def transformers_name(variant: str, problems: Iterable[Problem] = ()) -> str:
    """The name that transformers itself has for a variant; empty where it has none, or where its
    own leaves out what the problems set.
    """
    left_out = variant == "sdpa" and any(map(beyond_torch, problems))
    return "" if left_out else TRANSFORMERS.get(variant, "")


def lines_for(variant: str, problems: Iterable[Problem]) -> list[str]:
    """The lines for several problems: where one would not be right for each, its mask is an
    argument, one of those named below.
    """
    each = {tuple(lines(variant, p)): p for p in problems}
    if len(each) == 1:
        return list(*each)
    masks = " or ".join(f'"{mask}"' for mask in dict.fromkeys(str(p.mask) for p in each.values()))
    return [*lines(variant, next(iter(each.values())), any_mask=True), f"# mask: {masks}"]


def spelled(variant: str) -> str:
    """The name of a variant for transformers, which takes ``flash`` in a name for its own."""
    return PREFIX + variant.replace("flash", "FLASH")


def lines(
    variant: str,
    problem: Problem,
    details: CallDetails = PLAIN,
    tables: Sequence[str] = (),
    *,
    any_mask: bool = False,
) -> list[str]:
    """Python that computes this call with this variant, of q, k, v [batch, heads, tokens, d]; none
    where the variant can't (:func:`can_serve`).

    A mask that is a file is the caller's ``attn_mask``. ``tables``: the files of rows in which the
    variant may be. ``any_mask``: for calls with several masks, each the caller's ``mask``.
    """
    if details != PLAIN and can_serve(find_row(variant, tables), details) is not None:
        return []
    settings = problem.settings
    flags = [name for name in problem.parameters if name not in settings]
    values = f"k[..., :{problem.v_head_dim}]" if "v_in_k" in flags else "v"
    besides = [name for name in flags if name in OUTPUTS]
    inputs = [*_inputs_by_name(variant, tables)]
    inputs += [name for name in flags if name not in (*besides, "v_in_k")]
    more = [f"{name}={value!r}" for name, value in settings.items()]
    more += [f"{name}={name}" for name in inputs]
    more += [f"return_{name}=True" for name in besides]
    more += [f"dropout_p={details.dropout!r}"] if details.dropout else []
    notes = ["dropout_p: 0.0 outside training"] if details.dropout else []
    backend = BACKENDS.get(variant.removeprefix("sdpa."), "") if variant != "sdpa" else ""
    plain = not beyond_torch(problem)
    torchs = _mask_for_torch(problem) if plain and (backend or variant == "sdpa") else None
    mask, note = ("mask=mask", "") if any_mask else _mask_for_attnbench(problem)
    comment = "; ".join(filter(None, [note, *notes]))
    comment = f"  # {comment}" if comment else ""
    if torchs is None or any_mask:
        words = [f"q, k, {values}", mask, *more]
        return [
            "import attnbench",
            f"attend = attnbench.attention({_arguments(variant, tables)})",
            f"{', '.join(('out', *besides))} = attend({', '.join(words)}){comment}",
        ]
    words = [f"q, k, {values}", *torchs, *more, *["enable_gqa=True"] * (problem.group > 1)]
    call = f"out = F.scaled_dot_product_attention({', '.join(words)}){comment}"
    start = ["import torch.nn.functional as F"]
    if not backend:
        return [*start, call]
    return [
        *start,
        "from torch.nn.attention import SDPBackend, sdpa_kernel",
        f"with sdpa_kernel(SDPBackend.{backend}):",
        f"    {call}",
    ]


def _mask_for_torch(problem: Problem) -> list[str] | None:
    """The arguments of torch's function; None where a mask would have to be made first."""
    mask = problem.mask
    if mask.plain or (problem.q_len == 1 and mask == CAUSAL):  # the last query sees every key
        return []
    if mask.is_causal(problem.shape):
        return ["is_causal=True"]
    return None if FILES.isdisjoint(mask.kinds) else ["attn_mask=attn_mask"]


def _mask_for_attnbench(problem: Problem) -> tuple[str, str]:
    """The argument for the mask, and what must be said of it."""
    mask = problem.mask
    if not FILES.isdisjoint(mask.kinds):
        rest = ", ".join(str(part) for part in mask.parts if not part.file)
        return "mask=attn_mask", "attn_mask: your mask" + (f", with {rest} in it" if rest else "")
    of_a_batch = not OF_A_BATCH.isdisjoint(mask.kinds)
    return f'mask="{mask}"', "the lengths are this batch's" if of_a_batch else ""


def find_row(variant: str, tables: Sequence[str] = ()) -> Variant:
    """Its row: built in, or of an installed distribution or these files."""
    own = own_rows()
    table = Table(dict(own)) if variant.partition("?")[0] in own else impls.table(tables)
    return table.find(variant)


def _inputs_by_name(variant: str, tables: Sequence[str]) -> tuple[str, ...]:
    """What it takes after q, k and v; nothing where an older run's variant is not known here."""
    try:
        return further(find_row(variant, tables).operator)
    except CantBeDone:
        return ()


def in_transformers(
    variant: str, tables: Sequence[str] = (), problems: Iterable[Problem] = ()
) -> list[str]:
    """Python by which all layers of a transformers model use this variant on these problems; none
    where a model can't hand it what it takes.
    """
    row = own_rows().get(variant.partition("?")[0])
    if _inputs_by_name(variant, tables) or (row and "kv_dtype" in row.takes):
        return []
    if own := transformers_name(variant, problems):
        return [f'model.set_attn_implementation("{own}")']
    start = ["import attnbench.models.transformers"]
    if "?" in variant or variant not in own_rows():
        start.append(f"attnbench.models.transformers.register({_arguments(variant, tables)})")
    return [*start, f'model.set_attn_implementation("{spelled(variant)}")']


def _arguments(variant: str, tables: Sequence[str]) -> str:
    """The arguments that name a variant: with the files of rows, where it isn't built in."""
    built_in = variant.partition("?")[0] in own_rows()
    words = [variant] if built_in or not tables else [variant, list(tables)]
    return ", ".join(map(json.dumps, words))


def proof(choice: Choice) -> str:
    """The command that holds the winner against the runner-up, in pairs; or measures it alone."""
    if (r := choice.ranking) is None:
        return ""
    verb = "run" if r.runner_up is None else "compare"
    names = [c.variant for c in (r.winner, r.runner_up) if c]
    return shlex.join(["attnbench", verb, *names, *command_words(choice.problem), *choice.settings])


def pasted(choice: Choice) -> dict[str, Any]:
    """All of it; of a choice without a winner nothing."""
    parts: dict[str, Any] = {"code": [], "transformers": [], "proof": proof(choice)}
    if choice.ranking and choice.problem.level == "core":  # others have weights: a module
        name, tables = choice.ranking.winner.variant, tables_of(choice)
        parts["code"] = lines(name, choice.problem, tables=tables)
        parts["transformers"] = in_transformers(name, tables, [choice.problem])
    return parts


def tables_of(choice: Choice) -> list[str]:
    """The files of rows that the run of a choice was given."""
    pairs = zip(choice.settings, choice.settings[1:], strict=False)
    return [file for word, file in pairs if word == "--table"]


def table_options(header: Mapping[str, Any]) -> list[str]:
    """``--table FILE`` for each file of rows, as the header spells it: the same on any machine."""
    return [word for table in header.get("tables") or () for word in ("--table", str(table))]


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is given in full, so that no preset of another machine can change it.
    """
    p = record.problem
    from attnbench.sweep.presets import PRESETS

    budget = header.get("budget_s")
    if budget == PRESETS["cuda" if p.device.startswith("cuda") else "cpu"].budget:
        budget = None
    options = {
        "--world": record.ranks and record.ranks.world,
        "--seed": record.seed,
        "--threads": (header.get("settings") or {}).get("threads"),
        "--allocator": KEPT if allocator_of(header) == KEPT else None,
        "--budget": budget,
    }
    words: list[Any] = ["attnbench", "run", record.variant, *command_words(p)]
    words += (word for name, value in options.items() if value for word in (name, value))
    words += ["--energy"] if header.get("energy") else []
    words += table_options(header)
    return shlex.join(map(str, words))
