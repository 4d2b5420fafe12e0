"""Calls dispatched by a table: ``attnbench.dispatch("table.json")``.

    import torch.nn.functional as F

    F.scaled_dot_product_attention = attnbench.dispatch("table.json")

The function is called as torch's own is, and hands each call to the variant that was fastest on
it. The choice is made once for calls that are alike and kept, so that a later one costs some
microseconds; a variant is built for the lengths that it is called with, so the first call of new
lengths costs more. What the table does not cover, and calls that are traced,
transformed or have tensors without values, go to torch's own function, and a
:class:`DispatchWarning` says so, once for each cause. Under ``torch.compile`` the graph breaks
around a call: what was measured is what runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

import impls
from attnbench import __version__
from attnbench.answer.dispatch_table import DispatchEntry, DispatchTable
from attnbench.core.machine import this_machine
from attnbench.models import frames_out
from attnbench.models.attention import Built, CallShape, NotServed
from impls.errors import CantBeDone
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import INPUTS, is_usual
from impls.spec import Unsupported

FEATURES = ("phase", "mask", "dtype", "heads", "kv_heads", "head_dim", "v_head_dim")
"""Features in which calls of one entry are alike."""
CHOICES = 256  # kinds of calls for which the choice is kept, with what was built for it
BETWEEN = (__name__, "torch._dynamo.eval_frame")
"""Modules whose frames lie between the caller and the warning."""
PLAIN = (Tensor, torch.nn.Parameter)  # other classes of tensors do things of their own


class NotCovered(Exception):
    """No entry covers the call; ``cause`` is the same for all calls that it is the same for."""

    def __init__(self, sentence: str, cause: str = "") -> None:
        super().__init__(sentence)
        self.cause = cause or sentence


class DispatchRefused(CantBeDone):
    """A table that may not be used here."""


class DispatchWarning(UserWarning):
    """The table does not cover some calls, or was made under other circumstances."""


class PlainCall(NamedTuple):
    """All that the choice for a call of plain tensors follows from; each of q, k and v."""

    shapes: tuple[torch.Size, torch.Size, torch.Size]
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[torch.device, ...]
    causal: bool
    scale: Any
    grouped: bool
    gradient: bool


def find_entry(
    entries: Mapping[tuple[Any, ...], Sequence[DispatchEntry]], call: PlainCall
) -> tuple[DispatchEntry, str]:
    """The entry, by what makes calls alike, and the variant; raises :class:`NotCovered`."""
    _check(call)
    (batch, heads, queries, width), (_, kv_heads, keys, _), (*_, value_width) = call.shapes
    one = (str(call.dtypes[0]).removeprefix("torch."), heads, kv_heads, width, value_width)
    # the phases and masks that mean the same for the call, the best first
    phases = ("decode", "forward") if queries < keys or queries == 1 else ("forward",)
    phases = ("train",) if call.gradient else phases
    masks: tuple[str, ...] = ("none", "causal") if queries == 1 else ("none",)
    if call.causal and queries == keys:
        masks = ("causal", "causal@upper-left", *(["none"] if queries == 1 else []))
    elif call.causal:
        masks = ("causal@upper-left",)
    alike = [e for both in product(phases, masks) for e in entries.get((*both, *one), ())]
    for entry in alike:
        if (variant := entry.takes(batch, keys, queries)) is not None:
            return entry, variant
    if alike:
        spans = [
            f"{r.first} to {r.last} keys with {r.queries} queries (batch {e.batch[0]} to "
            f"{e.batch[1]})"
            for e in alike
            for r in e.ranges
        ]
        raise NotCovered(
            f"{queries} queries on {keys} keys, batch {batch}, are outside of what was measured "
            f"({alike[0].phase}, mask {alike[0].mask}): {'; '.join(spans[:3])}",
            f"lengths {alike[0].alike}",
        )
    options = (phases, masks, *((value,) for value in one))
    for name, values, column in zip(FEATURES, options, zip(*entries, strict=True), strict=True):
        if set(column).isdisjoint(values):
            some = ", ".join(map(str, sorted(set(column))))
            raise NotCovered(f"{name} {values[0]} is not in the table, which has {some}", name)
    what = f"{phases[0]}, mask {masks[0]}, {one[0]}, h{heads}/{kv_heads} d{width}/{value_width}"
    raise NotCovered(f"the table has no entry for {what} together")


def _check(call: PlainCall) -> None:
    """Raise for what is in no table, and for what torch's own function refuses better."""
    (q, k, v), scale = call.shapes, call.scale
    if not len(q) == len(k) == len(v) == 4:
        raise NotCovered(f"tensors of {len(q)} dimensions were not measured", "dimensions")
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or q[1] % (k[1] or 1):
        shapes = f"q {list(q)}, k {list(k)} and v {list(v)}"
        raise NotCovered(f"{shapes} are no problem of the table's kind", "shapes")
    if q[1] != k[1] and not call.grouped:
        raise NotCovered(f"{q[1]} heads on {k[1]} key/value heads without enable_gqa", "grouped")
    if len(set(call.dtypes)) > 1 or len(set(call.devices)) > 1:
        raise NotCovered("q, k and v of unlike dtypes or devices were not measured")
    number = isinstance(scale, int | float)
    if scale is not None and q[3] and not (number and is_usual(scale, q[3])):
        usual = f"head_dim**-0.5, {q[3] ** -0.5:.6g}"
        raise NotCovered(f"scale={scale} was not measured; the table's is {usual}", "scale")


