"""The longest that each variant takes in a budget: a table a phase and mask, and a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.core.format import (
    NOT_SOFTMAX,
    OTHER,
    duration,
    name_with_star,
    parse_size,
    size,
    tokens,
)
from attnbench.report import tables, tidy
from attnbench.report.figures.sheet import FAINT, HUES, INK, PAPER, save, sheet, shorten
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
ABOUT = "≈ "
"""Before what was not run."""
BUDGETS = ("memory", "time")
SIZE = re.compile(r"[\d.,]+ [KMGT]?i?B\b")


def show(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> None:
    """Print a table for each phase and mask, the longest first, and the notes below."""
    longest = "longest that held" if by == "seq" else "largest batch that held"
    memory, fails = size(budget["peak_bytes"]), "does not hold at"
    numbers = (longest, "time there", "peak there", f"{memory} alone, predicted")
    names = ("variant", longest, "limited by", *numbers[1:3], fails, numbers[3])
    heads = columns(*names, right=numbers, wrap=[fails])
    for (phase, mask), group in _groups(rows).items():
        show_table(Table(f"{phase} · mask {mask}", heads, [_cells(row) for row in group]))
    out, lines = console(), []
    flags: dict[str, list[tuple[str, list[str]]]] = {}
    for row in rows:
        fell, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fell is not None and fell["why"] not in BUDGETS:
            lines.append(f"! {name} at {fell['size']:,}: {fell['why']}: {fell['reason']}")
        for flag in ((row["held"] or {}).get("probe") or {}).get("flags", ()):
            sizes = SIZE.findall(flag)
            flags.setdefault(SIZE.sub("{}", flag), []).append((name, sizes))
    for flag, some in flags.items():  # one that differs in sizes alone is said once
        most = [max(each, key=parse_size) for each in zip(*(each for _, each in some), strict=True)]
        up_to = (f"up to {size}" if len(some) > 1 else size for size in most)
        lines.append(f"! {flag.format(*up_to)}: {', '.join(name for name, _ in some)}")
    lines += [
        f"budget: {memory} and {duration(budget['seconds'])} a call; brackets of a sixteenth; what "
        "held was run there, and right",
        "peak: bytes live above the inputs at the worst instant, output included; time: the median "
        f"of a few calls; {ABOUT.strip()} predicted: by the row's formula, else as it grew",
    ]
    if any(row["computes"] != "softmax" for row in rows):
        lines.append(f"{OTHER} {NOT_SOFTMAX}")
    out.print()
    for line in lines:
        out.print(escape(line), style=tables.FAINT)


def _panel(row: Row) -> tuple[str, str]:
    return row["phase"], row["mask"]


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(_panel(row), []).append(row)
    return groups


def _cells(row: Row) -> list[Any]:
    best, memory, why = row["held"], row["predicted"].get("memory"), row["limited_by"]
    limited: Any = why or "–"
    if why in BUDGETS and not row["fails"]:
        limited = f"{why} ≈"
    elif why and why not in BUDGETS:
        limited = Styled(why.replace("_", " "), BAD)
    return [
        _name(row),
        Styled(f"{best['size']:,}", GOOD) if best else "none",
        limited,
        duration(best["time_s"]) if best else "",
        size(best["peak_bytes"]) if best else "",
        _not_held(row),
        "" if memory is None else f"{ABOUT}{memory:,}",
    ]


def _name(row: Row) -> str:
    return name_with_star(row["variant"], row["computes"])


def csv_row(row: Row) -> tidy.Row:
    """A row of CSV: the largest size that held, with its time and memory, and the least that did
    not.
    """
    best, fails, predicted = (row[name] or {} for name in ("held", "fails", "predicted"))
    problem = tidy.of_problem(row["problem"])
    for name in ("seq", "q_len") if row["by"] == "seq" else ("batch",):
        del problem[name]  # what was searched
    return {
        "variant": row["variant"],
        "computes": row["computes"],
        **problem,
        "by": row["by"],
        "held": best.get("size"),
        **_took(best),
        "limited_by": row["limited_by"],
        "fails_at": fails.get("size"),
        **{f"fails_{name}": value for name, value in _took(fails).items()},
        "predicted_by_memory": predicted.get("memory"),
        "predicted_by_time": predicted.get("time"),
        "reason": fails.get("reason") or row["why"],
    }


def _took(look: Mapping[str, Any]) -> tidy.Row:
    return tidy.flat({"median_s": look.get("time_s"), "peak_bytes": look.get("peak_bytes")})


def _not_held(row: Row) -> str:
    """The shortest that does not hold, and its time or memory."""
    fails, what = row["fails"], row["limited_by"]
    if fails is None:
        if row["held"] is None or not what:
            return row["why"] or "nothing: the search ends there"
        return f"{ABOUT}above {row['predicted'][what]:,} ({what}, predicted)"
    figure = ""
    if fails["why"] not in BUDGETS:
        figure = fails["reason"] if row["held"] is None else ""
    elif fails["why"] == "time":
        figure = duration(fails["time_s"]) if fails["time_s"] else fails["reason"]
    elif fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    return f"{fails['size']:,}" + (f" ({figure})" if figure else "")


# ---- the picture ---------------------------------------------------------------------------------

LOOKS = {
    "time": ("held back by time", HUES["blue"], ""),
    "memory": ("held back by memory", HUES["orange"], "////"),
    "": ("the search ended there", FAINT, ""),
}
"""A reason's colour and hatch, so that either will do."""
ELSE = ("wrong, crashed or refused beyond", HUES["red"], "xxxx")


