"""What a run ends with: the answer on one screen, or with ``--all`` every record."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from rich.text import Text

from attnbench.answer.paste import command_words, lines_for
from attnbench.answer.ranking import EXACT
from attnbench.answer.regimes import Regime, regimes
from attnbench.answer.standings import Standing
from attnbench.core.format import figures, first_few, mib, ms, percent, ratio, short
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.report.scenes import ReportRun, Scene, not_advised, scenes
from attnbench.report.sentences import beside, distinct_words, only, parts, show_layers
from attnbench.report.tables import (
    BAD,
    BEST,
    BOLD,
    FAINT,
    GAP,
    Styled,
    Table,
    columns,
    console,
    show,
)

LINES, WIDTH = 25, 100
"""Of the screen of answers, at most, if reasons, code and names leave it at that."""
REGIMES, LENGTHS = 8, 4
"""Rows and columns of its first table, at most."""
FEWEST = 3
"""Variants of its second table, at least, however many regimes there are."""
NAME = 14
"""Letters of a name that gives way: a variant's in the first table, the machine's above it."""
FAULTS = 2
"""How many faults are named; the others are counted."""


def show_answer(run: ReportRun, took: str, page: Path | None) -> None:
    """Print which variant to use at each length of each regime, then the fastest of the first one;
    of a model's run the answers for its layers.

    ``took``: how long the run was. ``page``: its report.
    """
    out = console(min(WIDTH, console().width))
    timed = [scene for scene in scenes([run]) if scene.timed]
    words = [scene.regime.words() for scene in timed]
    alike = [w for w in words[0] if all(w in each for each in words)] if timed else []
    out.print(Text(_heading(run, [took, *alike], out.width), BOLD))
    below, links = list(_notes(run, timed)), list(_links(timed, page))
    if run.layers:
        show_layers(run.header["grid"]["title"], run.layers, out.width)
        out.print()
    elif timed:
        answers, (*advice, code) = _answers(run, timed), _advice(run, timed, out.width)
        prose = sum(len(Text(line).wrap(out, out.width)) for line in [*advice, *below])
        used = 1 + 3 + len(answers.rows) + 1 + prose + 1 + 4 + len(links)
        show(answers)
        for line in ["", *advice]:
            out.print(Text(line))
        out.print(Text(code), soft_wrap=True)
        show(_fastest(run, timed[0], max(FEWEST, LINES - used)))
    else:
        out.print("Nothing was measured, so there is no answer.")
    for line in below:
        out.print(Text(line))
    for link in links:
        out.print(link, soft_wrap=True)  # on one line, so that it can be copied


def _heading(run: ReportRun, words: Sequence[str], width: int) -> str:
    """The machine, torch and these words; the longest name of the machine gives way to the rest."""
    machine, torch, *_ = [*run.machine_line.split(" · "), ""]
    names = [name for name in machine.split(", ") if not name.endswith("GiB")] or [run.machine]
    longest = max(names, key=len)
    took, *alike = words
    rest = [took, *filter(None, [torch]), *alike]
    room = width - len(" · ".join([", ".join(names), *rest])) + len(longest)
    names[names.index(longest)] = short(longest, max(NAME, room))
    return " · ".join([", ".join(names), *rest])


def _answers(run: ReportRun, timed: Sequence[Scene]) -> Table:
    """For each regime and length the variant to use."""
    lengths = sorted({n for scene in timed for n in scene.regime.lengths})[-LENGTHS:]
    names, rows = distinct_words(timed), list[list[Any]]()
    for scene in timed[:REGIMES]:
        at = {standing.length: standing for standing in scene.standings}
        rows.append([names[scene.number], *(_answer(at.get(n)) for n in lengths)])
    if _wide(rows) > WIDTH:
        rows = [[name, *map(_brief, cells)] for name, *cells in rows]
    while len(lengths) > 1 and _wide(rows) > WIDTH:
        lengths = lengths[1:]
        rows = [[name, *cells] for name, _, *cells in rows]
    heads = [f"{n:,}" for n in lengths]
    return Table(
        "The fastest exact attention" + _so_far(run) + ", ms",
        columns("", *heads),
        rows,
        caption="= tied with others · ? noisy",
    )


def _so_far(run: ReportRun) -> str:
    """What is not measured yet might be faster."""
    return " so far" if run.coverage else ""


def _wide(rows: Sequence[Sequence[Any]]) -> int:
    """The columns that these rows take."""
    texts = ([f"{c.value} {c.rest}" if isinstance(c, Styled) else c or "" for c in r] for r in rows)
    return sum(GAP + max(map(len, column)) for column in zip(*texts, strict=True)) - GAP


def _answer(standing: Standing | None) -> Styled | None:
    if standing is None or standing.answer is None:
        return None
    answer = standing.answer
    marks = ("=" if answer.equal else "") + ("?" if answer.flags else "")
    return Styled(answer.winner, BOLD, f"{ms(answer.time.median_s)} {marks}".strip())


def _brief(cell: Styled | None) -> Styled | None:
    return cell and replace(cell, value=short(cell.value, NAME))


def _advice(run: ReportRun, timed: Sequence[Scene], width: int) -> list[str]:
    """The one variant to take, and in the last line the code that calls it."""
    advised = only(run, timed)
    answers = [s.answer for scene in timed for s in scene.standings[::-1] if s.answer]
    if not answers:
        return [
            "Nothing that computes softmax was measured, so none is named as the fastest.",
            "'attnbench compare A B' says which of two is faster.",
        ]
    name = advised.variant if advised else answers[0].winner
    code = [
        line
        for line in lines_for(name, (answer.problem for answer in answers))
        if "import" not in line
    ]
    masks = [code.pop()] if code[-1].startswith("#") else []
    use = f"→ Use {name}" + (f": {advised.near}" if advised else "")
    if advised and any(answer.winner != name for answer in answers):
        use = f"→ If only one: {name}, {advised.near}"
    if len(use) > width:
        use = use.replace(" problems, at worst", " problems,\n  at worst")
    return [
        *use.split("\n"),
        "  " + "; ".join(code).replace(":;    ", ":"),
        *(f"  {line}" for line in masks),
    ]


def _fastest(run: ReportRun, scene: Scene, most: int) -> Table:
    """The fastest exact variants of a regime at its longest length, the one to use among them."""
    length = scene.regime.longest() or scene.regime.lengths[-1]
    standing = next(s for s in scene.standings if s.length == length)
    tied = standing.answer.equal if standing.answer else ()
    use = standing.answer.winner if standing.answer else None
    same = standing.answer.same if standing.answer else ()
    timed = [r for r in scene.regime.timed(length).values() if r.time]
    exact = sorted((r for r in timed if r.computes == EXACT), key=_median)
    some = exact or sorted(timed, key=_median)
    best = min(scene.regime.exact(length).values(), default=min(map(_median, some), default=nan))
    rows: list[list[Any]] = []
    top = sorted(some, key=lambda r: r.variant != use)[:most]
    cached = any(r.bytes_a_token for r in top)
    for record in sorted(top, key=_median):
        t = _median(record)
        leads = record.variant in standing.leaders
        name = Styled(record.variant, BEST if leads else "")
        peak = mib(record.memory.peak_bytes) if record.memory else None
        mark = ("tied" if record.variant in tied else "use this") if leads else ""
        mark = "same kernel" if record.variant in same else mark
        mark = mark if exact else "not exact"
        mark = "wrong on other inputs" if record.wrong_on else mark
        low, high = (record.time.low_s, record.time.high_s) if record.time else (None, None)
        size = [figures(record.bytes_a_token or 0.0)] if cached else []
        rows.append([name, ms(t), f"[{ms(low)}, {ms(high)}]", ratio(t / best), peak, *size, mark])
    note = str(beside(standing) or "")
    heads = ("ms", "95 %", "× best", "MiB", *["bytes a token"] * cached)
    mask = "no mask" if scene.regime.mask == "none" else scene.regime.mask
    title = f"{scene.regime.phase}, {mask}, {length:,} {scene.regime.unit}"
    kind = "exact variants" if exact else "variants, none of them exact"
    more = f"{len(rows)} of {len(some)} {kind}{_so_far(run)}; all: --all"
    return Table(title, columns("", *heads, "", right=heads), rows, [note] if note else [], more)


def _notes(run: ReportRun, timed: Sequence[Scene]) -> Iterator[str]:
    """What is wrong, what is noisy and what is missing, each in a line."""
    bad = [r for r in run.records if r.status in FINDINGS]
    for record in bad[:FAULTS]:
        yield f"{record.variant} is {record.status} on {record.problem}: {record.reason}"
    if len(bad) > FAULTS:
        yield f"{len(bad) - FAULTS} more are wrong or failed: --all"
    yield from not_advised(run.records)
    times = [r.time for r in run.records if r.time]
    if times:
        noisy = sum(bool(time.doubts) for time in times)
        ties = f"intervals less than {percent(run.margin)} apart count as ties"
        yield f"{noisy} of {len(times)} timings were noisy · {ties}"
    counts = Counter(r.status for r in run.records if r.time is None and r.status not in FINDINGS)
    variants = {s: len({r.variant for r in run.records if r.status is s}) for s in counts}
    if counts:
        words = ", ".join(f"{variants[s]} {str(s).replace('_', ' ')}" for s in counts)
        yield f"variants without a time: {words} · why: attnbench list --why, or --all"


def _links(timed: Sequence[Scene], page: Path | None) -> Iterator[Text]:
    """The page to open, and a command for the first answer."""
    if page:
        yield Text("Report: ").append(str(page), f"link {page.resolve().as_uri()}")
    answers = [s.answer for scene in timed for s in scene.standings[::-1] if s.answer]
    for answer in answers:
        if other := next(iter(answer.equal), answer.next):
            words = ["compare", answer.winner, other, *command_words(answer.problem, whole=False)]
            yield Text(f"Next:   {shlex.join(['attnbench', *words])}")
            return


def _median(record: Record) -> float:
    return record.time.median_s if record.time else float("inf")


def _spread(record: Record) -> float:
    """Half of the interval of its time, in per cent; the longer half."""
    t = record.time
    return 100 * max(t.high_s - t.median_s, t.median_s - t.low_s) / t.median_s if t else 0.0


# ---- every record --------------------------------------------------------------------------------

WIDE_SHARE = 20
"""Per cent of half-width from which an interval is marked like a flag."""


def show_results(records: Sequence[Record]) -> None:
    """Print all: for each regime the times by length, doubts, and why others have none."""
    for regime in regimes(records):
        show(_table(regime))
    out = console()
    for line in _footnotes(records):
        out.print(Text(line), style=FAINT)


def _table(regime: Regime) -> Table:
    best = {length: min(regime.exact(length).values(), default=None) for length in regime.lengths}
    timed = [r.variant for r in regime.records if r.time is not None]
    names = dict.fromkeys([*timed, *(r.variant for r in regime.records)])
    rows = [
        [name, *(_time_cell(regime.cells[n].get(name), best[n]) for n in regime.lengths)]
        for name in names
    ]
    lengths = [str(length) for length in regime.lengths]
    heads = columns("variant", *lengths, right=lengths)
    caption = "median ms ± % to the far end of its interval; memory and errors: --csv"
    return Table(str(regime), heads, rows, caption=caption)


def _time_cell(record: Record | None, best: float | None) -> Styled:
    if record is None:
        return Styled("not run", FAINT)
    if record.time is None:
        return Styled(record.status, BAD if record.status in FINDINGS else FAINT)
    t, spread = record.time, _spread(record)
    doubt = "!" if t.doubts or spread > WIDE_SHARE else ""
    text = f"{ms(t.median_s)} ±{spread:.1f}{doubt}"
    return Styled(text, BEST if t.median_s == best else "")


def _footnotes(records: Sequence[Record]) -> Iterator[str]:
    """What is in doubt, and why cells were not measured: each reason once, with its cells."""
    yield from not_advised(records)
    cells: dict[tuple[str, str], list[str]] = {}
    for record in records:
        flags, doubts = (record.time.flags, record.time.doubts) if record.time else ((), ())
        remarks = [
            (f"{'! ' if flag in doubts else ''}{flag.split(':')[0]}: ", "") for flag in flags
        ]
        if made_of := parts(record):
            remarks.append(("", f": {made_of}"))
        d, energy = record.determinism, record.energy
        if d is not None and False in (d.repeats, d.batch, d.place):
            remarks.append(("", f": {d.words()}"))
        if energy is not None and energy.why:
            remarks.append(("no energy: ", f": {energy.why}"))
        if record.status is not Status.MEASURED:
            remedy = f" → {record.remedy}" if record.remedy else ""
            remarks.append((f"{record.status}: ", f": {record.reason}{remedy}"))
        for each in remarks:
            cells.setdefault(each, []).append(f"{record.variant} on {record.problem}")
    for (before, after), some in cells.items():
        yield f"{before}{first_few(some, 1)}{after}"
