"""One condition of a mask: its spelling, the span of keys it allows, its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from impls.asked import CantBeDone
from impls.spec import MASK_KINDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST = 1 << 40
"""Of a mask's numbers: positions are added to them in 64 bits."""


class Shape(NamedTuple):
    """The extent of a problem's scores."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


class InvalidMask(CantBeDone, ValueError):
    """A mask that can't exist. The message is a sentence with the valid choices."""


SPELLINGS = (
    "none, causal, window:LEFT,RIGHT, prefix:P, document:N1,N2,…, padding:N1,N2,…, alibi, "
    "dense:FILE.npy, bias:FILE.npy, joined by + (causal+alibi), with @upper-left at the end "
    "where the first query stands at the first key"
)
_NUMBERS = {
    "none": 0,
    "causal": 0,
    "alibi": 0,
    "window": 2,
    "prefix": 1,
    "document": None,
    "padding": None,
}


@dataclass(frozen=True, slots=True)
class Part:
    """One condition of a mask: its kind, and its numbers or its file."""

    kind: str
    numbers: tuple[int, ...] = ()
    file: str = ""

    def __str__(self) -> str:
        tail = self.file or ",".join(str(n) for n in self.numbers)
        return f"{self.kind}:{tail}" if tail else self.kind


def alibi_slopes(heads: int) -> NDArray[np.float64]:
    """m_h of arXiv:2108.12409: a geometric series; past a power of two, each second of the next."""
    import numpy as np

    whole = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 / whole * np.arange(1, whole + 1))
    between = 2.0 ** (-4.0 / whole * np.arange(1, 2 * whole + 1, 2))
    return np.concatenate([slopes, between[: heads - whole]])


def parse_part(text: str, word: str) -> Part:
    """The condition that one word of a mask's text spells."""
    kind, _, tail = word.partition(":")
    if kind not in MASK_KINDS:
        raise InvalidMask(f"mask {text!r}: {kind!r} is no mask; the masks are {SPELLINGS}")
    if kind in ("dense", "bias"):
        if not tail:
            raise InvalidMask(f"mask {text!r}: {kind} needs a file, as in {kind}:FILE.npy")
        return Part(kind, file=tail)
    try:
        numbers = tuple(int(n) for n in tail.split(",")) if tail else ()
    except ValueError:
        raise InvalidMask(f"mask {text!r}: {tail!r} is not whole numbers split by commas") from None
    wanted = _NUMBERS[kind]
    if (wanted is None and not numbers) or (wanted is not None and len(numbers) != wanted):
        count = "at least one number" if wanted is None else f"{wanted} numbers"
        raise InvalidMask(f"mask {text!r}: {kind} takes {count}; the masks are {SPELLINGS}")
    least = 1 if kind in ("document", "prefix") else 0
    if any(n < least for n in numbers):
        raise InvalidMask(f"mask {text!r}: {min(numbers)} is below {least}, the least {kind} takes")
    if any(n > MOST for n in numbers):
        raise InvalidMask(f"mask {text!r}: {max(numbers)} is above {MOST}, the most {kind} takes")
    return Part(kind, numbers)


def span(part: Part, at: NDArray[np.int64]) -> tuple[Any, Any]:
    """The first and past-the-last key that one condition allows a query at each position."""
    import numpy as np

    match part.kind:
        case "causal":
            return None, at + 1
        case "window":
            return at - part.numbers[0], at + part.numbers[1] + 1
        case "prefix":
            return None, np.maximum(part.numbers[0], at + 1)
        case "document":
            edges = np.concatenate([[0], np.cumsum(part.numbers)])
            own = np.searchsorted(edges, at, side="right") - 1
            return edges[own], edges[own + 1]
        case "padding":
            return None, np.array(part.numbers)[:, None]
    return None, None


def file_table(part: Part, shape: Shape, rows: NDArray[np.int64] | None) -> NDArray[Any]:
    """A file's table, broadcast over queries and keys, its rows picked."""
    import numpy as np

    table = np.load(Path(part.file).expanduser(), mmap_mode="r")
    table = table.reshape((1,) * (4 - table.ndim) + table.shape)
    table = np.broadcast_to(table, (*table.shape[:2], shape.q_len, shape.kv_len))
    return np.asarray(table if rows is None else table[:, :, rows])


def file_wrong(part: Part, shape: Shape) -> str | None:
    """None where a condition's file fits the shape, else a sentence."""
    import numpy as np

    file = Path(part.file).expanduser()
    if not file.is_file():
        return f"mask {part}: there is no file {part.file}"
    try:
        table = np.load(file, mmap_mode="r")
    except (ValueError, OSError, EOFError, MemoryError, RecursionError, OverflowError) as error:
        return f"mask {part}: {part.file} can't be read as one .npy array: {error}"
    if not isinstance(table, np.ndarray):
        return f"mask {part}: {part.file} holds several arrays; a mask is one .npy array"
    ends = zip(table.shape[::-1], shape[::-1], strict=False)
    if table.ndim > 4 or any(a not in (1, b) for a, b in ends):
        return f"mask {part}: its shape {table.shape} does not broadcast to {tuple(shape)}"
    if table.dtype.kind not in ("b" if part.kind == "dense" else "fiu"):
        need = "booleans" if part.kind == "dense" else "numbers"
        return f"mask {part}: the file holds {table.dtype}; a {part.kind} mask needs {need}"
    if part.kind == "bias" and (np.isnan(table).any() or np.isposinf(table).any()):
        return f"mask {part}: the file holds NaN or +inf; numbers are added, and -inf hides"
    return None
