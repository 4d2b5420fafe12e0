"""Every core variant in a transformers model, as ``attn_implementation="attnbench:NAME"``.

    import attnbench.models.transformers
    model.set_attn_implementation("attnbench:chunked")

Importing this registers the variants of the table, with their masks; :func:`register` adds one
with options or from a file of rows. A name that holds ``flash`` is spelled with ``FLASH``
(``attnbench:sdpa.FLASH``), because transformers takes every name with ``flash`` in it for one of
its own and goes to look for a kernel. What a variant doesn't serve (a mask, a gradient, a machine)
is refused at the call, by a sentence that names the variant and the layer.

A model whose code has an attention of its own (Bloom, MPT, XGLM) keeps it whatever is set, and
computes what it computes under eager: its masks are eager's. Its first forward pass warns of that
(:class:`NotCalledWarning`). One that takes its attention from a table of classes (Falcon, GPT-J)
is refused at load.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import impls
from attnbench.answer.paste import PREFIX, spelled
from attnbench.models.attention import (
    NO_BIAS_GRADIENT,
    OWN,
    Built,
    NotServed,
    known_mask,
    with_bias_gradient,
    wrong_level,
)
from impls.asked import CantBeDone
from impls.masks import Mask, Part, Shape
from impls.spec import Variant

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import eager_mask, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "attnbench.models.transformers needs transformers: pip install 'attnbench[transformers]'"
    ) from None

BETWEEN = (__name__, "torch.", "transformers.")
"""Modules whose frames lie between a hook and the line that called the model."""


class NotCalledWarning(UserWarning):
    """A variant was set on a model, and none of the model's layers called it."""


class _Pass:
    """A forward pass of a watched model that is under way."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)
        self.called = False
        """Whether a layer has called a variant."""


class _UnderWay(threading.local):
    """The passes of this thread, the outermost first."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []


_under_way = _UnderWay()
_watched: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()
"""The models whose first forward pass is still to come, with the handles of their hooks."""
_transformers_own = PreTrainedModel.get_correct_attn_implementation


def implementation(
    model: Any, requested_attention: str | None, is_init_check: bool = False
) -> str | None:
    """The attention that ``model`` will have; raises :class:`NotServed` where it can't have ours.

    It stands for ``PreTrainedModel.get_correct_attn_implementation``.
    """
    name = requested_attention
    if name is None or not name.startswith(PREFIX) or name not in ALL_ATTENTION_FUNCTIONS:
        own: str | None = _transformers_own(model, requested_attention, is_init_check)
        return own
    kind: Any = type(model)
    if is_init_check and (found := _table_of_classes(kind)) is not None:
        layer, table = found
        raise NotServed(
            f"{kind.__name__} can't be loaded with {name}: {layer} takes its attention from "
            f"{table}, a table of transformers' own classes, and calls no other; load it with "
            "attn_implementation='eager'"
        )
    if model not in _watched:
        _watched[model] = [
            model.register_forward_pre_hook(_begin),
            model.register_forward_hook(_end, always_call=True),
        ]
    return name


@cache
def _table_of_classes(model: type[nn.Module]) -> tuple[str, str] | None:
    """The class within a model that looks its attention up in a table of classes, and the table.

    None where no class that the model's code names, directly or through others, does so.
    """
    module = vars(sys.modules.get(model.__module__, object))
    tables = {name for name, value in module.items() if _is_table(value)}
    todo, seen = [model] if tables else [], {base.__name__ for base in model.__mro__}
    while todo:
        one = todo.pop()
        try:
            words = set(re.findall(r"\w+", inspect.getsource(one)))
        except (OSError, TypeError):
            continue
        if found := tables & words:
            return one.__name__, min(found)
        new = {w for w in words - seen if _is_layer(module.get(w), model.__module__)}
        seen |= new
        todo += [module[w] for w in new]
    return None


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "eager" in value and isinstance(value["eager"], type)


def _is_layer(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module


@torch.compiler.disable
def _begin(model: nn.Module, args: Any) -> None:
    if model in _watched:
        _under_way.passes.append(_Pass(model))


@torch.compiler.disable
def _end(model: nn.Module, args: Any, output: Any) -> None:
    passes = _under_way.passes
    if not passes or passes[-1].model() is not model:
        return
    done = passes.pop()
    if output is None or (handles := _watched.pop(model, None)) is None:
        return  # it raised, or another thread's pass was the first
    for handle in handles:
        handle.remove()
    name = str(model.config._attn_implementation)  # type: ignore[union-attr]
    if done.called or not name.startswith(PREFIX) or _is_covered_by_outer(model):
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{name} is set on {type(model).__name__}, and none of its layers called it in this "
        "forward pass: what attention there is, it computes by code of its own, as under "
        "attn_implementation='eager'",
        NotCalledWarning,
        level,
    )


