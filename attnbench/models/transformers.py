"""Every core variant in a transformers model, as ``attn_implementation="attnbench:NAME"``.

    import attnbench.models.transformers
    model.set_attn_implementation("attnbench:chunked")

Importing this registers the variants of the table, with their masks; :func:`register` adds one
with options or from a file of rows. A name that holds ``flash`` is spelled with ``FLASH``
(``attnbench:sdpa.FLASH``), because transformers takes every name with ``flash`` in it for one of
its own and goes to look for a kernel. What a variant doesn't serve (a mask, a gradient, a machine)
is refused at the call, by a sentence that names the variant and the layer.

A model whose code has an attention of its own (Bloom, MPT, XGLM), or takes it from a table of
classes (Falcon, GPT-J), is loaded with eager, and a :class:`NotCalledWarning` says so; once it is
there, transformers refuses to set another.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import impls
from attnbench.answer.paste import OWN, PREFIX, spelled
from attnbench.models import frames_out, wants_weights, wrong_level
from attnbench.models.attention import (
    NO_BIAS_GRADIENT,
    Built,
    NotServed,
    fill_empty_rows,
    with_bias_gradient,
)
from attnbench.models.mask_of import known_mask
from impls.errors import CantBeDone
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
    """A variant was asked for a model whose layers would not call it."""


_transformers_own = PreTrainedModel.get_correct_attn_implementation


def implementation(
    model: Any, requested_attention: str | None, is_init_check: bool = False
) -> str | None:
    """In place of PreTrainedModel's: the name, or eager where the model's layers call no other."""
    name = requested_attention
    if name is None or not name.startswith(PREFIX) or name not in ALL_ATTENTION_FUNCTIONS:
        own: str | None = _transformers_own(model, requested_attention, is_init_check)
        return own
    # a table of classes, which is only asked when a model is made
    table = is_init_check and "_CLASSES[" in inspect.getsource(sys.modules[model.__module__])
    if model._can_set_attn_implementation() and not table:
        return name
    warnings.warn(
        f"{type(model).__name__} computes attention by code of its own, and can't call {name}: it "
        "is loaded with attn_implementation='eager'",
        NotCalledWarning,
        frames_out(BETWEEN),
    )
    return "eager"


# ---- masks -------------------------------------------------------------------------------------


class EagerMask(Tensor):
    """A float mask [batch, 1, q_len, kv_len] whose numbers are written on first use.

    Its shape and its kind are read off it as they are; whatever needs numbers reaches
    ``__torch_dispatch__``.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    visible: Tensor | None
    """Booleans, true where a query may see a key; None where it is causal from the first key on."""
    dense: Tensor | None  # the numbers, once written

    @staticmethod
    def __new__(
        cls,
        visible: Tensor | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> EagerMask:
        """A mask of that shape, as transformers' eager attention would be given it."""
        mask: EagerMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.visible, mask.dense = visible, None
        return mask

    def for_sdpa(self) -> tuple[Tensor | None, bool]:
        """The mask as it is now, with what may be written into it, and whether it is causal."""
        if self.dense is not None:
            return self.dense, False
        return self.visible, self.visible is None and self.shape[2] > 1

    def numbers(self) -> Tensor:
        """The mask as eager attention has it: the same tensor each time."""
        if self.dense is None:
            visible = self.visible
            if visible is None:
                visible = torch.ones(self.shape, dtype=torch.bool, device=self.device)
                visible = visible.tril() if self.shape[2] > 1 else visible
            zero = torch.zeros((), dtype=self.dtype, device=self.device)
            self.dense = torch.where(visible, zero, torch.finfo(self.dtype).min)
        return self.dense

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.numbers, (args, kwargs or {}))
        return func(*args, **kwargs)


