"""Masks: which keys a query may see. One object owns everything that follows from that.

Written as text, joined by ``+`` where several must allow a pair:

    none  causal  window:LEFT,RIGHT  chunk:N  prefix:P  blocks:N1,N2xCOUNT,…
    document:N1,N2,…  packed:LENGTHS,MEAN,SEED  padding:N1,N2,…  leftpad:N1,N2,…
    alibi  dense:FILE.npy  bias:FILE.npy
    causal+document:100,156     causal@upper-left

A query stands at a position among the keys. Lower-right alignment, the default, puts the last
query at the last key, as decoding needs; ``@upper-left`` puts the first query at the first key.
A window counts keys to the left and to the right of that position, the position itself besides.
``chunk`` lets a query see the keys of its own chunk of N (Llama 4, under causal). ``prefix`` shows
the first P keys and those up to its own, ``blocks`` all keys up to the end of its own block (images
in Gemma 3); ``1x100`` is a hundred blocks of one token. ``document`` shows all of its own document;
``packed`` too, but each batch element has documents of its own, whose lengths are drawn from a seed
around a mean: ``lognormal`` (of spread 1), ``exponential`` or ``equal``. ``padding`` shows the
first so many keys of a batch element, ``leftpad`` all but its first so many. ``alibi`` hides
nothing: it adds -m_h |i - j| to the scores, m_h the slopes of arXiv:2108.12409. A ``dense`` file
holds booleans (true: may see), a ``bias`` file numbers to add (-inf hides); both broadcast to
[batch, heads, q_len, kv_len]. A row that may see nothing gives zeros.

All but the files give each row one span of keys, so that counting pairs, skipping blocks and
checking a million tokens never need the N x N form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from impls.errors import CantBeDone

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Spans = tuple[NDArray[np.int64], NDArray[np.int64]]

MASK_KINDS = (
    "none", "causal", "window", "chunk", "prefix", "blocks", "document", "packed", "padding",
    "leftpad", "alibi", "dense", "bias",
)  # fmt: skip
HIDING = tuple(kind for kind in MASK_KINDS if kind not in ("alibi", "bias"))
"""Masks that add nothing to the scores."""
LENGTHS = ("lognormal", "exponential", "equal")
"""How the documents of ``packed`` are drawn."""
PADDINGS = ("padding", "leftpad")
"""Masks with a number for each batch element, or one for all."""
OF_DATA = frozenset({*PADDINGS, "document", "blocks", "dense", "bias"})
"""Masks that follow from the data; all others follow from the shape, so a line can name them."""
LEAST_TABLE = 4096
"""Rows of a table that FlexAttention looks spans up in, at the least."""
SPELLINGS = (
    "none, causal, window:LEFT,RIGHT, chunk:N, prefix:P, blocks:N1,N2xCOUNT,…, document:N1,N2,…, "
    "packed:LENGTHS,MEAN,SEED, padding:N1,N2,…, leftpad:N1,N2,…, alibi, dense:FILE.npy, "
    "bias:FILE.npy, joined by + (causal+alibi), with "
    "@upper-left at the end where the first query stands at the first key"
)
_NUMBERS = {
    "none": 0,
    "causal": 0,
    "alibi": 0,
    "window": 2,
    "chunk": 1,
    "prefix": 1,
    "blocks": None,
    "document": None,
    "packed": 2,
    "padding": None,
    "leftpad": None,
}
MOST_BLOCKS = 1 << 25
"""Blocks of one length, one after another."""
MOST = 1 << 40
"""The largest number in a mask: positions are added to it in 64 bits."""


class Shape(NamedTuple):
    """The extent of a problem's scores."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


class InvalidMask(CantBeDone, ValueError):
    """A mask that can't exist. The message is a sentence with the valid choices."""


@dataclass(frozen=True, slots=True)
class Part:
    """One condition of a mask: its kind, and its numbers, its file or how its lengths are drawn."""

    kind: str
    numbers: tuple[int, ...] = ()
    file: str = ""
    lengths: str = ""

    def __str__(self) -> str:
        numbers = list(map(str, self.numbers))
        if self.kind == "blocks":
            runs = [(n, len(list(run))) for n, run in groupby(numbers)]
            numbers = [n if count == 1 else f"{n}x{count}" for n, count in runs]
        tail = self.file or ",".join([self.lengths] * bool(self.lengths) + numbers)
        return f"{self.kind}:{tail}" if tail else self.kind


