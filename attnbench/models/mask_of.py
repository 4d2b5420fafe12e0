"""The mask that a tensor is, among the masks that have a name.

A boolean tells which pairs may see each other; a number is added to the scores, and hides where it
is minus infinity, or so low that nothing comes through (-1e9, or the lowest number of a dtype, as
transformers writes it; only a row that hides everything would tell them apart). Where each row sees
one span of keys, the spans are held against the masks that have a name, the simplest first, and a
name is given only if its own spans are the tensor's, row by row. What has no name (left padding,
a relative bias) is kept as a file that is named by its content, so that equal masks are equal.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import BytesIO
from itertools import pairwise
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from attnbench.core.disk import write_whole
from impls.errors import CantBeDone
from impls.masks import InvalidMask, Mask, Part, Shape
from impls.problem import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Visible = NDArray[np.bool_]
    Places = NDArray[np.int64]

LOWEST = -1e9  # what is added to a score and is no more than this hides the key
LOW = -1e4  # so does this, where less is added nowhere and each row sees something
SMALL = 64.0  # what is added and no more than this leaves the scores their digits
ROUNDED = 4 * float(np.finfo(np.float32).eps)
FULL = Mask()
CAUSAL = Mask((Part("causal"),))
UPPER_LEFT = Mask(CAUSAL.parts, upper_left=True)


def mask_of(
    attn_mask: Tensor | None, is_causal: bool, shape: Shape, folder: Path | None = None
) -> Mask:
    """The mask that ``F.scaled_dot_product_attention`` would apply, given these two.

    ``is_causal`` puts the first query at the first key, and both must allow a pair where both are
    given. ``folder``: where a mask without a name is kept; one of this process if none is given.
    Raises CantBeDone, as InvalidMask is, for a tensor that is no mask of the shape.
    """
    name = recognised(attn_mask, is_causal, shape)
    return name if isinstance(name, Mask) else mask_in_file(*name, shape, folder)


def recognised(
    attn_mask: Tensor | None, is_causal: bool, shape: Shape
) -> Mask | tuple[str, NDArray[Any]]:
    """The mask with its name, or ``dense`` or ``bias`` and the table of one that has none; raises
    as :func:`mask_of`.
    """
    if attn_mask is None:
        return causal_of(shape) if is_causal else FULL
    visible, added = _tables(attn_mask, shape)
    if is_causal:
        visible = visible & UPPER_LEFT.visible(shape)
    if added is None:
        return _name(visible, shape) or ("dense", visible)
    base = _name(visible, shape)
    largest = float(abs(added[visible]).max(initial=0.0))
    if largest <= SMALL and _level(added, visible, 0.0):
        return base or ("dense", visible)
    if base is not None and added.shape[1] == shape.heads:
        mask = Mask((*base.parts, Part("alibi")), base.upper_left)
        slopes: Any = mask.bias(shape)
        rounded = torch.from_numpy(slopes).to(attn_mask.dtype).to(torch.float64).numpy()
        fine = attn_mask.dtype in (torch.float32, torch.float64)
        rounding = ROUNDED * largest if fine else 0.0
        if bool(((rounded == added) | ~visible).all()) or _level(added - slopes, visible, rounding):
            return mask
    return ("bias", np.where(visible, added, -np.inf).astype(added.dtype))


def _level(numbers: NDArray[Any], visible: Visible, rounding: float) -> bool:
    """True where each row adds one number to all keys that it sees, which moves no weight."""
    top, low = (np.where(visible, numbers, end) for end in (-np.inf, np.inf))
    return bool((top.max(-1) - low.min(-1) <= rounding).all())  # -inf where a row sees none


def causal_of(shape: Shape) -> Mask:
    """The mask of ``is_causal=True``: the first query at the first key."""
    return CAUSAL if shape.q_len == shape.kv_len else UPPER_LEFT


def has_data(x: Tensor) -> bool:
    """True for a tensor with values: neither a fake one nor one on the meta device."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def _tables(attn_mask: Tensor, shape: Shape) -> tuple[Visible, NDArray[Any] | None]:
    """The visible pairs [batch or 1, heads or 1, q_len, kv_len], and what is added, if any."""
    if not has_data(attn_mask):
        raise CantBeDone(
            f"the mask of shape {tuple(attn_mask.shape)} has no values (it is fake, or on the meta "
            "device), so what it hides is not known; use torch's own attention to export a model"
        )
    if is_functorch_wrapped_tensor(attn_mask) or torch.jit.is_tracing():
        raise CantBeDone(
            "which mask it is follows from its values, which torch.func's transforms and "
            "torch.jit.trace don't show; use torch's own attention for these calls"
        )
    x = attn_mask.detach()
    if x.dtype != torch.bool and not x.is_floating_point():
        raise InvalidMask(
            f"a mask of {x.dtype} is neither boolean (true: may see) nor numbers with a point, "
            "which are added to the scores; give mask.bool() where ones may be seen"
        )
    x = x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))
    if x.dim() > 4 or any(a not in (1, b) for a, b in zip(x.shape, shape, strict=True)):
        raise InvalidMask(
            f"a mask of shape {tuple(attn_mask.shape)} does not broadcast to {tuple(shape)}"
        )
    for axis in (0, 1):  # batches and heads that are one and the same are looked at once
        if x.shape[axis] > 1 and (x.stride(axis) == 0 or bool((x == x.narrow(axis, 0, 1)).all())):
            x = x.narrow(axis, 0, 1)
    x = x.expand(*x.shape[:2], shape.q_len, shape.kv_len)
    if x.dtype == torch.bool:
        return x.cpu().numpy(), None
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    numbers = x.to("cpu", wide).numpy()
    visible = ~(numbers <= hides(x.dtype))
    zero = numbers == 0
    if zero.any(-1).all() and not zero.all() and numbers[~zero].max() <= LOW:
        visible = zero  # two numbers, so no slope, and a key for every row: it can only hide
    return visible, numbers if bool((numbers[visible] != 0).any()) else None


