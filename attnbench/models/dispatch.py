"""Calls dispatched by a table: ``attnbench.dispatch("table.json")``.

    import torch.nn.functional as F

    F.scaled_dot_product_attention = attnbench.dispatch("table.json")

What comes back is called as torch's own function is, and hands each call to the variant that was
fastest on it. The choice is made once for calls that are alike and kept, so that a later one costs
some microseconds; a variant is built for the lengths that it is called with, so the first call of
new lengths costs more. Where a table does not say that its variants are right on every kind of
inputs (one written by hand or by an earlier version), each is tried on all kinds before its first
call, and not used if it is wrong on one. What the table does not speak of, and calls that are
traced, transformed or have tensors without values, go to torch's own function, and a
:class:`DispatchWarning` says so, once for each cause. Under ``torch.compile`` the graph breaks
around a call: what was measured is what runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention as torchs

import impls
from attnbench import __version__
from attnbench.answer.dispatch_table import SAME, DispatchEntry, DispatchTable
from attnbench.core.machine import this_machine
from attnbench.gate.budget import Yardstick, check
from attnbench.gate.findings import Wrong
from attnbench.gate.hygiene import check_finite, check_form
from attnbench.gate.inputs import Inputs, make
from attnbench.gate.oracle import compare, sample_rows
from attnbench.gate.reference import ROWS, of_rows
from attnbench.models.attention import Built, CallShape, NotServed
from attnbench.models.mask_of import is_usual, problem_of
from impls.asked import CantBeDone
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import INPUTS, Problem
from impls.spec import Unsupported

ANY_QUERIES = ("none", "causal@upper-left")
"""Masks that a call can name, whatever its lengths."""
FEATURES = {
    0: "phase", 1: "mask", 2: "dtype", 3: "heads", 4: "kv_heads", 5: "head_dim", 6: "v_head_dim",
}  # fmt: skip
"""Of what makes calls alike."""


class Unseen(Exception):
    """No entry speaks of the call; ``cause`` is the same for calls that it is the same for."""

    def __init__(self, cause: str, sentence: str) -> None:
        super().__init__(sentence)
        self.cause = cause


@dataclass(frozen=True)
class TableCall:
    """What a table asks of a call."""

    phases: tuple[str, ...]
    """That it may be looked for under, the best first."""
    masks: tuple[str, ...]
    """That mean the same for it."""
    dtype: str
    widths: tuple[int, int, int, int]
    """heads, kv_heads, head_dim, v_head_dim"""
    batch: int
    keys: int
    queries: int

    @classmethod
    def of(
        cls,
        shapes: tuple[Size, Size, Size],
        dtypes: Sequence[torch.dtype],
        *,
        causal: bool,
        scale: float | None,
        grouped: bool,
        gradient: bool,
    ) -> TableCall:
        """From what the tensors are; raises :class:`Unseen` for what no table has."""
        _check(shapes, dtypes, scale, grouped)
        (batch, heads, queries, width), (_, kv_heads, keys, _), (*_, value_width) = shapes
        return cls(
            _phases(queries, keys, gradient),
            _masks(queries, keys, causal),
            str(dtypes[0]).removeprefix("torch."),
            (heads, kv_heads, width, value_width),
            batch,
            keys,
            queries,
        )

    def entry_of(
        self, entries: Mapping[tuple[Any, ...], Sequence[DispatchEntry]]
    ) -> tuple[DispatchEntry, str]:
        """The entry and the variant; ``entries`` by what makes calls alike."""
        alike = [
            entry
            for phase, mask in product(self.phases, self.masks)
            for entry in entries.get((phase, mask, self.dtype, *self.widths), ())
        ]
        for entry in alike:
            if (variant := entry.takes(self.batch, self.keys, self.queries)) is not None:
                return entry, variant
        raise self._outside(alike) if alike else self._unlike(list(entries))

    def _outside(self, alike: Sequence[DispatchEntry]) -> Unseen:
        spans = [
            f"{r.first} to {r.last} keys with {_queries(r.queries)} (batch {e.batch[0]} to "
            f"{e.batch[1]})"
            for e in alike
            for r in e.ranges
        ]
        more = f" and {len(spans) - 3} ranges more" * (len(spans) > 3)
        return Unseen(
            f"lengths {alike[0].alike}",
            f"{self.queries} queries on {self.keys} keys, batch {self.batch}, are outside of what "
            f"was measured ({alike[0].phase}, mask {alike[0].mask}): {'; '.join(spans[:3])}{more}",
        )

    def _unlike(self, known: Sequence[tuple[Any, ...]]) -> Unseen:
        """Name what the table has of no call, or that it has not all of it together."""
        mine = (self.phases, self.masks, (self.dtype,), *((n,) for n in self.widths))
        for place, name in FEATURES.items():
            there = {alike[place] for alike in known}
            if not there & set(mine[place]):
                has = ", ".join(map(str, sorted(there)))
                return Unseen(name, f"{name} {mine[place][0]} is not in the table, which has {has}")
        heads, kv_heads, width, value_width = self.widths
        what = (
            f"{self.phases[0]}, mask {self.masks[0]}, {self.dtype}, h{heads}/{kv_heads} "
            f"d{width}/{value_width}"
        )
        return Unseen(what, f"the table has no entry for {what} together")


def reachable(entry: DispatchEntry) -> bool:
    """Whether any call can mean this entry; a mask that only a tensor can say, none does."""
    if entry.mask in ANY_QUERIES:
        return True
    return entry.mask == "causal" and any(
        r.queries in (SAME, 1) or r.first <= int(r.queries) <= r.last for r in entry.ranges
    )


def _check(
    shapes: tuple[Size, Size, Size], dtypes: Sequence[torch.dtype], scale: Any, grouped: bool
) -> None:
    """Raise for what is in no table, and for what torch's own function refuses better."""
    q, k, v = shapes
    if not len(q) == len(k) == len(v) == 4:
        raise Unseen(
            "dimensions",
            f"tensors of {len(q)} dimensions were not measured; the table "
            "is for [batch, heads, length, width]",
        )
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or q[1] % (k[1] or 1):
        raise Unseen(
            "shapes", f"q {list(q)}, k {list(k)} and v {list(v)} are no problem of the table's kind"
        )
    if q[1] != k[1] and not grouped:
        raise Unseen("grouped", f"{q[1]} heads on {k[1]} key/value heads without enable_gqa")
    if len(set(dtypes)) > 1:
        raise Unseen("dtypes", "q, k and v of unlike dtypes were not measured")
    if scale is not None and q[3]:
        known = q[3] ** -0.5
        if not isinstance(scale, int | float) or not is_usual(scale, q[3]):
            raise Unseen(
                "scale",
                f"scale={scale} was not measured; the table's is head_dim**-0.5, {known:.6g}",
            )


