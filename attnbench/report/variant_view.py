"""The table of variants, and one of them: what it is, what it takes, and whether it runs here."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape

from attnbench.report.tables import BAD, GOOD, console, grid, put
from impls import BrokenRow
from impls.spec import Variant

UNTRIED = "not yet run: no run has attested it"


def table(rows: Iterable[tuple[Variant, str | None, str]], broken: Iterable[BrokenRow]) -> None:
    """``list``: family by family, each row available or with its reason and remedy."""
    made = grid("variant", "family", "computes", "here", "", words=["variant", ""])
    last = ""
    for row, reason, remedy in rows:
        if last and row.family != last:
            made.add_section()
        here = f"[{GOOD}]yes[/]" if reason is None else f"[{BAD}]no[/]"
        why = row.title if reason is None else reason + f" → {remedy}" * bool(remedy)
        why += f" ({UNTRIED})" * row.untried
        family = escape(row.family) if row.family != last else ""
        made.add_row(row.name, family, row.computes, here, escape(why))
        last = row.family
    for bad in broken:
        why = bad.reason + f" → {bad.remedy}" * bool(bad.remedy)
        made.add_row(escape(bad.name), "", "", f"[{BAD}]broken[/]", escape(why))
    put(made)


def show(row: Variant, mathematics: str, reason: str | None, remedy: str) -> None:
    """``show NAME``: what it is, what it takes, what it costs."""
    out = console()
    out.print(f"[bold]{row.name}[/]  {escape(row.title)}")
    out.print(escape(f"{row.family}, level {row.level}, computes: {row.computes}\n"))
    out.print(escape(mathematics) + "\n")
    limits = [
        ("grouped-query heads", row.gqa),
        ("q_len ≠ kv_len", "in decode alone" if row.cross == "decode" else row.cross),
        ("v_head_dim ≠ head_dim", row.value_dim), ("dropout of weights", row.dropout),
    ]  # fmt: skip
    facts = {
        f"on {device}": f"{', '.join(row.on(device, 'dtypes'))}; "
        f"masks {', '.join(row.on(device, 'masks'))}; {', '.join(row.on(device, 'phases'))}"
        for device in row.devices
    }
    facts |= {
        "shapes": ", ".join(f"{what}: {_yes(can)}" for what, can in limits),
        "head_dim": f"{row.head_dims[0]} to {row.head_dims[1]}" if row.head_dims else "",
        "options": ", ".join(f"{k}={_word(v)}" for k, v in {**row.options, **row.given}.items()),
        "core": f"{row.core.label}: {row.core.title}" if row.core else "",
        "requires": ", ".join(row.requires),
        "paper": row.paper,
        "code": row.build,
        "attested by": ", ".join(
            f"{operator} on {device}"
            for device in row.devices
            if (operator := row.attested_by(device)) is not None
        ),
        "from": row.origin,
        "run": UNTRIED if row.untried else "",
        "runs here": "yes" if reason is None else f"no: {reason}" + f" → {remedy}" * bool(remedy),
    }
    made = grid("", "", words=[""])
    for what, fact in facts.items():
        if fact:
            made.add_row(what, escape(fact))
    put(made)


def _yes(can: bool | str) -> str:
    return can if isinstance(can, str) else "yes" if can else "no"


def _word(value: object) -> str:
    """An option as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"