def mask_as_eager(**arguments: Any) -> Tensor | None:
    """A mask, by the arguments of ``sdpa_mask``; None where every query sees every key."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return eager_mask(**arguments)
    # for one query, sdpa_mask may skip the free places of a static cache too, where no 2D mask
    # names them
    keys_before = arguments.get("q_offset", 0) - arguments.get("kv_offset", 0)
    whole = arguments["q_length"] != 1 or bool(keys_before == arguments["kv_length"] - 1)
    two_sided = bool(arguments.get("allow_is_bidirectional_skip"))
    skip = not two_sided and bool(arguments.get("allow_is_causal_skip", True)) and whole
    visible = sdpa_mask(**{**arguments, "allow_is_causal_skip": skip})
    if visible is None and two_sided:
        return None
    if visible is not None:
        known_mask.is_private(visible)
    shape = (arguments["batch_size"], 1, arguments["q_length"], arguments["kv_length"])
    dtype, device = (
        arguments.get("dtype", torch.float32),
        torch.device(arguments.get("device", "cpu")),
    )
    return EagerMask(visible, shape, dtype, device)


ANY_CORNER = {"dense", "bias", "padding", "leftpad", "document"}
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
    if not terms:
        return known_mask(None, is_causal, shape)
    some = [known_mask(None, is_causal, shape), *(known_mask(x, False, shape) for x in terms)]
    parts = tuple(part for mask in some for part in mask.parts)
    corners = {m.upper_left for m in some if {p.kind for p in m.parts} - ANY_CORNER}
    if len({part.kind for part in parts}) == len(parts) and len(corners) < 2:
        return Mask(parts, corners == {True})
    dtype = next((term.dtype for term in terms if term.dtype != torch.bool), torch.float32)
    total = torch.zeros(q_len, shape.kv_len, dtype=dtype, device=terms[0].device)
    if is_causal:
        total = total.masked_fill_(torch.ones_like(total, dtype=torch.bool).triu(1), -torch.inf)
    for term in terms:
        if term.dtype == torch.bool:
            term = torch.zeros_like(term, dtype=dtype).masked_fill_(~term, -torch.inf)
        total = total + term.detach()
    return total


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
    return (Mask(), numbers[0]) if len(numbers) == 1 and numbers[0] > 0 else (mask, kv_len)


HONOURED = {
    "scaling",
    "is_causal",
    "position_bias",
    "dropout",
    "sliding_window",
    "softcap",
    "s_aux",
    "indices",
}
OF_THE_MODEL = """
cache_position deterministic labels layer_idx logits_to_keep num_items_in_batch output_attentions
output_hidden_states output_router_logits past_key_value past_key_values position_embeddings
position_ids return_dict return_legacy_cache training use_cache
"""
OF_IMAGES = """
generation_mode image_position_ids mm_token_type_ids pixel_values vision_feature_layer
vision_feature_select_strategy
"""
"""Images, and which of their layers are taken, which some models hand on to every layer."""
OF_GENERATION = """
do_sample max_new_tokens min_new_tokens num_beams output_logits output_scores
return_dict_in_generate
"""
"""Words that generate() of a model that reads sounds hands on to its forward pass."""
MEANINGLESS = frozenset((OF_THE_MODEL + OF_IMAGES + OF_GENERATION).split())
"""Arguments for the model around: its cache, its loss, positions that are in q and k already."""
PACKED_NAMES = "cu_seq_lens_q cu_seq_lens_k cu_seqlens max_length_q max_length_k seq_idx"
PACKED = frozenset(PACKED_NAMES.split())
"""Arguments that say where packed sequences begin, as a mask, if there is one, does too."""
EAGER = "take attn_implementation='eager' for this model"


def refusal(module: nn.Module, key: Tensor, mask: Any, more: Mapping[str, Any]) -> str | None:
    """None where all arguments are served, else a sentence: the word, and what to do."""
    if mask is not None and not isinstance(mask, Tensor):
        return f"the mask is a {type(mask).__name__}, not a tensor; give the model a 2D or 4D one"
    window = more.get("sliding_window")
    if mask is None and isinstance(window, int) and key.shape[2] > window:
        return (
            f"sliding_window={window} over {key.shape[2]} keys came without a mask that says so, "
            f"and no variant knows of windows otherwise; {EAGER}"
        )
    picked = more.get("indices")
    if picked is not None and not (isinstance(picked, Tensor) and picked.dim() == 3):
        return (
            f"indices are not [batch, q_len, picked keys], and what they mean is not known; {EAGER}"
        )
    if wants_weights(module, more.get("output_attentions")):
        return f"output_attentions=True, and no variant hands out its weights; {EAGER}"
    for word, value in more.items():
        if value is None or word in HONOURED | MEANINGLESS:
            continue
        if word not in PACKED:
            return f"{word} is asked for, which no variant does; {EAGER}"
        elif mask is None and (
            bool((value != value.flatten()[0]).any())
            if word == "seq_idx"
            else isinstance(value, Tensor) and value.numel() > 2
        ):
            return (
                f"{word} says that sequences are packed, and no mask keeps them apart; pass "
                "position_ids that begin anew with each of them, or an attention mask"
            )
    return None


def picked_keys(indices: Tensor | None, kv_len: int) -> Tensor | None:
    """True at the keys that each query picked, of their places [batch, q_len, picked]."""
    if indices is None:
        return None
    none = indices.new_zeros((*indices.shape[:2], kv_len), dtype=torch.bool)
    return none.scatter(-1, indices.long(), True)[:, None]


OTHERS = (
    "'attnbench list' shows what each variant takes; attn_implementation='attnbench:sdpa' takes "
    "whatever transformers' own sdpa does"
)


def forward_by(row: Variant, own: Built | None = None) -> Callable[..., tuple[Tensor, None]]:
    """The function that transformers calls in each layer's forward; ``own``: instead of the row."""

    @cache
    def built() -> Built:
        return own or Built(row)

    @torch.compiler.disable(
        reason="attnbench finds out which mask it is by its values, outside of a graph: compile "
        "without fullgraph=True"
    )
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        try:
            return _attend(built(), module, (query, key, value), attention_mask, more), None
        except CantBeDone as why:
            number = getattr(module, "layer_idx", None)
            layer = type(module).__name__ + ("" if number is None else f" of layer {number}")
            others = f"; {OTHERS}" if isinstance(why, NotServed) else ""
            raise NotServed(f"{layer}: {why}{others}") from None

    return forward