def _phases(queries: int, keys: int, gradient: bool) -> tuple[str, ...]:
    if gradient:
        return ("train",)
    return ("decode", "forward") if queries < keys or queries == 1 else ("forward",)


def _masks(queries: int, keys: int, causal: bool) -> tuple[str, ...]:
    if not causal:
        return ("none", "causal") if queries == 1 else ("none",)
    if queries == keys:
        return ("causal", "causal@upper-left", *["none"] * (queries == 1))
    return ("causal@upper-left",)


def _queries(count: int | str) -> str:
    return "as many queries" if count == SAME else f"{count} quer{'y' if count == 1 else 'ies'}"


KEPT = 256
"""Of calls that are unlike, so many choices are kept, and with each what was built for it."""
PLAIN = (Tensor, torch.nn.Parameter)
"""Other classes of tensors do things of their own."""
TRACING = tuple(torch._C._TorchDispatchModeKey.__members__.values())
"""Modes in which torch traces calls, or makes tensors without values of what they return."""
BETWEEN = (__name__, "torch._dynamo.eval_frame")
"""Whose frames lie between the one who calls and the one who warns."""


class DispatchRefused(CantBeDone):
    """A table that may not be used here; a sentence."""


class DispatchWarning(UserWarning):
    """The table does not speak of some calls, or was made under other circumstances."""


def dispatch(table: str | Path | DispatchTable, tables: Sequence[str | Path] = ()) -> Dispatch:
    """A function with the signature of ``F.scaled_dot_product_attention`` that picks per call.

    ``table``: the file that ``attnbench choose --export`` wrote. ``tables``: Python files with rows
    of your own, where it names any of these. Raises :class:`DispatchRefused` on another device,
    machine or version of torch than the table was made for.
    """
    if not isinstance(table, DispatchTable):
        table = DispatchTable.read(table)
    _refuse_elsewhere(table.made)
    return Dispatch(table, _built(table, tables), tables)


