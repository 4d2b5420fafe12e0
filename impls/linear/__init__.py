"""Linear: operators whose work grows with the length, and their kin."""

from impls.spec import Variant

ROWS: list[Variant] = []