class Mask:
    """The conditions that must all allow a pair; no condition, and every key is seen.

    No dataclass: msgspec would write its fields, where its text is what is read and written.
    """

    __slots__ = ("parts", "upper_left")

    def __init__(self, parts: tuple[Part, ...] = (), upper_left: bool = False) -> None:
        self.parts, self.upper_left = parts, upper_left

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self.parts == other.parts and self.upper_left == other.upper_left

    def __hash__(self) -> int:
        return hash((self.parts, self.upper_left))

    def __repr__(self) -> str:
        return f"Mask.parse({str(self)!r})"

    def of(self, parts: Iterable[Part]) -> Mask:
        """Other conditions with the same corner."""
        return Mask(tuple(parts), self.upper_left)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """The mask that the text spells; raises :class:`InvalidMask` if there is none."""
        words, at, corner = text.strip().partition("@")
        if at and corner not in ("upper-left", "lower-right"):
            raise InvalidMask(f"mask {text!r}: after @ comes upper-left or lower-right")
        parts = tuple(parse_part(text, word) for word in words.split("+") if word != "none")
        if len({p.kind for p in parts}) < len(parts):
            raise InvalidMask(f"mask {text!r} names the same kind twice")
        return cls(parts, upper_left=corner == "upper-left")

    def __str__(self) -> str:
        text = "+".join(str(p) for p in self.parts) or "none"
        return text + ("@upper-left" if self.upper_left else "")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of condition, for a variant to accept or refuse."""
        return tuple(p.kind for p in self.parts) or ("none",)

    @property
    def plain(self) -> bool:
        """True where every key is seen and nothing is added: no mask at all."""
        return not self.parts

    def only(self, *kinds: str) -> Mask:
        """The conditions of these kinds alone."""
        return self.of(p for p in self.parts if p.kind in kinds)

    def is_causal(self, shape: Shape) -> bool:
        """True where this is the causal mask alone and both corners mean the same."""
        return self.kinds == ("causal",) and (self.upper_left or shape.q_len == shape.kv_len)

    def wrong_for(self, shape: Shape) -> str | None:
        """None where the mask fits the shape, else a sentence."""
        for part in self.parts:
            total = sum(part.numbers)
            if part.kind == "blocks" and total != shape.kv_len:
                return (
                    f"mask {part}: the blocks add up to {total} tokens, but the problem has "
                    f"{shape.kv_len} keys; both must be equal"
                )
            if part.kind == "document" and (total != shape.kv_len or shape.q_len != shape.kv_len):
                return (
                    f"mask {part}: the document lengths add up to {total}, but the problem has "
                    f"{shape.q_len} queries and {shape.kv_len} keys; both must equal the sum"
                )
            if part.kind in PADDINGS and len(part.numbers) not in (1, shape.batch):
                return (
                    f"mask {part}: {len(part.numbers)} lengths for a batch of {shape.batch}; "
                    "give one for each batch element, or one for all"
                )
            if part.kind in PADDINGS and max(part.numbers) > shape.kv_len:
                return f"mask {part}: a length above kv_len={shape.kv_len}; the most is kv_len"
            if part.kind == "prefix" and part.numbers[0] > shape.kv_len:
                return f"mask {part}: the prefix is longer than kv_len={shape.kv_len}"
            if part.file and (wrong := file_wrong(part, shape)):
                return wrong
        return None

    # ---- what a row sees -----------------------------------------------------------------------

    def spans(self, shape: Shape, rows: NDArray[np.int64] | None = None) -> Spans:
        """First and past-the-last key each row may see: two arrays [batch or 1, rows].

        Files can only narrow it: see :meth:`visible`.
        """
        import numpy as np

        row = np.arange(shape.q_len) if rows is None else np.asarray(rows, dtype=np.int64)
        at = row + (0 if self.upper_left else shape.kv_len - shape.q_len)
        first, past = np.zeros((1, len(at)), np.int64), np.full((1, len(at)), shape.kv_len)
        for part in self.parts:
            low, high = span(part, at, shape)
            first = first if low is None else np.maximum(first, low)
            past = past if high is None else np.minimum(past, high)
        first, past = np.broadcast_arrays(np.minimum(first, shape.kv_len), past)
        return first, np.maximum(past, first)

    def visible(self, shape: Shape, rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """True where the row may see the key: [batch or 1, heads or 1, rows, kv_len]."""
        import numpy as np

        first, past = self.spans(shape, rows)
        key = np.arange(shape.kv_len)
        open_pairs = ((key >= first[..., None]) & (key < past[..., None]))[:, None]
        for part in self.parts:
            if part.file:
                table = file_table(part, shape, rows)
                open_pairs = open_pairs & (table if part.kind == "dense" else table != -np.inf)
        return open_pairs

    def sees(self, shape: Shape, key: int) -> NDArray[np.bool_]:
        """True for the rows that may see one key: [batch or 1, heads or 1, q_len]."""
        if any(p.file for p in self.parts):
            return self.visible(shape)[..., key]
        first, past = self.spans(shape)
        return ((first <= key) & (key < past))[:, None]

    def bias(
        self, shape: Shape, rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64] | None:
        """The bias of the scores, [batch or 1, heads or 1, rows, kv_len]; None for nothing."""
        import numpy as np

        total: NDArray[np.float64] | None = None
        for part in self.parts:
            if part.kind == "alibi":
                row = np.arange(shape.q_len) if rows is None else np.asarray(rows)
                at = row + (0 if self.upper_left else shape.kv_len - shape.q_len)
                away = np.abs(at[:, None] - np.arange(shape.kv_len))
                added = -alibi_slopes(shape.heads)[None, :, None, None] * away
            elif part.kind == "bias":
                added = file_table(part, shape, rows).astype(np.float64)
            else:
                continue
            total = added if total is None else total + added
        return total

    def blind_rows(self, shape: Shape) -> NDArray[np.bool_]:
        """True where a row may see nothing: [batch or 1, heads or 1, q_len]."""
        import numpy as np

        if any(p.file for p in self.parts):
            return np.logical_not(self.visible(shape).any(-1))
        first, past = self.spans(shape)
        return (past <= first)[:, None]

    def pairs(self, shape: Shape) -> int:
        """Pairs of query and key that may meet, over the batch and the heads."""
        each = shape.batch * shape.heads
        if any(p.file for p in self.parts):
            visible = self.visible(shape)
            return int(visible.sum()) * each // (visible.shape[0] * visible.shape[1])
        first, past = self.spans(shape)
        return int((past - first).sum()) * each // first.shape[0]

    def keys_seen(self, shape: Shape) -> int:
        """Keys that at least one row sees, over the batch: what any implementation must read."""
        if any(p.file for p in self.parts):
            visible = self.visible(shape).any((1, 2))
            return int(visible.sum()) * shape.batch // visible.shape[0]
        import numpy as np

        first, past = self.spans(shape)
        steps = np.zeros((first.shape[0], shape.kv_len + 1), np.int64)
        for element, (low, high) in enumerate(zip(first, past, strict=True)):
            np.add.at(steps[element], low, 1)
            np.add.at(steps[element], high, -1)
        return int((steps.cumsum(1) > 0).sum()) * shape.batch // first.shape[0]

    # ---- as FlexAttention wants it -------------------------------------------------------------

    def flex_mask(self, shape: Shape, device: str) -> Callable[..., Any] | None:
        """A ``mask_mod(b, h, q, k)`` for FlexAttention; None where every key is seen."""
        import torch

        if self.plain or self.kinds == ("alibi",):
            return None
        if any(p.file for p in self.parts):
            table = torch.from_numpy(self.visible(shape)).to(device)
            batches, heads = table.shape[0] > 1, table.shape[1] > 1

            def may_see(b: Any, h: Any, q: Any, k: Any) -> Any:
                return table[b if batches else 0, h if heads else 0, q, k]

            return may_see
        # of one size for many lengths: inductor fails on two tables of a size that it doesn't know
        more = max(LEAST_TABLE, 1 << (shape.q_len - 1).bit_length()) - shape.q_len
        first, past = (
            torch.nn.functional.pad(torch.from_numpy(x.copy()), (0, more)).to(device)
            for x in self.spans(shape)
        )
        batches = first.shape[0] > 1

        def in_span(b: Any, h: Any, q: Any, k: Any) -> Any:
            element = b if batches else 0
            return (k >= first[element, q]) & (k < past[element, q])

        return in_span

    def flex_score(self, shape: Shape, device: str) -> Callable[..., Any] | None:
        """A ``score_mod(score, b, h, q, k)`` for FlexAttention; None where nothing is added."""
        import torch

        if "bias" in self.kinds:
            added = self.bias(shape)
            table = torch.from_numpy(added).to(device, torch.float32)
            batches, heads = table.shape[0] > 1, table.shape[1] > 1

            def add(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                return score + table[b if batches else 0, h if heads else 0, q, k]

            return add
        if "alibi" not in self.kinds:
            return None
        slopes = torch.from_numpy(alibi_slopes(shape.heads)).to(device, torch.float32)
        offset = 0 if self.upper_left else shape.kv_len - shape.q_len

        def slope(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            away = q + offset - k
            # two comparisons instead of abs(): ptxas of CUDA 13 miscompiles abs in dQ on Hopper
            return score - slopes[h] * torch.where(away >= 0, away, -away)

        return slope


# ---- one condition -------------------------------------------------------------------------------


def alibi_slopes(heads: int) -> NDArray[np.float64]:
    """m_h of arXiv:2108.12409: a geometric series; past a power of two, each second of the next."""
    import numpy as np

    whole = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 / whole * np.arange(1, whole + 1))
    between = 2.0 ** (-4.0 / whole * np.arange(1, 2 * whole + 1, 2))
    return np.concatenate([slopes, between[: heads - whole]])


def parse_part(text: str, word: str) -> Part:
    """The condition that one word of a mask's text spells; raises :class:`InvalidMask` for none."""
    kind, _, tail = word.partition(":")
    if kind not in MASK_KINDS:
        raise InvalidMask(f"mask {text!r}: {kind!r} is no mask; the masks are {SPELLINGS}")
    if kind in ("dense", "bias"):
        if not tail:
            raise InvalidMask(f"mask {text!r}: {kind} needs a file, as in {kind}:FILE.npy")
        return Part(kind, file=tail)
    lengths, words = _lengths(text, kind, tail.split(",") if tail else [])
    try:
        numbers = tuple(n for word in words for n in _run(kind, word))
    except ValueError:
        raise InvalidMask(f"mask {text!r}: {tail!r} is not whole numbers split by commas") from None
    count_of_kind = _NUMBERS[kind]
    if (count_of_kind is None and not numbers) or (
        count_of_kind is not None and len(numbers) != count_of_kind
    ):
        count = "at least one number" if count_of_kind is None else f"{count_of_kind} numbers"
        raise InvalidMask(f"mask {text!r}: {kind} takes {count}; the masks are {SPELLINGS}")
    least = 1 if kind in ("document", "prefix", "chunk", "blocks") else 0
    if any(n < least for n in numbers):
        raise InvalidMask(f"mask {text!r}: {min(numbers)} is below {least}, the least {kind} takes")
    if any(n > MOST for n in numbers):
        raise InvalidMask(f"mask {text!r}: {max(numbers)} is above {MOST}, the most {kind} takes")
    return Part(kind, numbers, lengths=lengths)


