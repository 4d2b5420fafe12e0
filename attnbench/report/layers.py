"""The answer for a model: a kind of layer each, and all layers together."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from attnbench.answer.layers import LayerChoice, together
from attnbench.report.tables import BOLD, FAINT, GOOD, console

INDENT = 2


def show_layers(title: str, choices: Sequence[LayerChoice], width: int | None = None) -> None:
    """Print the model, each kind of layer with its answers, and what all layers take."""
    out = console(width)
    kinds = {each.kind: each.layers for each in choices}
    whole = sum(kinds.values())
    out.print(Text(title, BOLD))
    for kind, layers in kinds.items():
        own = [each for each in choices if each.kind == kind]
        first, operator = own[0].shape, own[0].choice.wants.operator
        out.print(Text(f"\n{kind}: {layers} of {whole} attention layers", BOLD), end="")
        out.print(Text(f" · {operator} · {first}"))
        for each in own:
            shape = "" if each.shape == first else f" ({each.shape})"
            style = GOOD if each.choice.ranking else FAINT
            answer = Text(f"{each.where}{shape}: ").append(each.choice.advice(), style)
            for line in answer.wrap(out, out.width - INDENT):
                out.print(Text(" " * INDENT).append_text(line))
    if totals := list(together(choices)):
        out.print()
    for total in totals:
        out.print(Text(total.sentence()))
