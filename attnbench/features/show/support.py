"""The support matrix: what each row of the table takes, as the table says it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from attnbench.report import tidy
from attnbench.report.tables import Table, columns
from impls.masks import MASK_KINDS
from impls.operators import PARAMETERS
from impls.problem import SHORT
from impls.spec import DEVICES, DTYPES, NO_GRADIENT, PHASES, Variant

SHAPES = ("gqa", "cross", "v_head_dim", "gradient")
GROUPS = {
    "masks": MASK_KINDS,
    "devices, dtypes and phases": ("computes", *DEVICES, *(SHORT[x] for x in DTYPES), *PHASES),
    "parameters, shapes and needs": (*PARAMETERS, *SHAPES, "head_dim", "needs"),
}
"""The columns of each part, by its title."""
NOTES = (
    "✓: on each device that the row runs on; cpu or cuda: on that alone.",
    "gqa: fewer key/value heads than heads; cross: q_len other than kv_len; v_head_dim: other than "
    "head_dim; gradient: it trains. A layer is shown with its default core.",
    "What depends on a length, a width or an option is refused by a sentence as the row is built.",
)
WORDS: Mapping[str, Callable[[Variant], str]] = {
    "computes": lambda row: row.computes,
    "head_dim": lambda row: "{} to {}".format(*row.head_dims) if row.head_dims else "",
    "needs": lambda row: ", ".join(row.requires),
}
"""The columns that are no yes or no."""
YES, DECODE = "✓", "in decode"


def takes(row: Variant, device: str) -> dict[str, bool | str]:
    """What a row takes on one of its devices, by column; ``"decode"``: in that phase alone."""
    masks, dtypes = row.on(device, "masks"), row.on(device, "dtypes")
    phases = row.on(device, "phases")
    return {
        **{kind: kind in masks for kind in MASK_KINDS},
        **{SHORT[name]: name in dtypes for name in DTYPES},
        **{phase: phase in phases for phase in PHASES},
        **{name: name in row.takes for name in PARAMETERS},
        **dict(zip(SHAPES, (row.gqa, row.cross, row.value_dim), strict=False)),
        "gradient": not set(phases) <= set(NO_GRADIENT),
    }


def rows(some: Iterable[Variant]) -> Iterator[tidy.Row]:
    """A row a variant and a device, as ``--csv`` has it."""
    for row in some:
        for device in row.devices:
            about = {"variant": row.name, "family": row.family, "computes": row.computes}
            about["device"] = device
            least, most = row.head_dims or (None, None)
            limits = {"least_head_dim": least, "most_head_dim": most}
            yield {**about, **takes(row, device), **limits, "needs": "; ".join(row.requires)}


def matrix(some: Iterable[Variant]) -> list[Table]:
    """A table a group of columns."""
    some, tables = list(some), []
    for title, names in GROUPS.items():
        heads = columns("variant", *names, wrap=["variant", "computes", "needs"])
        lines = [[row.name, *(_cell(row, name) for name in names)] for row in some]
        tables.append(Table(title, heads, lines))
    return [*tables[:-1], replace(tables[-1], notes=NOTES)]


def _cell(row: Variant, name: str) -> str:
    if name in WORDS:
        return WORDS[name](row)
    if name in DEVICES:
        return YES * (name in row.devices)
    values = {device: takes(row, device)[name] for device in row.devices}
    some = [device for device, value in values.items() if value]
    if len(some) < len(values):
        return ", ".join(some)
    return DECODE if "decode" in values.values() else YES