def _lengths(text: str, kind: str, words: list[str]) -> tuple[str, list[str]]:
    """How ``packed`` draws lengths, empty for others, and the numbers that follow."""
    if kind != "packed":
        return "", words
    lengths, *numbers = words or [""]
    if lengths not in LENGTHS:
        raise InvalidMask(
            f"mask {text!r}: documents are drawn as {', '.join(LENGTHS)}, not {lengths!r}"
        )
    if numbers[:1] in (["0"], []):
        raise InvalidMask(f"mask {text!r}: documents have a mean of 1 token or more, and a seed")
    return lengths, numbers


def _run(kind: str, word: str) -> list[int]:
    """The number, or of blocks ``NxCOUNT`` as many; raises ValueError for anything else."""
    number, by, count = word.partition("x") if kind == "blocks" else (word, "", "")
    if by and not 1 <= int(count) <= MOST_BLOCKS:
        raise ValueError(word)
    return [int(number)] * (int(count) if by else 1)


def packed_edges(part: Part, shape: Shape) -> NDArray[np.int64]:
    """The ends of the documents of each batch element: [batch, kv_len], the last repeated."""
    import numpy as np

    mean, seed = part.numbers
    chance = np.random.default_rng(seed)
    size = shape.batch, shape.kv_len
    match part.lengths:
        case "lognormal":
            drawn = mean * chance.lognormal(-0.5, 1.0, size)
        case "exponential":
            drawn = chance.exponential(mean, size)
        case _:
            drawn = np.full(size, float(mean))
    lengths = np.clip(drawn.round(), 1, shape.kv_len).astype(np.int64)
    return np.minimum(lengths.cumsum(1), shape.kv_len)