class Dispatch:
    """The function: made by :func:`dispatch`, called as ``F.scaled_dot_product_attention`` is."""

    def __init__(
        self, table: DispatchTable, built: Mapping[str, Built], tables: Sequence[str | Path] = ()
    ) -> None:
        self.table, self.said = table, dict[str, str]()
        """By cause: the sentence that was said, of calls left to torch or of how it is here."""
        self._built, self._tables = built, tuple(tables)
        self._device = table.made["device"]
        self._unchecked = [x for x in INPUTS if x not in (table.made.get("inputs") or ())]
        """Kinds of inputs on which the table doesn't say that its variants are right."""
        self._checked: dict[Any, str | None] = {}
        """By variant and kind of call, what is wrong with it on one of these."""
        self._entries = defaultdict[tuple[Any, ...], list[DispatchEntry]](list)
        for entry in table.entries:
            self._entries[entry.alike].append(entry)
        self._telling, self._inside = threading.RLock(), _Inside()
        self._way = lru_cache(KEPT)(self._find)
        for note in _notes(table.made):
            self._say(note, note)

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
        if not self._inside.a_variant:
            attend = self._picked(
                query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            )
            if attend is not None:
                self._inside.a_variant = True
                try:
                    return attend(query, key, value)
                except Unsupported as why:
                    self._left_to_torch("kernel", why)
                finally:
                    self._inside.a_variant = False
        return torchs(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def _picked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
    ) -> Attend | None:
        """The variant as it was built for calls like this one; None where torch's own serves."""
        try:
            if attn_mask is not None:
                raise Unseen("attn_mask", "a mask that is given as a tensor is in no table")
            if dropout_p:
                raise Unseen("dropout", f"dropout (dropout_p={dropout_p}) was not measured")
            if (special := _special(query, key, value)) is not None:
                raise Unseen(special, f"{special} were not measured")
            if torch.is_autocast_enabled(self._device):
                raise Unseen("autocast", "autocast runs other dtypes than were measured")
        except Unseen as why:
            self._left_to_torch(why.cause, why)
            return None
        wanted = torch.is_grad_enabled() and (
            query.requires_grad or key.requires_grad or value.requires_grad
        )
        return self._way(
            query.shape,
            key.shape,
            value.shape,
            query.dtype,
            key.dtype,
            value.dtype,
            query.device,
            key.device,
            value.device,
            is_causal,
            scale,
            enable_gqa,
            wanted,
        )

    def _find(
        self,
        q: torch.Size,
        k: torch.Size,
        v: torch.Size,
        dtype: torch.dtype,
        k_dtype: torch.dtype,
        v_dtype: torch.dtype,
        device: torch.device,
        k_device: torch.device,
        v_device: torch.device,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        wanted: bool,
    ) -> Attend | None:
        """The same, looked up in the table and built."""
        if device.type not in (self._device, "meta"):
            raise DispatchRefused(
                f"the tensors are on {device}, and the table was made for {self._device}: move "
                f"them there, or make a table on {device.type}"
            )
        try:
            if device.type == "meta" or not device == k_device == v_device:
                raise Unseen("meta", "tensors on the meta device, or on several, were not measured")
            call = TableCall.of(
                (q, k, v),
                (dtype, k_dtype, v_dtype),
                causal=is_causal,
                scale=scale,
                grouped=enable_gqa,
                gradient=wanted,
            )
            entry, variant = call.entry_of(self._entries)
            asked = CallShape(
                tuple(q), tuple(k), tuple(v), dtype, device, Mask.parse(entry.mask), entry.phase
            )
            attend = self._built[variant].attend(asked)
            if self._unchecked and variant != self.table.fallback:
                self._check(attend, variant, entry, asked)
            return attend
        except Unseen as why:
            self._left_to_torch(why.cause, why)
        except NotServed as why:
            self._left_to_torch("not served", why)
        return None

    def _check(self, attend: Attend, variant: str, entry: DispatchEntry, asked: CallShape) -> None:
        """Raise :class:`Unseen` where a variant, tried once, is wrong on some kind of inputs."""
        key = variant, entry.alike
        if key not in self._checked:
            problem = problem_of(asked.q, asked.v, asked.dtype, asked.device, asked.mask, "forward")
            self._inside.a_variant = True
            try:
                with torch.no_grad():
                    self._checked[key] = _wrong(attend, problem, self._unchecked)
            finally:
                self._inside.a_variant = False
        if (wrong := self._checked[key]) is not None:
            raise Unseen(f"wrong {variant}", f"{variant} is not used, since {wrong}")

    def _say(self, cause: str, sentence: str) -> None:
        """Once for each cause, at the line that called."""
        with self._telling:
            if cause not in self.said:
                self.said[cause] = sentence
                warnings.warn(f"attnbench.dispatch: {sentence}", DispatchWarning, _outside())

    def _left_to_torch(self, cause: str, why: Exception) -> None:
        """Say whose a call is that the table does not speak of; there is no variant for it."""
        self._say(cause, f"{why}; such calls go to torch's own function (said once)")

    def __reduce__(self) -> tuple[Callable[..., Dispatch], tuple[Any, ...]]:
        return dispatch, (self.table, self._tables)

    def __repr__(self) -> str:
        made, count = self.table.made, len(self.table.entries)
        return (
            f"<attnbench.dispatch: {count} entries for {made['machine']}, {made['device']}, "
            f"torch {made['torch']}>"
        )


