"""Models as people use them, made small and random, and what they are asked."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

import attnbench.models.transformers  # noqa: F401 - it registers the names

VOCABULARY, TOKENS = 97, 12
PADS = ("none", "left", "right")
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}


class Small(NamedTuple):
    """A model: its class, its configuration, and whether it writes tokens after those it reads."""

    model: str
    config: str
    settings: Mapping[str, Any]
    reads: str = "tokens"
    writes: bool = True

    def made(self) -> nn.Module:
        """The same weights each time, wide enough for attention to tell tokens apart."""
        config = getattr(transformers, self.config)(**self.settings)
        config._attn_implementation = "eager"
        model = getattr(transformers, self.model)(config).eval()
        source = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weights in model.parameters():
                weights.normal_(0.0, 0.2, generator=source)
        return model

    @property
    def pads(self) -> tuple[str, ...]:
        """What it can be given: sounds are all of one size."""
        return PADS if self.reads in ("tokens", "both") else PADS[:1]


ZOO = {
    "llama": Small("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": Small("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 5}),
    "gemma3": Small(
        "Gemma3ForCausalLM", "Gemma3TextConfig",
        {**GROUPED, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 20,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": Small(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2},
    ),
    "bert": Small(
        "BertForMaskedLM", "BertConfig",
        {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, writes=False,
    ),
    "t5": Small(
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
         "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
         "dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
        reads="both",
    ),
    "whisper": Small(
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
         "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 16,
         "max_target_positions": 40, "dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
         "suppress_tokens": None, "begin_suppress_tokens": None},
        reads="sound",
    ),
}  # fmt: skip


class Asked(NamedTuple):
    """What a model is given, the labels it learns from, and the places of its logits that count."""

    given: dict[str, Tensor]
    labels: Tensor
    counts: Tensor


def asked(small: Small, pad: str = "none") -> Asked:
    """Three sequences of unlike lengths where they are padded; padded places count for nothing.

    What follows a padding to the left is no label: it would be foretold from a padded place.
    """
    source = torch.Generator().manual_seed(2)
    ids = torch.randint(3, VOCABULARY, (3, TOKENS), generator=source)
    real = torch.ones_like(ids)
    for row, lost in enumerate((5, 1, 0) if pad != "none" else ()):
        real[row, slice(0, lost) if pad == "left" else slice(TOKENS - lost, None)] = 0
    ids, counts = ids * real, real.bool()
    labels = ids.masked_fill(
        ~(counts & counts.roll(1, 1).index_fill(1, torch.tensor(0), False)), -100
    )
    if small.reads == "tokens":
        padding = {} if pad == "none" else {"attention_mask": real}
        labels = labels if small.writes else ids.masked_fill(~counts, -100)
        return Asked({"input_ids": ids, **padding}, labels, counts)
    answer = torch.randint(3, VOCABULARY, (3, 7), generator=source)
    whole = torch.ones(3, 7).bool()
    if small.reads == "sound":
        sound = torch.randn(3, 8, 32, generator=source)
        return Asked({"input_features": sound, "decoder_input_ids": answer}, answer, whole)
    padding = {} if pad == "none" else {"attention_mask": real}
    return Asked({"input_ids": ids, "decoder_input_ids": answer, **padding}, answer, whole)


def logits(model: nn.Module, question: Asked) -> Tensor:
    """Those that count."""
    with torch.no_grad():
        return model(**question.given).logits[question.counts]


def written(model: nn.Module, question: Asked, **more: Any) -> tuple[Tensor, Tensor]:
    """The tokens that the model writes after what it reads, with a cache; each one's logits."""
    given = {k: v for k, v in question.given.items() if k != "decoder_input_ids"}
    if "input_ids" in given:
        given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    more |= {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    made = model.generate(**given, output_logits=True, return_dict_in_generate=True, **more)
    return made.sequences, torch.stack(made.logits)


def learned(model: nn.Module, question: Asked) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and the gradient of every parameter by its name."""
    model.train()
    model.zero_grad()
    loss = model(**question.given, labels=question.labels).loss
    loss.backward()
    model.eval()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads


def by(model: nn.Module, variant: str, ask: Callable[..., Any], *args: Any) -> Any:
    """What ``ask`` makes of the model when a variant attends."""
    model.set_attn_implementation(variant)
    try:
        return ask(model, *args)
    finally:
        model.set_attn_implementation("eager")
