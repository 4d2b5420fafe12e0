"""``attnbench.attention("chunked?block=64")``: a variant of the table as a function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import impls
from attnbench.models.built import Built


def attention(name: str, tables: Sequence[str | Path] = ()) -> Built:
    """The variant called ``name``, as ``out = attention(q, k, v, mask, scale, is_causal)``.

    ``tables``: files with rows of your own, as ``--table`` takes them. An unknown name, and a
    variant that can't run on this machine, are sentences.
    """
    return Built(impls.table(tables).find(name))