@cache
def hides(dtype: torch.dtype) -> float:
    """A number that is added hides if it is no more than this: ``LOWEST`` in that dtype."""
    return max(torch.tensor(LOWEST, dtype=dtype, device="cpu").item(), torch.finfo(dtype).min / 2)


def _name(visible: Visible, shape: Shape) -> Mask | None:
    """The simplest mask with exactly these spans; None where rows are no spans, or no mask's."""
    if (visible != visible[:, :1]).any():
        return None  # heads that see different keys
    if visible.all():
        return FULL
    visible_bnm = visible[:, 0]
    some = visible_bnm.any(-1)
    first = np.where(some, visible_bnm.argmax(-1), 0)
    past = np.where(some, shape.kv_len - visible_bnm[..., ::-1].argmax(-1), 0)
    if ((past - first) != visible_bnm.sum(-1)).any():
        return None
    for mask in _candidates(first, past, shape):
        if mask.wrong_for(shape) is None:
            low, high = (np.broadcast_to(x, first.shape) for x in mask.spans(shape))
            same = np.where(past == first, low == high, (low == first) & (high == past))
            if bool(same.all()):  # an empty span may stand anywhere
                return mask
    return None


def _candidates(first: Places, past: Places, shape: Shape) -> Iterator[Mask]:
    """Masks that the spans may be, the simplest first, alone and with a padding."""
    ends = past.max(1)
    padding = Part("padding", tuple(map(int, ends[:1] if (ends == ends[0]).all() else ends)))
    yield Mask((padding,))
    corners = (False, True) if shape.q_len != shape.kv_len else (False,)
    for upper_left in corners:
        yield Mask(CAUSAL.parts, upper_left)
        yield Mask((*CAUSAL.parts, padding), upper_left)
    places = [
        (upper_left, np.arange(shape.q_len) + (0 if upper_left else shape.kv_len - shape.q_len))
        for upper_left in corners
    ]
    for upper_left, at in places:
        for parts in _parts(first, past, (np.zeros_like(ends), ends), at):
            yield Mask(parts, upper_left)
            yield Mask((*parts, padding), upper_left)
    begins = np.where(first < past, first, shape.kv_len).min(1)  # of each batch element
    if not begins.any():
        return
    left = Part("leftpad", tuple(map(int, begins[:1] if (begins == begins[0]).all() else begins)))
    yield Mask((left,))
    yield Mask((*CAUSAL.parts, left))
    for upper_left, at in places:
        for parts in _parts(first, past, (begins, ends), at):
            yield Mask((*parts, left), upper_left)
            yield Mask((*parts, padding, left), upper_left)