def dispatch(table: str | Path | DispatchTable, tables: Sequence[str | Path] = ()) -> Dispatch:
    """F.scaled_dot_product_attention, picked per call; raises CantBeDone for what is no table, and
    :class:`DispatchRefused` for one that may not be used here.
    """
    if not isinstance(table, DispatchTable):
        table = DispatchTable.read(table)
    origin, here = table.made, this_machine()
    if missing := [kind for kind in INPUTS if kind not in (origin.inputs or ())]:
        raise DispatchRefused(
            f"the table doesn't say that its variants are right on {', '.join(missing)} inputs; "
            "'attnbench choose --export' tries them, and makes one that does"
        )
    if origin.device not in here.devices:
        raise DispatchRefused(
            f"the table was made for {origin.device}, and this machine has "
            f"{', '.join(here.devices)}; make one here"
        )
    made = (("machine", origin.machine, here.name), ("torch", origin.torch, torch.__version__))
    for what, theirs, mine in made:
        # a wheel's metadata may say 2.13.0 where torch itself says 2.13.0+cu130
        releases = {x.partition("+")[0] if what == "torch" else x for x in (theirs, mine)}
        if len(releases) > 1:
            raise DispatchRefused(
                f"the table was made for {what} {theirs}, and here it is {mine}: what is "
                "fastest there need not be so here; measure again and make a table here"
            )
    return Dispatch(table, _build_variants(table, tables), tables)


def _build_variants(table: DispatchTable, tables: Sequence[str | Path]) -> dict[str, Built]:
    """Its variants by label; raises DispatchRefused where one can't serve what it should."""
    try:
        built = {n: Built(row) for n, row in table.rows(impls.table(tables)).items()}
    except NotServed as why:
        raise DispatchRefused(f"the table names what can't run here: {why}") from None
    for number, entry in enumerate(table.entries, 1):
        for variant, problem in entry.examples(table.made.device):
            if (refusal := built[variant].row.supports(problem)) is not None:
                raise DispatchRefused(f"entry {number} of the table can't be served: {refusal}")
    return built


