"""The tables of ``list``, ``show`` and ``env``, and an attention map: rows look at columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape

from attnbench.core.format import counted, duration, flop_rate, percent, size
from attnbench.report import tidy
from attnbench.report.tables import BAD, BOLD, GOOD, Styled, Table, columns, console, show_facts
from attnbench.report.tables import show as show_table
from attnbench.sweep.models import Model
from impls import BrokenRow
from impls.operators import OPERATORS
from impls.problem import setting_words
from impls.spec import Variant


def show(words: Sequence[str], weights: Sequence[Sequence[float | None]]) -> None:
    """Rows look at columns; the darker, the more."""
    rows = []
    for word, row in zip(words, weights, strict=True):
        top = max((abs(w) for w in row if w is not None), default=0.0) or 1.0
        cells = []
        for weight in row:
            ground = 255 if weight is None else 255 - round(16 * abs(weight) / top)
            shade = f"{'black' if ground > 243 else 'white'} on color({max(232, ground)})"
            cells.append(
                Styled("nan", BAD) if weight is None else Styled(f" {weight:5.2f} ", shade)
            )
        rows.append((Styled(word, BOLD), *cells))
    show_table(Table("", columns("", *words, right=words), rows))


def weights(
    variant: str, words: Sequence[str], weights_of: Sequence[Sequence[float | None]]
) -> Iterator[tidy.Row]:
    """A row a query and a key, by their places from 0."""
    for query, row in enumerate(weights_of):
        for key, weight in enumerate(row):
            pair = {"query_word": words[query], "key_word": words[key]}
            yield {"variant": variant, "query": query, "key": key, **pair, "weight": weight}


UNTRIED = "untested"
LEAST = 16
"""Columns that a title has at the least."""


def rows(
    some: Iterable[tuple[Variant, str | None, str]], broken: Sequence[BrokenRow] = ()
) -> Iterator[tidy.Row]:
    """A row a variant: what it is, what it takes, and whether it can run here, or why not."""
    what = ("family", "level", "computes", "title", "paper", "devices", "gqa", "cross", "value_dim")
    for row, reason, remedy in some:
        about = {name: getattr(row, name) for name in what}
        here = {"available": reason is None, "untested": row.untried}
        why = {"reason": reason or "", "remedy": remedy}
        yield tidy.flat({"variant": row.name, **about, **here, **why})
    for bad in broken:
        why = {"reason": f"the row is broken: {bad.reason}", "remedy": bad.remedy}
        yield {"variant": bad.name, "available": False, **why}


def table(
    rows: Iterable[tuple[Variant, str | None, str]],
    broken: Sequence[BrokenRow],
    *,
    why: bool = False,
) -> None:
    """``list``: family by family a line a row; with ``why`` the reason and remedy where one can't
    run.
    """
    lines: list[list[str | Styled]] = []
    absent = 0
    for row, reason, remedy in rows:
        here = Styled("yes", GOOD) if reason is None else Styled("no", BAD)
        about = row.title
        if why and reason is not None:
            about = reason + (f" → {remedy}" if remedy else "")
        about += f" ({UNTRIED})" if row.untried else ""
        lines.append([row.name, row.family, row.computes, here, about])
        absent += reason is not None
    for bad in broken:
        about = bad.reason + (f" → {bad.remedy}" if bad.remedy else "")
        lines.append([bad.name, "", "", Styled("broken", BAD), about])
    if not why:
        beside = (
            sum(max(len(str(line[n])) for line in lines) + 2 for n in range(3)) + len("here") + 2
        )
        room = max(LEAST, console().width - beside)
        for line in lines[: len(lines) - len(broken)]:
            text = str(line[-1])
            line[-1] = text if len(text) <= room else text[: room - 1] + "…"
    heads = columns("variant", "family", "computes", "here", "about", wrap=["variant", "about"])
    notes = [f"{absent} unavailable here: attnbench list --why"] if absent and not why else []
    show_table(Table("", heads, lines, notes))


def model_rows(models: Iterable[Model]) -> Iterator[tidy.Row]:
    """A row a model and kind of layer."""
    for model in models:
        for kind in model.kinds:
            sizes = kind.sizes("forward")
            more = {name: getattr(kind, name) for name in ("mask", "scale", "softcap", "sinks")}
            about = {"model": model.name, "kind": kind.name, "layers": kind.layers}
            yield {**about, "operator": kind.operator, **sizes, **more, "source": model.source}


def show_models(models: Iterable[Model]) -> None:
    """``list --models``: a line a kind of layer, and where each model was read."""
    lines, notes = [], []
    for model in models:
        for number, kind in enumerate(model.kinds):
            sizes = kind.sizes("forward")
            width = f"d{sizes['head_dim']}"
            if sizes["v_head_dim"] != sizes["head_dim"]:
                width += f"/{sizes['v_head_dim']}"
            own = {name: x for name, (x,) in kind.parameters("forward").items() if name != "scale"}
            more = setting_words(own)
            shape = " ".join([f"h{kind.heads}/{kind.kv_heads}", width, kind.mask, *more])
            name = "" if number else model.name
            lines.append([name, kind.name, kind.layers, kind.operator, shape])
        notes.append(f"{model.name}: {model.about}{'; ' if model.note else ''}{model.note}")
        notes[-1] += f". Source: {model.source}"
    heads = columns("model", "kind", "layers", "operator", "a layer", right=["layers"])
    show_table(Table("", heads, lines, notes))


def show_variant(row: Variant, mathematics: str, reason: str | None, remedy: str) -> None:
    """``show NAME``: what it is, what it takes, what it costs."""
    out = console()
    out.print(f"[bold]{row.name}[/]  {escape(row.title)}")
    out.print(escape(f"{row.family}, level {row.level}, computes: {row.computes}\n"))
    out.print(escape(mathematics) + "\n")
    limits = [
        ("grouped-query heads", row.gqa),
        ("q_len ≠ kv_len", row.cross),
        ("v_head_dim ≠ head_dim", row.value_dim),
        ("dropout of weights", row.dropout),
    ]
    words = {True: "yes", False: "no", "decode": "in decode alone"}
    options = {
        k: str(v).lower() if isinstance(v, bool) else str(v) or "''"  # as on the command line
        for k, v in {**row.options, **row.given}.items()
    }
    facts = {
        f"on {device}": f"{', '.join(row.on(device, 'dtypes'))}; "
        f"masks {', '.join(row.on(device, 'masks'))}; {', '.join(row.on(device, 'phases'))}"
        for device in row.devices
    }
    computed = OPERATORS[row.operator]
    by_name = {n: spec for n, spec in computed.inputs.items() if spec.keyword}
    by_name |= {n: spec for n, spec in computed.further.items() if n in row.parameters}
    besides = {n: spec for n, spec in computed.outputs.items() if n in row.parameters}
    facts |= {
        "inputs by name": "; ".join(
            f"{name} [{', '.join(spec.axes)}]" + (" if set" if name in computed.further else "")
            for name, spec in by_name.items()
        ),
        "numbers": ", ".join(n for n in computed.numbers if n in row.parameters),
        "second output": "; ".join(
            f"{name} [{', '.join(spec.axes)}] if asked" for name, spec in besides.items()
        ),
        "shapes": ", ".join(f"{what}: {words[can]}" for what, can in limits),
        "head_dim": f"{row.head_dims[0]} to {row.head_dims[1]}" if row.head_dims else "",
        "options": ", ".join(f"{k}={v}" for k, v in options.items()),
        "can be tuned": ", ".join(sorted(row.tunable)),
        "timed in parts": ", ".join(row.parts),
        "core": f"{row.core.label}: {row.core.title}" if row.core else "",
        "requires": ", ".join(row.requires),
        "paper": row.paper,
        "code": row.build,
        "backend checked by": ", ".join(
            f"{operator} on {device}"
            for device in row.devices
            if (operator := row.attested_by(device)) is not None
        ),
        "from": row.origin,
        "run": UNTRIED if row.untried else "",
        "runs here": "yes"
        if reason is None
        else f"no: {reason}" + (f" → {remedy}" if remedy else ""),
    }
    show_facts(facts.items())


def _in_words(value: object) -> str:
    """What a driver answered, in words."""
    if isinstance(value, list | tuple):
        return " and ".join(value) or "nothing"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def show_env(facts: Mapping[str, Any]) -> None:
    """``env``: a line a fact."""
    m, settings, now, reach = (facts[x] for x in ("machine", "settings", "observed", "ceilings"))
    gpus = [
        f"{g['name']}, sm {g['capability']}, {size(g['memory_bytes'])}, driver {g['driver']}"
        for g in m["gpus"]
    ]
    mhz, load = now["cpu"]["mhz"], (now["cpu"]["load_1min"], now["cpu"]["load_5min"])
    clock = f"{mhz:.0f} MHz" if isinstance(mhz, float) else mhz
    lines = [
        ("machine", m["name"]),
        ("cpu", f"{m['cpu']}, {counted(m['cores'], 'core')}, {size(m['memory_bytes'])}"),
        *(("gpu", line) for line in gpus or ["none that NVIDIA's driver library shows"]),
        ("system", f"{m['system']}, Python {m['python']}"),
        ("versions", ", ".join(f"{k} {v}" for k, v in m["versions"].items())),
        ("torch's CUDA", m["torch_cuda"] or "none: a CPU build"),
        ("C++ compiler", m["compiler"] or "none: compiled variants are unavailable"),
        ("threads", str(settings["threads"])),
        ("environment", ", ".join(f"{k}={v}" for k, v in settings["environment"].items())),
        ("cpu clock", f"{clock}; governor: {now['cpu']['governor']}"),
        ("load", "{:.2f} over a minute, {:.2f} over five".format(*load)),
    ]
    for gpu in now["gpus"]:
        details = [f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in gpu.items()]
        lines.append(("gpu now", ", ".join(details)))
    for dtype, rate in reach["flops"].items():
        lines.append((f"product {dtype}", flop_rate(rate)))
    for copied, rate in reach["copy"].items():
        lines.append((f"copy of {size(int(copied))}", f"{rate / 1e9:.1f} GB/s"))
    for floor in facts["noise"]:
        beyond = percent(floor["floor"]) if floor["floor"] > 0 else "none beyond sampling noise"
        line = f"{beyond} ({floor['trials']} comparisons of a variant with itself, of "
        line += f"{floor['pairs']:.0f} pairs; ratios up to {percent(floor['apart'])} off one)"
        lines.append((f"noise at {duration(floor['call_s'])}", line))
    show_facts(lines)
