"""Calls dispatched by a table: ``attnbench.dispatch("table.json")``.

    import torch.nn.functional as F

    F.scaled_dot_product_attention = attnbench.dispatch("table.json")

The function is called as torch's own is, or with ``softcap``, ``sinks`` and ``return_lse`` besides,
and hands each call to the variant that was fastest on it. The choice is made once for calls that
are alike and kept, so that a later one costs some microseconds; a variant is built for the lengths
that it is called with, so the first call of new lengths costs more. What the table does not cover,
and calls that are traced, transformed or have tensors without values, go to torch's own function,
and a :class:`DispatchWarning` says so, once for each; those with a soft cap, sinks or a
log-sum-exp, which that has not, go to ``matmul``. Under ``torch.compile`` the graph breaks around a
call: what was measured is what runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
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
from attnbench.answer.dispatch_table import (
    EARLIER_INPUTS,
    DispatchEntry,
    DispatchTable,
    settings_key,
)
from attnbench.core.machine import this_machine
from attnbench.models import frames_out
from attnbench.models.attention import Built, CallShape, NotServed
from impls.errors import CantBeDone
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import INPUTS, is_usual, setting_words
from impls.spec import Unsupported

CHOICES = 256  # kinds of calls for which the choice is kept, with what was built for it
BETWEEN = (__name__, "torch._dynamo.eval_frame")
"""Modules whose frames lie between the caller and the warning."""
TORCHS, PLAIN_FORM = "torch's own function", "matmul"
"""Where calls go that the table does not cover: torch's function has nothing but a scale."""
PLAIN = (Tensor, torch.nn.Parameter)  # other classes of tensors do things of their own


class DispatchWarning(UserWarning):
    """The table does not cover some calls, or was made under other circumstances."""


class PlainCall(NamedTuple):
    """All that the choice for a call of plain tensors follows from; each of q, k and v, and of
    sinks, if there are any.
    """

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[torch.device, ...]
    causal: bool
    settings: tuple[tuple[str, Any], ...]
    """The parameters of softmax that it sets."""
    grouped: bool
    gradient: bool


Entries = Mapping[tuple[Any, ...], Sequence[DispatchEntry]]


def find_entry(entries: Entries, call: PlainCall) -> tuple[DispatchEntry, str] | str:
    """The entry, by what makes calls alike, and the variant; or why there is none."""
    q, k, v, *sinks = call.shapes
    settings = settings_key(dict(call.settings))
    sizes = f"q {list(q)}, k {list(k)} and v {list(v)}"
    if not len(q) == len(k) == len(v) == 4 or q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return f"{sizes} are no problem of a table's kind"
    if len({*call.dtypes}) > 1 or len({*call.devices}) > 1 or (q[1] != k[1] and not call.grouped):
        return f"{sizes} of unlike dtypes, devices or heads were not measured"
    batch, heads, queries, width = q
    if sinks and tuple(sinks[0]) != (heads,):
        return f"sinks {list(sinks[0])} are not one for each of {heads} heads"
    keys = k[2]
    one = (str(call.dtypes[0]).removeprefix("torch."), heads, k[1], width, v[3])
    # the phases and masks that mean the same for the call, the best first
    phases = ("decode", "forward") if queries < keys or queries == 1 else ("forward",)
    phases = ("train",) if call.gradient else phases
    masks: tuple[str, ...] = ("none", "causal") if queries == 1 else ("none",)
    if call.causal and queries == keys:
        masks = ("causal", "causal@upper-left", *(["none"] if queries == 1 else []))
    elif call.causal:
        masks = ("causal@upper-left",)
    for both in product(phases, masks):
        for entry in entries.get((*both, *one, settings), ()):
            if (variant := entry.takes(batch, keys, queries)) is not None:
                return entry, variant
    kind = f"{phases[0]}, mask {masks[0]}, {one[0]}, h{heads}/{k[1]} d{width}/{v[3]}"
    kind = ", ".join([kind, *setting_words(dict(call.settings))])
    if not any((*both, *one, settings) in entries for both in product(phases, masks)):
        return f"the table has no entry for {kind}"
    return f"some lengths or batches are outside of what the table has for {kind}"


def dispatch(table: str | Path | DispatchTable, tables: Sequence[str | Path] = ()) -> Dispatch:
    """F.scaled_dot_product_attention, picked per call; raises CantBeDone for what is no table, and
    for one that may not be used here.
    """
    if not isinstance(table, DispatchTable):
        table = DispatchTable.read(table)
    origin, here = table.made, this_machine()
    if missing := [kind for kind in EARLIER_INPUTS if kind not in (origin.inputs or ())]:
        raise CantBeDone(
            f"the table doesn't say that its variants are right on {', '.join(missing)} inputs; "
            "'attnbench choose --export' tries them, and makes one that does"
        )
    if origin.device not in here.devices:
        raise CantBeDone(
            f"the table was made for {origin.device}, and this machine has "
            f"{', '.join(here.devices)}; make one here"
        )
    # a wheel's metadata may say 2.13.0 where torch itself says 2.13.0+cu130
    release = torch.__version__.partition("+")[0]
    for what, theirs, ours in (
        ("machine", origin.machine, here.name),
        ("torch", str(origin.torch).partition("+")[0], release),
    ):
        if theirs != ours:
            raise CantBeDone(
                f"the table was made for {what} {theirs}, and here it is {ours}: what is "
                "fastest there need not be so here; measure again and make a table here"
            )
    return Dispatch(table, _build_variants(table, tables), tables)