class Dispatch:
    """The function: made by :func:`dispatch`, called as ``F.scaled_dot_product_attention`` is."""

    def __init__(
        self, table: DispatchTable, built: Mapping[str, Built], tables: Sequence[str | Path] = ()
    ) -> None:
        self.table = table
        self.warnings: dict[str, str] = {}
        """By cause: the sentences that were said, of calls left to torch or of how it is here."""
        self._built, self._tables = built, tuple(tables)
        self._device = table.made.device
        self._entries = defaultdict[tuple[Any, ...], list[DispatchEntry]](list)
        for entry in table.entries:
            self._entries[entry.alike].append(entry)
        self._lock = threading.RLock()
        self._inside = threading.local()  # a variant, whose own calls go to torch's function
        self._choices = lru_cache(CHOICES)(self._choose)
        origin, gpu = table.made, next((gpu.driver for gpu in this_machine().gpus), None)
        for what, theirs, ours, counts in (
            ("threads", origin.threads, torch.get_num_threads(), self._device == "cpu"),
            ("attnbench", origin.attnbench, __version__, True),
            ("driver", origin.driver, gpu, self._device == "cuda"),
        ):
            if counts and theirs not in (None, ours):
                self._warn(
                    what,
                    f"the table was made with {what} {theirs}, and here it is {ours}: which is "
                    "fastest may have changed",
                )

    @torch.compiler.disable(reason="attnbench.dispatch picks at each call, outside of a graph")
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention, by whichever variant the table has for this call."""
        if not getattr(self._inside, "a_variant", False):
            special = _special((query, key, value), attn_mask, dropout_p, query.device.type)
            attend = None
            if special is not None:
                self._leave_to_torch(*special)
            else:
                q, k, v = query, key, value
                call = PlainCall(
                    (q.shape, k.shape, v.shape),
                    (q.dtype, k.dtype, v.dtype),
                    (q.device, k.device, v.device),
                    is_causal,
                    scale,
                    enable_gqa,
                    torch.is_grad_enabled()
                    and (q.requires_grad or k.requires_grad or v.requires_grad),
                )
                attend = self._choices(call)
            if attend is not None:
                self._inside.a_variant = True
                try:
                    return attend(query, key, value)
                except Unsupported as why:
                    self._leave_to_torch("kernel", why)
                finally:
                    self._inside.a_variant = False
        return torch_sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def _choose(self, call: PlainCall) -> Attend | None:
        device = call.devices[0]
        if device.type != self._device:
            raise DispatchRefused(
                f"the tensors are on {device}, and the table was made for {self._device}: move "
                f"them there, or make a table on {device.type}"
            )
        try:
            entry, variant = find_entry(self._entries, call)
            (q, k, v), mask = map(tuple, call.shapes), Mask.parse(entry.mask)
            built = self._built[variant]
            return built.attend(CallShape(q, k, v, call.dtypes[0], device, mask, entry.phase))
        except NotCovered as why:
            self._leave_to_torch(why.cause, why)
        except NotServed as why:
            self._leave_to_torch("not served", why)
        return None

    def _warn(self, cause: str, sentence: str) -> None:
        with self._lock:
            if cause not in self.warnings:
                self.warnings[cause] = sentence
                warnings.warn(
                    f"attnbench.dispatch: {sentence}", DispatchWarning, frames_out(BETWEEN)
                )

    def _leave_to_torch(self, cause: str, why: Exception | str) -> None:
        self._warn(cause, f"{why}; such calls go to torch's own function (said once)")

    def __reduce__(self) -> tuple[Callable[..., Dispatch], tuple[Any, ...]]:
        return dispatch, (self.table, self._tables)

    def __repr__(self) -> str:
        origin, count = self.table.made, len(self.table.entries)
        return (
            f"<attnbench.dispatch: {count} entries for {origin.machine}, {origin.device}, "
            f"torch {origin.torch}>"
        )


def _special(
    qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, dropout: float, kind: str
) -> tuple[str, str] | None:
    """The cause and the sentence where a call is not one of plain tensors, computed at once."""
    if mask is not None:
        return "attn_mask", "a mask that is given as a tensor is in no table"
    if dropout:
        return "dropout", f"dropout (dropout_p={dropout}) was not measured"
    if (special := _special_tensors(qkv)) is not None:
        return special, f"{special} were not measured"
    if torch.is_autocast_enabled(kind):
        return "autocast", "autocast runs other dtypes than were measured"
    return None


def _special_tensors(qkv: tuple[Tensor, Tensor, Tensor]) -> str | None:
    for x in qkv:
        if type(x) not in PLAIN or x.is_nested:
            return "tensors of a class of their own, or nested ones,"
        if x.is_meta:
            return "tensors on the meta device"
    if functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return "calls inside torch.func's transforms, or with forward-mode derivatives,"
    if torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return "calls that are traced, or seen by a mode of torch's,"
    return None
