"""External: adapters for kernels of other distributions."""

from impls.spec import Variant

ROWS: list[Variant] = []