def _attend(
    variant: Built, module: nn.Module, qkv: Sequence[Tensor], mask: Any, more: dict[str, Any]
) -> Tensor:
    if (refused := refusal(module, qkv[1], mask, more)) is not None:
        raise CantBeDone(f"{variant.row.label}: {refused}")
    query, key, value = qkv
    if query.shape[0] == 1 < key.shape[0]:  # the learned queries of a Q-Former
        query = query.expand(key.shape[0], -1, -1, -1)
    is_causal = mask is None and query.shape[2] > 1 and bool(more.get("is_causal"))
    if by_eager := isinstance(mask, EagerMask):
        mask, is_causal = mask.for_sdpa()
    picked = picked_keys(more.get("indices"), key.shape[2])
    terms = tuple(x for x in (mask, more.get("position_bias"), picked) if x is not None)
    whole = joined_mask(terms, is_causal, query, key)
    whole, used = in_use(whole, query.shape[2], key.shape[2])
    masks = variant.row.on(query.device.type, "masks")
    needs = "window" in masks and "none" not in masks
    if (
        needs
        and isinstance(whole, Mask)
        and "window" not in whole.kinds
        and getattr(getattr(module, "config", None), "sliding_window", None) is not None
    ):
        # a row that takes nothing without a window, in a model with windows: that has layers
        # without one too, or texts no longer than it
        whole = Mask((*whole.parts, Part("window", (used, used))), whole.upper_left)
    scale = more.get("scaling")
    dropout = (more.get("dropout") or 0.0) if module.training else 0.0
    sinks, softcap = more.get("s_aux"), more.get("softcap")
    limits = bool(dropout) or sinks is not None or softcap is not None
    if limits and any(term.requires_grad for term in terms):
        raise CantBeDone(f"{variant.row.label}: {NO_BIAS_GRADIENT}")
    if scale == 1.0 and variant.row.computes == OWN:
        # a layer that scaled q before (OPT, Whisper, ESM), or has that scale in its weights (T5):
        # an operator of its own is given q as it was without
        query, scale = query * query.shape[-1] ** 0.5, None
    keys, values = key[:, :, :used], value[:, :, :used]
    inputs = {} if sinks is None else {"sinks": sinks}
    out = variant(query, keys, values, whole, scale, dropout_p=dropout, softcap=softcap, **inputs)
    if not limits:
        out = with_bias_gradient(out, query, key, value, terms, scale, is_causal)
    if sinks is not None:  # a row that sees no key gives all to its sink
        return out.transpose(1, 2).contiguous()
    # such places are padding, and yet some models read what attention makes of them
    out = fill_empty_rows(out, value, mask, by_eager)
    return out.transpose(1, 2).contiguous()


def register(name: str, tables: Sequence[str | Path] = ()) -> str:
    """Register ``name`` or ``name?option=value&…``, and return what to write for it; raises
    CantBeDone for no variant, and for one that is a layer.
    """
    row = impls.table(tables).find(name)
    if (wrong := wrong_level(row)) is not None:
        raise NotServed(wrong)
    return register_row(row)


def names() -> list[str]:
    """The names of ours that ``attn_implementation`` may be set to."""
    return sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if name.startswith(PREFIX))


def register_row(row: Variant, own: Built | None = None) -> str:
    """Register a row with its mask function, without which every mask would be dropped silently;
    returns its name.
    """
    name = spelled(row.label)
    AttentionMaskInterface.register(name, mask_as_eager)
    AttentionInterface.register(name, forward_by(row, own))
    return name


PreTrainedModel.get_correct_attn_implementation = implementation
for _row in impls.table().rows.values():  # what can't run here says so when it is called
    if wrong_level(_row) is None:
        register_row(_row)
