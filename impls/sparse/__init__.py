"""Sparse: softmax attention over some of the pairs."""

from impls.spec import Variant

ROWS: list[Variant] = []
