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
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.nn.functional import scaled_dot_product_attention as torchs

import impls
from attnbench import __version__
from attnbench.answer.dispatch_entry import Entry
from attnbench.answer.dispatch_table import DispatchTable
from attnbench.machine import this_machine
from attnbench.models.built import Asked, Built, NotServed
from attnbench.models.call_in_table import Call, Unseen, reachable
from attnbench.models.problem_of import problem_of
from attnbench.truth.budget import Yardstick, check
from attnbench.truth.errors import compare
from attnbench.truth.findings import Wrong
from attnbench.truth.hygiene import check_finite, check_form
from attnbench.truth.inputs import Inputs, make
from attnbench.truth.oracle import sample_rows
from attnbench.truth.reference import ROWS, of_rows
from impls.asked import CantBeDone
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import INPUTS, Problem
from impls.spec import Unsupported

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

    def __init__(self, table: DispatchTable, built: Mapping[str, Built],
                 tables: Sequence[str | Path] = ()) -> None:  # fmt: skip
        self.table, self.said = table, dict[str, str]()
        """By cause: the sentence that was said, of calls left to torch or of how it is here."""
        self._built, self._tables = built, tuple(tables)
        self._device = table.made["device"]
        self._unchecked = [x for x in INPUTS if x not in (table.made.get("inputs") or ())]
        """Kinds of inputs on which the table doesn't say that its variants are right."""
        self._checked: dict[Any, str | None] = {}
        """By variant and kind of call, what is wrong with it on one of these."""
        self._entries = defaultdict[tuple[Any, ...], list[Entry]](list)
        for entry in table.entries:
            self._entries[entry.alike].append(entry)
        self._telling, self._inside = threading.RLock(), _Inside()
        self._way = lru_cache(KEPT)(self._find)
        for note in _notes(table.made):
            self._say(note, note)

    @torch.compiler.disable(reason="attnbench.dispatch picks at each call, outside of a graph")
    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Attention, by whichever variant the table has for this call."""
        if not self._inside.a_variant:
            attend = self._picked(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                  enable_gqa)  # fmt: skip
            if attend is not None:
                self._inside.a_variant = True
                try:
                    return attend(query, key, value)
                except Unsupported as why:
                    self._left_to_torch("kernel", why)
                finally:
                    self._inside.a_variant = False
        return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                      enable_gqa=enable_gqa)  # fmt: skip

    def _picked(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
                dropout_p: float, is_causal: bool, scale: float | None,
                enable_gqa: bool) -> Attend | None:  # fmt: skip
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
            query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device,
            key.device, value.device, is_causal, scale, enable_gqa, wanted,
        )  # fmt: skip

    def _find(self, q: torch.Size, k: torch.Size, v: torch.Size, dtype: torch.dtype,
              k_dtype: torch.dtype, v_dtype: torch.dtype, device: torch.device,
              k_device: torch.device, v_device: torch.device, is_causal: bool,
              scale: float | None, enable_gqa: bool, wanted: bool) -> Attend | None:  # fmt: skip
        """The same, looked up in the table and built."""
        if device.type not in (self._device, "meta"):
            raise DispatchRefused(
                f"the tensors are on {device}, and the table was made for {self._device}: move "
                f"them there, or make a table on {device.type}"
            )
        try:
            if device.type == "meta" or not device == k_device == v_device:
                raise Unseen("meta", "tensors on the meta device, or on several, were not measured")
            call = Call.of((q, k, v), (dtype, k_dtype, v_dtype), causal=is_causal, scale=scale,
                           grouped=enable_gqa, gradient=wanted)  # fmt: skip
            entry, variant = call.entry_of(self._entries)
            asked = Asked(tuple(q), tuple(k), tuple(v), dtype, device, Mask.parse(entry.mask),
                          entry.phase)  # fmt: skip
            attend = self._built[variant].attend(asked)
            if self._unchecked and variant != self.table.fallback:
                self._check(attend, variant, entry, asked)
            return attend
        except Unseen as why:
            self._left_to_torch(why.cause, why)
        except NotServed as why:
            self._left_to_torch("not served", why)
        return None

    def _check(self, attend: Attend, variant: str, entry: Entry, asked: Asked) -> None:
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
        return (f"<attnbench.dispatch: {count} entries for {made['machine']}, {made['device']}, "
                f"torch {made['torch']}>")  # fmt: skip


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
