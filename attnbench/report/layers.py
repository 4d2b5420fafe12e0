"""The answer for a model: a kind of layer each, and all layers together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from attnbench.answer.layers import LayerChoice, together
from attnbench.core.format import mib, ms
from attnbench.report.tables import BOLD, FAINT, GOOD, Styled, Table, columns, console

INDENT = 2
Kind = tuple[str, str, list[LayerChoice]]
"""How many layers are of it, its operator and shape, and its choices."""


def by_kind(choices: Sequence[LayerChoice]) -> Iterator[Kind]:
    """``full: 12 of 48 attention layers``, ``softmax · h8/1 d256 f32 causal``, and the choices."""
    kinds = {each.kind: each.layers for each in choices}
    for kind, layers in kinds.items():
        own = [each for each in choices if each.kind == kind]
        words = f"{kind}: {layers} of {sum(kinds.values())} attention layers"
        yield words, f"{own[0].choice.wants.operator} · {own[0].shape}", own


def _where(each: LayerChoice, first: LayerChoice) -> str:
    """The phase and the tokens, with the shape where that is not the first one's."""
    return each.where + ("" if each.shape == first.shape else f" ({each.shape})")


def layer_tables(choices: Sequence[LayerChoice]) -> Iterator[Table]:
    """A table a kind of layer: what to use of it, and by how much."""
    right = ("time, ms", "MiB")
    heads = columns("asked", "use", "time, ms", "95 %", "MiB", "against the others", right=right)
    for layers, about, own in by_kind(choices):
        rows = [[_where(each, own[0]), *_answer(each)] for each in own]
        yield Table(f"{layers} · {about}", heads, rows)


def _answer(each: LayerChoice) -> list[object]:
    """The cells of an answer."""
    if (ranking := each.choice.ranking) is None:
        return ["no answer", None, "", None, each.choice.why_not]
    best = ranking.winner
    words = [f"tied with {', '.join(x.name for x in ranking.equal)}"] if ranking.equal else []
    words += [f"{ranking.lead} ahead of {ranking.next.name}"] if ranking.next else []
    words += ["the only one that is known"] if len(ranking.all) == 1 else []
    words += ["noisy"] if best.flags else []
    interval = f"[{ms(best.low_s)}, {ms(best.high_s)}]"
    name = Styled(best.name, BOLD)
    return [name, ms(best.median_s), interval, mib(best.memory_bytes), "; ".join(words)]


def show_layers(title: str, choices: Sequence[LayerChoice], width: int | None = None) -> None:
    """Print the model, each kind of layer with its answers, and what all layers take."""
    out = console(width)
    out.print(Text(title, BOLD))
    for layers, about, own in by_kind(choices):
        out.print(Text(f"\n{layers}", BOLD), end="")
        out.print(Text(f" · {about}"))
        for each in own:
            style = GOOD if each.choice.ranking else FAINT
            answer = Text(f"{_where(each, own[0])}: ").append(each.choice.advice(), style)
            for line in answer.wrap(out, out.width - INDENT):
                out.print(Text(" " * INDENT).append_text(line))
    if totals := list(together(choices)):
        out.print()
    for total in totals:
        out.print(Text(total.sentence()))
