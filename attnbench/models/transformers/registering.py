"""The names under which transformers finds the variants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import impls
from attnbench.answer.choice.paste import PREFIX, spelled
from attnbench.models.built import NotServed, wrong_level
from attnbench.models.transformers.eager_mask import mask_as_eager
from attnbench.models.transformers.layer_call import forward_by
from attnbench.models.transformers.setting import put_into_transformers
from impls.spec import Variant


def register(name: str, tables: Sequence[str | Path] = ()) -> str:
    """Register ``name`` or ``name?option=value&…``, and give back what to write for it.

    ``tables``: files with rows of your own, as ``--table`` takes them.
    """
    row = impls.table(tables).find(name)
    if (wrong := wrong_level(row)) is not None:
        raise NotServed(wrong)
    return register_row(row)


def register_table() -> None:
    """Register every core of the table; what can't run here says so when it is called."""
    put_into_transformers()
    for row in impls.table().rows.values():
        if wrong_level(row) is None:
            register_row(row)


def names() -> list[str]:
    """What ``attn_implementation`` may be set to, of ours."""
    return sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if name.startswith(PREFIX))


def register_row(row: Variant) -> str:
    """Both halves: a name without its mask function would have every mask dropped, unsaid."""
    name = spelled(row.label)
    AttentionMaskInterface.register(name, mask_as_eager)
    AttentionInterface.register(name, forward_by(row))
    return name