def _parts(
    first: Places, past: Places, edges: tuple[Places, Places], at: Places
) -> Iterator[tuple[Part, ...]]:
    """Conditions that the spans may be of, without the paddings at both edges, at one corner."""
    begins, ends = edges
    inner = (first < past) & (past < ends[:, None])  # rows whose end is not the padding's
    right = np.unique((past - 1 - at)[inner]).tolist()
    left = np.unique((at - first)[(first > begins[:, None]) & (first < past)]).tolist()
    sides = tuple(x[0] if len(x) == 1 else int(ends.max()) for x in (left, right))
    if 1 in (len(left), len(right)) and min(sides) >= 0:
        yield (Part("window", sides),)
    if past[0, 0] > 0:
        yield (Part("prefix", (int(past[0, 0]),)),)
    starts = np.unique(first[0])  # where documents begin
    if starts[0] == 0 and (np.diff(first[0]) >= 0).all():
        lengths = tuple(int(b - a) for a, b in pairwise([*starts, int(past[0, -1])]))
        yield (Part("document", lengths),)
        yield (*CAUSAL.parts, Part("document", lengths))


def mask_in_file(kind: str, table: NDArray[Any], shape: Shape, folder: Path | None = None) -> Mask:
    """The mask as a file of the folder, or of this process; it is named by its content. Raises
    :class:`InvalidMask` where the folder can't stand in a mask's text, or the table doesn't fit.
    """
    folder = own_folder("masks") if folder is None else folder
    if set("+@") & set(str(folder)):
        raise InvalidMask(
            f"a mask that has no name is kept as a file, and the folder {folder} can't be written "
            "in a mask's text, where + and @ mean something; give another folder"
        )
    table = np.ascontiguousarray(table)
    form = f"{table.dtype}{table.shape}".encode()
    name = hashlib.blake2b(table.tobytes(), digest_size=8, person=form[:16]).hexdigest()
    file = folder / f"{kind}-{'x'.join(map(str, table.shape))}-{name}.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(packed := BytesIO(), table)
        write_whole(file, packed.getvalue(), sync=False)
    mask = Mask((Part(kind, file=str(file)),))
    if (wrong := mask.wrong_for(shape)) is not None:
        raise InvalidMask(wrong)
    return mask


@cache
def own_folder(use: str) -> Path:
    """A folder of this process for one use, gone when it ends, not when a fork of it does."""
    folder = Path(tempfile.mkdtemp(prefix=f"attnbench-{use}-"))
    # a process that multiprocessing forks ends without what atexit registers, and runs these
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    return folder


class WhileAlive:
    """Facts about objects while they live; about a tensor, until somebody writes to it."""

    def __init__(self) -> None:
        self._facts: Any = WeakIdKeyDictionary()
        """By thing its state, None for what nobody writes to, and the facts."""

    def __contains__(self, thing: Any) -> bool:
        return thing in self._facts

    def is_private(self, thing: Tensor) -> None:
        """From now on: nobody else has the tensor, so nobody writes to it."""
        self._facts[thing] = None, {}

    def get(self, thing: Any, rest: Any, find: Callable[[], Any]) -> Any:
        """The fact that ``find`` returned for the thing and ``rest``, or returns now."""
        entry = self._facts.get(thing)
        if entry is None or not (entry[0] is None or _unwritten(thing, *entry[0])):
            entry = self._facts[thing] = _as_it_is(thing), {}
        facts = entry[1]
        if rest not in facts:
            facts[rest] = find()
        return facts[rest]