def _is_covered_by_outer(model: Any) -> bool:
    """Whether a model around this one warns, or other parts of it may call the variant."""
    if not _under_way.passes:
        return False
    outer: Any = _under_way.passes[0].model()
    return model.config is outer.config or model._can_set_attn_implementation()


# ---- masks -------------------------------------------------------------------------------------

FORM = {
    "shape", "size", "dim", "ndim", "ndimension", "numel", "dtype", "device", "layout", "is_cuda",
    "is_cpu", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_nested", "is_quantized", "get_device",
    "is_floating_point", "is_complex", "is_inference", "requires_grad", "is_leaf", "grad_fn",
}  # fmt: skip
"""The attributes and methods of a tensor that need none of its numbers."""


class SdpaMask(NamedTuple):
    """A mask as F.scaled_dot_product_attention takes it."""

    attn_mask: Tensor | None
    is_causal: bool


class EagerMask(Tensor):
    """A float mask [batch, 1, q_len, kv_len] whose numbers are written on first use."""

    seen: Tensor | None
    """Booleans, true where a query may see a key; None where it is causal from the first key on."""
    dense: Tensor | None
    """The numbers, once written."""

    @staticmethod
    def __new__(
        cls, seen: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> EagerMask:
        """A mask of that shape, as transformers' eager attention would be given it."""
        made: EagerMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.seen, made.dense = seen, None
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"EagerMask({tuple(self.shape)}, {'causal' if self.seen is None else 'dense'})"

    def for_sdpa(self) -> SdpaMask:
        """The mask as it is now: its numbers, where a model may have written into them."""
        if self.dense is not None and (self.dense.is_inference() or self.dense._version > 0):
            return SdpaMask(self.dense, False)
        return SdpaMask(self.seen, self.seen is None and self.shape[2] > 1)

    def numbers(self) -> Tensor:
        """The mask as eager attention has it: the same tensor each time."""
        if self.dense is None:
            seen = self.seen
            if seen is None:
                seen = torch.ones(self.shape, dtype=torch.bool, device=self.device)
                seen = seen.tril() if self.shape[2] > 1 else seen
            zero = torch.zeros((), dtype=self.dtype, device=self.device)
            self.dense = torch.where(seen, zero, torch.finfo(self.dtype).min)
        return self.dense

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` with the numbers, unless it reads the form alone."""
        name = getattr(getattr(func, "__self__", None), "__name__", func.__name__)
        if name in FORM:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.numbers, (args, kwargs or {}))
        return func(*args, **kwargs)


def mask_as_eager(**given: Any) -> Tensor | None:
    """What transformers calls for each mask of a model, with the arguments of its ``sdpa_mask``.

    Returns None where eager attention gets no mask either: every query sees every key.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return eager_mask(**given)
    if given.get("allow_is_bidirectional_skip"):
        seen = sdpa_mask(**{**given, "allow_is_causal_skip": False})
        if seen is None:
            return None
    else:
        # for one query, sdpa_mask may skip the free places of a static cache too, where no 2D mask
        # names them
        keys_before = given.get("q_offset", 0) - given.get("kv_offset", 0)
        whole = given["q_length"] != 1 or bool(keys_before == given["kv_length"] - 1)
        skip = bool(given.get("allow_is_causal_skip", True)) and whole
        seen = sdpa_mask(**{**given, "allow_is_causal_skip": skip})
    shape = (given["batch_size"], 1, given["q_length"], given["kv_length"])
    dtype, device = given.get("dtype", torch.float32), torch.device(given.get("device", "cpu"))
    return EagerMask(seen, shape, dtype, device)


ANY_CORNER = {"dense", "bias", "padding", "document"}
"""Conditions that mean the same at either corner, with as many keys as queries or more."""

CAUSAL_FROM_THE_FRONT = Mask.parse("causal@upper-left")


def joined_mask(
    terms: tuple[Tensor, ...], is_causal: bool, query: Tensor, key: Tensor
) -> Mask | Tensor:
    """The mask of all the terms: each is looked at once, however many layers are given it.

    A boolean mask and a bias stay two conditions, ``causal+bias:FILE``: nothing as large as both
    together is made. Terms that no mask can hold together are added up to a tensor.
    """
    batch, heads, q_len, _ = query.shape
    shape = Shape(batch, heads, q_len, key.shape[2])
    whole = known_mask(None, is_causal, shape)
    for term in terms:
        both = _joined(whole, known_mask(term, False, shape))
        if both is None:
            return _sum(terms, is_causal, shape)
        whole = both
    return whole


def in_use(mask: Mask | Tensor, q_len: int, kv_len: int) -> tuple[Mask | Tensor, int]:
    """The mask over the keys that are in use, and how many those are.

    A static cache has free places after the tokens, which no query sees. Without them there is
    less to compute, and often no mask at all, so that variants without masks can serve it.
    """
    if isinstance(mask, Tensor):
        return mask, kv_len
    if mask == CAUSAL_FROM_THE_FRONT and q_len < kv_len:
        return Mask.parse("causal"), q_len
    numbers = mask.parts[0].numbers if mask.kinds == ("padding",) else ()
    if len(numbers) == 1 and numbers[0] > 0:
        return Mask(), numbers[0]
    return mask, kv_len


def with_a_window(mask: Mask, kv_len: int) -> Mask:
    """The same mask, with a window as wide as all keys where it has none."""
    if "window" in mask.kinds:
        return mask
    return Mask((*mask.parts, Part("window", (kv_len, kv_len))), mask.upper_left)


def _joined(one: Mask, other: Mask) -> Mask | None:
    """Both conditions; None where a mask can't hold them together."""
    kinds = [part.kind for mask in (one, other) for part in mask.parts]
    if len(set(kinds)) < len(kinds):
        return None
    corners = {m.upper_left for m in (one, other) if {p.kind for p in m.parts} - ANY_CORNER}
    return None if len(corners) > 1 else Mask(one.parts + other.parts, corners == {True})


def _sum(terms: tuple[Tensor, ...], is_causal: bool, shape: Shape) -> Tensor:
    """The terms as one tensor to add, without gradients."""
    dtype = next((term.dtype for term in terms if term.dtype != torch.bool), torch.float32)
    total = torch.zeros(shape.q_len, shape.kv_len, dtype=dtype, device=terms[0].device)
    if is_causal:
        total = total.masked_fill_(torch.ones_like(total, dtype=torch.bool).triu(1), -torch.inf)
    for term in terms:
        if term.dtype == torch.bool:
            term = torch.zeros_like(term, dtype=dtype).masked_fill_(~term, -torch.inf)
        total = total + term.detach()
    return total


HONOURED = {"scaling", "is_causal", "position_bias", "dropout", "sliding_window"}
MEANINGLESS = {
    "cache_position", "deterministic", "labels", "layer_idx", "logits_to_keep",
    "num_items_in_batch", "output_hidden_states", "output_router_logits", "past_key_value",
    "past_key_values", "position_embeddings", "position_ids", "return_dict", "return_legacy_cache",
    "training", "use_cache",
    # what generate() of a model that reads sounds hands on to its forward pass
    "do_sample", "max_new_tokens", "min_new_tokens", "num_beams", "output_logits", "output_scores",
    "return_dict_in_generate",
}  # fmt: skip
"""Arguments for the model around: its cache, its loss, positions that are in q and k already."""
PACKED = {
    "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k", "seq_idx",
}  # fmt: skip
"""Where packed sequences begin; a mask, if there is one, holds that too."""
EAGER = "take attn_implementation='eager' for this model"


def refusal(
    module: nn.Module, key: Tensor, mask: Tensor | None, more: Mapping[str, Any]
) -> str | None:
    """None where all arguments are served, else a sentence: the word, and what to do."""
    if mask is not None and not isinstance(mask, Tensor):
        return f"the mask is a {type(mask).__name__}, not a tensor; give the model a 2D or 4D one"
    window = more.get("sliding_window")
    if mask is None and isinstance(window, int) and key.shape[2] > window:
        return (
            f"sliding_window={window} over {key.shape[2]} keys came without a mask that says so, "
            f"and no variant knows of windows otherwise; {EAGER}"
        )
    for word, value in more.items():
        if value is None or word in HONOURED | MEANINGLESS:
            continue
        if word == "output_attentions":
            if value:
                return f"output_attentions=True, and no variant hands out its weights; {EAGER}"
        elif word not in PACKED:
            return f"{word} is asked for, which no variant does; {EAGER}"
        elif mask is None and _has_several(word, value):
            return (
                f"{word} says that sequences are packed, and no mask keeps them apart; pass "
                "position_ids that begin anew with each of them, or an attention mask"
            )
    return None


def _has_several(word: str, value: Any) -> bool:
    """Whether there is more than one sequence."""
    if word == "seq_idx":
        return bool((value != value.flatten()[0]).any())
    return isinstance(value, Tensor) and value.numel() > 2


OTHERS = (
    "'attnbench list' shows what each variant takes; attn_implementation='attnbench:sdpa' takes "
    "whatever transformers' own sdpa does"
)


def forward_by(row: Variant) -> Callable[..., tuple[Tensor, None]]:
    """The function that transformers calls in each layer's forward."""

    @cache
    def built() -> Built:
        return Built(row)

    @torch.compiler.disable  # which mask it is follows from values, and no compiler sees those
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        for one in _under_way.passes:
            one.called = True
        number = getattr(module, "layer_idx", None)
        layer = type(module).__name__ + ("" if number is None else f" of layer {number}")
        try:
            if (refused := refusal(module, key, attention_mask, more)) is not None:
                raise CantBeDone(f"{row.label}: {refused}")
            return _attend(built(), module, (query, key, value), attention_mask, more), None
        except NotServed as why:
            raise NotServed(f"{layer}: {why}; {OTHERS}") from None
        except CantBeDone as why:
            raise NotServed(f"{layer}: {why}") from None

    return forward


def _attend(
    variant: Built,
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    more: dict[str, Any],
) -> Tensor:
    """The output [b, n, h, e].

    Layers with ``scaling=1`` have scaled q before (OPT, Whisper, ESM) or have that scale in their
    weights (T5): an operator of its own is given q as it was without.
    """
    query, key, value = qkv
    is_causal = mask is None and query.shape[2] > 1 and bool(more.get("is_causal"))
    if isinstance(mask, EagerMask):
        mask, is_causal = mask.for_sdpa()
    terms = tuple(x for x in (mask, more.get("position_bias")) if x is not None)
    whole = joined_mask(terms, is_causal, query, key)
    whole, used = in_use(whole, query.shape[2], key.shape[2])
    if isinstance(whole, Mask) and _needs_window(variant.row, module, query):
        whole = with_a_window(whole, used)
    scale = more.get("scaling")
    dropout = (more.get("dropout") or 0.0) if module.training else 0.0
    if dropout and any(term.requires_grad for term in terms):
        raise CantBeDone(f"{variant.row.label}: {NO_BIAS_GRADIENT}")
    if scale == 1.0 and variant.row.computes == OWN:
        query, scale = query * query.shape[-1] ** 0.5, None
    keys, values = key[:, :, :used], value[:, :, :used]
    out = variant(query, keys, values, whole, scale, dropout_p=dropout)
    out = with_bias_gradient(out, query, key, value, terms, scale, is_causal)
    return out.transpose(1, 2).contiguous()


def _needs_window(row: Variant, module: nn.Module, query: Tensor) -> bool:
    """Whether a row that takes nothing without a window attends in a model with windows.

    Such a model has layers without one too, or texts no longer than it.
    """
    masks = row.on(query.device.type, "masks")
    config = getattr(module, "config", None)
    has_windows = getattr(config, "sliding_window", None) is not None
    return has_windows and "window" in masks and "none" not in masks


# ---- names -------------------------------------------------------------------------------------


def register(name: str, tables: Sequence[str | Path] = ()) -> str:
    """Register ``name`` or ``name?option=value&…``, and return what to write for it.

    ``tables``: files with rows of your own, as ``--table`` takes them.
    """
    row = impls.table(tables).find(name)
    if (wrong := wrong_level(row)) is not None:
        raise NotServed(wrong)
    return register_row(row)


def names() -> list[str]:
    """The names of ours that ``attn_implementation`` may be set to."""
    return sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if name.startswith(PREFIX))


def register_row(row: Variant) -> str:
    """Register a row with its mask function, without which every mask would be dropped silently."""
    name = spelled(row.label)
    AttentionMaskInterface.register(name, mask_as_eager)
    AttentionInterface.register(name, forward_by(row))
    return name


PreTrainedModel.get_correct_attn_implementation = implementation  # type: ignore[assignment,method-assign]
for _row in impls.table().rows.values():  # what can't run here says so when it is called
    if wrong_level(_row) is None:
        register_row(_row)