def _wrong(attend: Attend, problem: Problem, kinds: Iterable[str]) -> str | None:
    """What is wrong with a variant's output on these kinds of inputs, in some rows of it."""
    for problem in (problem.with_(inputs=kind) for kind in kinds):
        inputs = make(problem, 0)
        assert isinstance(inputs, Inputs)
        rows = sample_rows(problem.q_len, ROWS, 0).to(problem.device)
        truth, _ = of_rows(problem, inputs, rows, None, 0)
        try:
            out = check_form(problem, attend(*inputs))
            check_finite("its output", out)
            error = compare(out[:, :, rows], truth.want["forward"])
            yardstick = Yardstick(truth.plain["forward"], truth.tried, None)
            check("forward", error, yardstick, problem.dtype, rows)
        except (Wrong, Unsupported) as wrong:
            return f"on {problem.inputs} inputs {wrong}"
    return None


def _special(*given: Tensor) -> str | None:
    """What makes a call other than one of plain tensors, computed at once; None if nothing does."""
    for x in given:
        if type(x) not in PLAIN:
            return "tensors of a class of their own"
        if x.is_nested:
            return "nested tensors"
        if x.is_neg():  # its sign is not applied yet, which compiled code ignores
            return "tensors with the negative bit"
    if functorch.maybe_current_level() is not None:
        return "calls inside torch.func's transforms"
    modes = torch._C._len_torch_dispatch_stack()
    if torch._C._is_tracing() or (modes and any(map(torch._C._get_dispatch_mode, TRACING))):
        return "calls that are traced, or made with fake tensors,"
    if forward_ad._current_level >= 0:
        return "calls with forward-mode derivatives"
    if torch._C._len_torch_function_stack():
        default = torch.get_default_device().type
        if default not in ("cpu", given[0].device.type):
            return f"calls while {default} is the default device"
    return None


class _Inside(threading.local):
    """Whether this thread is in a variant, whose own calls are torch's, whoever has that name."""

    a_variant = False


def _outside() -> int:
    """How far up the one stands who called this module's function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in BETWEEN:
        level, frame = level + 1, frame.f_back
    return level


def _refuse_elsewhere(made: Mapping[str, Any]) -> None:
    """Raise a sentence where the table was made for another place than this."""
    here = this_machine()
    if made["device"] not in here.devices:
        raise DispatchRefused(
            f"the table was made for {made['device']}, and this machine has "
            f"{', '.join(here.devices)}; make one here"
        )
    for what, mine in (("machine", here.name), ("torch", torch.__version__)):
        theirs, ours = (_release(x) if what == "torch" else x for x in (made[what], mine))
        if theirs != ours:
            raise DispatchRefused(
                f"the table was made for {what} {made[what]}, and here it is {mine}: what is "
                "fastest there need not be so here; measure again and make a table here"
            )


def _release(version: str | None) -> str:
    """Without the word for its build: of one wheel the metadata say ``2.13.0`` and torch itself
    ``2.13.0+cu130``. The device and its driver stand in the table besides.
    """
    return str(version).partition("+")[0]


def _built(table: DispatchTable, tables: Sequence[str | Path]) -> dict[str, Built]:
    """Its variants by label; raises a sentence for one that can't serve what the table gives it."""
    try:
        built = {n: Built(row) for n, row in table.rows(impls.table(tables)).items()}
    except NotServed as why:
        raise DispatchRefused(f"the table names what can't run here: {why}") from None
    for number, entry in enumerate(table.entries, 1):
        for variant, problem in entry.examples(table.made["device"]):
            if (refusal := built[variant].row.supports(problem)) is not None:
                raise DispatchRefused(f"entry {number} of the table can't be served: {refusal}")
    if not any(reachable(entry) for entry in table.entries):
        masks = ", ".join(dict.fromkeys(entry.mask for entry in table.entries))
        raise DispatchRefused(
            f"no entry would ever be used: the masks of the table are {masks}, and a call of "
            "scaled_dot_product_attention can name none, causal and causal@upper-left only"
        )
    return built


def _notes(made: Mapping[str, Any]) -> list[str]:
    """What is otherwise than when the table was made, and may change which is fastest."""
    notes = []
    if made["device"] == "cpu" and made["threads"] != (threads := torch.get_num_threads()):
        notes.append(
            f"the table was made with {made['threads']} threads, and torch has {threads} here: "
            f"torch.set_num_threads({made['threads']}), or measure with --threads {threads}"
        )
    if made["attnbench"] != __version__:
        notes.append(
            f"the table was made by attnbench {made['attnbench']}, and this is {__version__}: the "
            "variants may have changed since"
        )
    driver = next((gpu.driver for gpu in this_machine().gpus), None)
    if made["device"] == "cuda" and made.get("driver") not in (None, driver):
        notes.append(f"the table was made with driver {made['driver']}, and here it is {driver}")
    return notes