def _build_variants(table: DispatchTable, tables: Sequence[str | Path]) -> dict[str, Built]:
    """Its variants by label; raises CantBeDone where one can't serve what it should."""
    try:
        built = {n: Built(row) for n, row in table.rows(impls.table(tables)).items()}
    except NotServed as why:
        raise CantBeDone(f"the table names what can't run here: {why}") from None
    for number, entry in enumerate(table.entries, 1):
        for variant, problem in entry.examples(table.made.device):
            if (refusal := built[variant].row.supports(problem)) is not None:
                raise CantBeDone(f"entry {number} of the table can't be served: {refusal}")
    return built


class Dispatch:
    """The function: made by :func:`dispatch`, called as ``F.scaled_dot_product_attention`` is."""

    def __init__(
        self, table: DispatchTable, built: Mapping[str, Built], tables: Sequence[str | Path] = ()
    ) -> None:
        self.table = table
        self.warnings: set[str] = set()
        """The sentences that were said, of calls left to torch or of how it is here."""
        self._built, self._tables = built, tuple(tables)
        self._device = table.made.device
        self._entries = defaultdict[tuple[Any, ...], list[DispatchEntry]](list)
        for entry in table.entries:
            self._entries[entry.alike].append(entry)
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
                    f"the table was made with {what} {theirs}, and here it is {ours}: which is "
                    "fastest may have changed",
                )
        if unchecked := [kind for kind in INPUTS if kind not in (origin.inputs or ())]:
            self._warn(
                f"the table's variants were not tried on {', '.join(unchecked)} inputs; a table of "
                "a new run has that tried"
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
        *,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention, by whichever variant the table has for this call; with ``return_lse``
        (out, lse).
        """
        attend, inputs = None, {} if sinks is None else {"sinks": sinks}
        numbers = {"scale": scale, "softcap": softcap, "lse": return_lse or None}
        settings = _settings(query, numbers, inputs)
        rest = TORCHS if {*dict(settings)} <= {"scale"} else PLAIN_FORM
        if not getattr(self._inside, "a_variant", False):
            tensors = (query, key, value, *inputs.values())
            if (why := _unusual(tensors, attn_mask, dropout_p)) is not None:
                self._leave(why, rest)
            else:
                call = PlainCall(
                    tuple(x.shape for x in tensors),
                    tuple(x.dtype for x in tensors),
                    tuple(x.device for x in tensors),
                    is_causal,
                    settings,
                    enable_gqa,
                    torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
                )
                attend = self._choices(call)
        if attend is not None:
            self._inside.a_variant = True
            try:
                return attend(query, key, value, **inputs)
            except Unsupported as why_not:
                self._leave(str(why_not), rest)
            finally:
                self._inside.a_variant = False
        if rest == PLAIN_FORM:
            more: Any = {"scale": scale, "dropout_p": dropout_p, "softcap": softcap, **inputs}
            more |= {"is_causal": is_causal, "return_lse": return_lse}
            return plain()(query, key, value, attn_mask, **more)
        return torch_sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def _choose(self, call: PlainCall) -> Attend | None:
        device = call.devices[0]
        if device.type != self._device:
            raise CantBeDone(
                f"the tensors are on {device}, and the table was made for {self._device}: move "
                f"them there, or make a table on {device.type}"
            )
        try:
            if isinstance(choice := find_entry(self._entries, call), str):
                raise NotServed(choice)
            entry, variant = choice
            (q, k, v), mask = map(tuple, call.shapes[:3]), Mask.parse(entry.mask)
            kind = call.dtypes[0], device, mask, entry.phase
            shape = CallShape(q, k, v, *kind, settings=call.settings)
            return self._built[variant].attend(shape)
        except NotServed as why:
            capped = not dict(call.settings).keys() <= {"scale"}
            self._leave(str(why), PLAIN_FORM if capped else TORCHS)
        return None

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < CHOICES:
            self.warnings.add(sentence)
            warnings.warn(f"attnbench.dispatch: {sentence}", DispatchWarning, frames_out(BETWEEN))

    def _leave(self, why: str, to: str) -> None:
        self._warn(f"{why}; such calls go to {to} (said once)")

    def __reduce__(self) -> tuple[Callable[..., Dispatch], tuple[Any, ...]]:
        return dispatch, (self.table, self._tables)

    def __repr__(self) -> str:
        origin, count = self.table.made, len(self.table.entries)
        return (
            f"<attnbench.dispatch: {count} entries for {origin.machine}, {origin.device}, "
            f"torch {origin.torch}>"
        )


@cache
def plain() -> Built:
    """The variant for calls that torch's function can't serve."""
    return Built(impls.own_rows()[PLAIN_FORM])


def _settings(
    query: Tensor, numbers: Mapping[str, Any], inputs: Mapping[str, Tensor]
) -> tuple[tuple[str, Any], ...]:
    """The parameters that a call sets."""
    width, scale = query.shape[-1] if query.dim() else 0, numbers["scale"]
    usual = scale is not None and width and is_usual(scale, width)
    values = {n: x for n, x in numbers.items() if x is not None and not (n == "scale" and usual)}
    return tuple({**dict.fromkeys(inputs, True), **values}.items())


def _unusual(qkv: Sequence[Tensor], mask: Tensor | None, dropout: float) -> str | None:
    """A sentence where a call is not one of plain tensors, computed at once."""
    if mask is not None:
        return "a mask that is given as a tensor is in no table"
    if dropout:
        return f"dropout (dropout_p={dropout}) was not measured"
    if any(type(x) not in PLAIN or x.is_nested or x.is_meta for x in qkv):
        return "tensors of a class of their own, nested or without values were not measured"
    transformed = functorch.maybe_current_level() is not None or forward_ad._current_level >= 0
    if transformed or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return "calls that torch transforms, traces or shows to a mode of its own were not measured"
    if torch.is_autocast_enabled(qkv[0].device.type):
        return "autocast runs other dtypes than were measured"
    return None