def _as_it_is(thing: Any) -> tuple[int | None, Tensor | None]:
    """A tensor's count of writes, and a copy where others may write to it unseen by torch: NumPy,
    which shares its memory, or ``.data``.
    """
    uncounted = isinstance(thing, Tensor) and thing.is_inference()
    version = None if uncounted else getattr(thing, "_version", 0)
    plain = type(thing) in (Tensor, torch.nn.Parameter) and not is_functorch_wrapped_tensor(thing)
    return version, thing.detach().clone() if plain and thing.device.type == "cpu" else None


def _unwritten(thing: Any, version: int | None, copy: Tensor | None) -> bool:
    if copy is not None:
        return torch.equal(thing, copy)
    return version is not None and version == getattr(thing, "_version", 0)


MOST_FILES = 128  # masks without a name whose files are there at a time


class KnownMasks:
    """``known_mask(tensor, is_causal, shape)``: the masks of the tensors that are alive."""

    def __init__(self) -> None:
        self._known = WhileAlive()
        self._files: dict[str, None] = {}
        """Those of masks without a name, the latest last: a bias that is learned is another at each
        step."""
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __call__(self, tensor: Tensor | None, is_causal: bool, shape: Shape) -> Mask:
        """The mask that F.scaled_dot_product_attention makes of ``tensor`` and ``is_causal``."""
        if tensor is None:
            return mask_of(None, is_causal, shape)

        def look() -> Mask:
            mask = mask_of(tensor, is_causal, shape, own_folder("models"))
            for file in (part.file for part in mask.parts if part.file):
                self._files.pop(file, None)
                self._files[file] = None
            if len(self._files) > MOST_FILES:
                oldest = next(iter(self._files))
                del self._files[oldest]
                if self._process == os.getpid():  # a fork shares the folder
                    Path(oldest).unlink(missing_ok=True)
            return mask

        with self._lock:
            mask: Mask = self._known.get(tensor, (is_causal, shape), look)
        return mask

    def about(self, tensor: Tensor, what: Any, look: Callable[[], Any]) -> Any:
        """The fact that ``look`` returns about a tensor, kept beside its mask while that holds."""
        with self._lock:
            return self._known.get(tensor, what, look)

    def is_private(self, tensor: Tensor) -> None:
        """From now on: nobody else has the tensor, so that it need not be compared at each call."""
        with self._lock:
            self._known.is_private(tensor)


known_mask = KnownMasks()  # one for the process, as the files are

FEW = 16  # new tokens, at the most, that count as decoding where there are more keys than queries


def phase_of(shape: Shape, mask: Mask, *, gradient: bool) -> str:
    """The phase of a call; ``gradient``: whether a backward pass may follow.

    A few queries on more keys decode if they are the last tokens of these: each sees the keys up to
    its own place and none after it. Otherwise they are another sequence, which attends across. A
    single query computes the same either way, and decodes.
    """
    if gradient:
        return "train"
    if not (shape.q_len < shape.kv_len and shape.q_len <= FEW):
        return "forward"
    if shape.q_len == 1:
        return "decode"
    if mask.plain or mask.upper_left:
        return "forward"
    visible = np.logical_or.reduce(mask.visible(shape), (0, 1))
    last = shape.kv_len - 1 - visible[:, ::-1].argmax(-1)
    own = np.arange(shape.kv_len - shape.q_len, shape.kv_len)
    return "decode" if bool((last == own).all()) else "forward"


def problem_of(
    q: Sequence[int], v: Sequence[int], dtype: object, device: object, mask: Mask, phase: str
) -> Problem:
    """From the shapes of q [batch, heads, q_len, head_dim] and v [batch, kv_heads, kv_len, …]."""
    batch, heads, q_len, head_dim = map(int, q)
    _, kv_heads, kv_len, v_head_dim = map(int, v)
    sizes = batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim
    name = str(dtype).removeprefix("torch.")
    return Problem(*sizes, name, mask, phase, device=str(device))