def span(part: Part, at: NDArray[np.int64], shape: Shape) -> tuple[Any, Any]:
    """The first and past-the-last key that one condition allows a query at each position."""
    import numpy as np

    match part.kind:
        case "causal":
            return None, at + 1
        case "window":
            return at - part.numbers[0], at + part.numbers[1] + 1
        case "chunk":
            first = at // part.numbers[0] * part.numbers[0]
            return first, first + part.numbers[0]
        case "prefix":
            return None, np.maximum(part.numbers[0], at + 1)
        case "blocks":
            ends = np.cumsum(part.numbers)
            return None, ends[np.searchsorted(ends, at, side="right").clip(0, len(ends) - 1)]
        case "packed":
            ends = packed_edges(part, shape)
            own = np.stack([np.searchsorted(each, at, side="right") for each in ends])
            edges = np.concatenate([np.zeros((len(ends), 1), np.int64), ends], 1)
            own = own.clip(0, shape.kv_len - 1)
            return np.take_along_axis(edges, own, 1), np.take_along_axis(ends, own, 1)
        case "document":
            edges = np.concatenate([[0], np.cumsum(part.numbers)])
            own = np.searchsorted(edges, at, side="right") - 1
            return edges[own], edges[own + 1]
        case "padding":
            return None, np.array(part.numbers)[:, None]
        case "leftpad":
            return np.array(part.numbers)[:, None], None
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
