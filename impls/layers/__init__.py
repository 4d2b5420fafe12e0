"""Layers: projections around a core, and whole transformer blocks."""

from impls.spec import Variant

ROWS: list[Variant] = []
