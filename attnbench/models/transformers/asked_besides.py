"""What a layer says beside q, k, v and the mask: what is honoured, what means nothing, what isn't.

transformers hands every function the same words, and a function that swallows one it doesn't know
computes something else than was asked. So a word is honoured, known to mean nothing to attention,
or refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

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
"""What concerns the model around: its cache, its loss, positions that are in q and k already."""
PACKED = {
    "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k", "seq_idx",
}  # fmt: skip
"""Where packed sequences begin; a mask, if there is one, says it too."""
EAGER = "take attn_implementation='eager' for this model"


def refusal(
    module: nn.Module, key: Tensor, mask: Tensor | None, asked: Mapping[str, Any]
) -> str | None:
    """None where all that is asked is served, else a sentence: the word, and what to do."""
    if mask is not None and not isinstance(mask, Tensor):
        return f"the mask is a {type(mask).__name__}, not a tensor; give the model a 2D or 4D one"
    window = asked.get("sliding_window")
    if mask is None and isinstance(window, int) and key.shape[2] > window:
        return (
            f"sliding_window={window} over {key.shape[2]} keys came without a mask that says so, "
            f"and no variant knows of windows otherwise; {EAGER}"
        )
    return _refused_word(mask, asked)


def _refused_word(mask: Tensor | None, asked: Mapping[str, Any]) -> str | None:
    for word, value in asked.items():
        if value is None or word in HONOURED | MEANINGLESS:
            continue
        if word == "output_attentions":
            if value:
                return f"output_attentions=True, and no variant hands out its weights; {EAGER}"
        elif word in PACKED:
            if mask is None and _several(word, value):
                return (
                    f"{word} says that sequences are packed, and no mask keeps them apart; pass "
                    "position_ids that begin anew with each of them, or an attention mask"
                )
        else:
            return f"{word} is asked for, which no variant does; {EAGER}"
    return None


def _several(word: str, value: Any) -> bool:
    """Whether more than one sequence is meant."""
    if word == "seq_idx":
        return bool((value != value.flatten()[0]).any())
    return isinstance(value, torch.Tensor) and value.numel() > 2