def draw(
    rows: Sequence[Row], budget: Mapping[str, Any], by: str, title: str, files: Sequence[Path]
) -> bool:
    """Draw a bar for each variant, and pale up to where it does not hold; False where nothing held
    anywhere.
    """
    sizes = {(_name(row), *_panel(row)): row["held"]["size"] for row in rows if row["held"]}
    if not sizes:
        return False
    groups, memory = _groups(rows), size(budget["peak_bytes"])
    first = next(iter(groups))  # what gets furthest in the first panel is on top
    best = dict.fromkeys(map(_name, rows), (0, 0))
    for (name, *panel), longest in sizes.items():
        best[name] = max(best[name], (longest * (tuple(panel) == first), longest))
    names = sorted(best, key=best.__getitem__, reverse=True)
    start = min(sizes.values()) / 6  # of the shortest bar a good part is seen
    wide, high = 5.0 * len(groups) + 1.6, 0.25 * len(names) + 1.9
    with sheet(wide, high, "constrained", hatch=PAPER) as figure:
        panels = figure.subplots(1, len(groups), squeeze=False, sharey=True, sharex=True)[0]
        words = f"{memory} above the inputs, {duration(budget['seconds'])} a call"
        figure.suptitle(f"{title}\n{words}", fontsize=11, x=0.02, ha="left")
        handles: dict[str, Any] = {}
        for axes, ((phase, mask), group) in zip(panels, groups.items(), strict=True):
            _bars(axes, group, names, start)
            axes.set_title(f"{phase} · mask {mask}", loc="left")
            axes.set_xscale("log", base=2)
            axes.set(xlim=(start, 2 * max(sizes.values())), ylim=(len(names) - 0.4, -0.6))
            axes.xaxis.set_major_formatter(lambda value, _: tokens(int(value)))
            axes.minorticks_off()
            axes.grid(visible=False, axis="y")
            axes.set_xlabel("sequence length" if by == "seq" else "batch")
            handles |= {
                label: h for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
        panels[0].set_yticks(range(len(names)), names)
        if any(name.endswith(OTHER) for name in names):
            handles[f"{OTHER} {NOT_SOFTMAX}"] = panels[0].plot([], [], linestyle="")[0]
        look: dict[str, Any] = {"ncols": 3, "frameon": False, "fontsize": 8}
        figure.legend(handles.values(), handles, loc="outside lower left", **look)
        save(figure, files)
    return True


def _bars(axes: Axes, rows: Sequence[Row], names: Sequence[str], start: float) -> None:
    """A bar up to the longest that held, with its size, and pale what is in doubt."""
    for row in rows:
        at, best, fails = names.index(_name(row)), row["held"], row["fails"]
        look: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        if best is None:
            why = shorten(str(row["why"]).split(": ")[0], 160, 7)
            axes.annotate(why, (start, at), fontsize=7, color=FAINT, **look)
            continue
        label, color, hatch = LOOKS.get(row["limited_by"], ELSE)
        longest = best["size"]
        axes.barh(at, longest - start, 0.68, start, color=color, hatch=hatch, label=label)
        if fails is not None:
            axes.barh(at, fails["size"] - longest, 0.68, longest, color=color, alpha=0.35)
        end = fails["size"] if fails else longest
        axes.annotate(f"{longest:,}", (end, at), fontsize=7, color=INK, **look)
