"""Models of transformers made small, their inputs, and their outputs when a variant attends.

A configuration's default values are replaced by small ones of the same kind: widths, numbers of
heads and layers, lengths, token ids. What can't be made this way raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import configuration_auto, modeling_auto

VOCABULARY, TOKENS, SIZE = 97, 10, 32
MOST = 15_000_000
"""Parameters, beyond which a model counts as one that could not be made small."""
KINDS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "",
    "MULTIMODAL_LM", "CTC", "IMAGE_CLASSIFICATION", "PRETRAINING", "MASK_GENERATION",
    "KEYPOINT_MATCHING", "TEXT_TO_WAVEFORM", "OBJECT_DETECTION", "TEXT_RECOGNITION",
    "DEPTH_ESTIMATION", "TIME_SERIES_PREDICTION", "BACKBONE", "UNIVERSAL_SEGMENTATION",
)  # fmt: skip
"""The tasks whose model is taken for a configuration, the first that there is; '' is no task."""

WIDTHS = {
    name: value
    for value, names in {
        32: (
            "hidden_size d_model n_embd dim embed_dim hidden_dim embedding_size emb_dim "
            "word_embed_proj_dim d_embed width image_size conv_dim decoder_hidden_size "
            "encoder_hidden_size embedding_dim output_hidden_size out_hidden_size lru_width"
        ),
        48: (
            "intermediate_size d_ff ffn_dim n_inner mlp_dim ffn_hidden_size encoder_ffn_dim "
            "decoder_ffn_dim decoder_intermediate_size"
        ),
        64: (
            "d_inner max_position_embeddings n_positions max_source_positions n_ctx "
            "max_target_positions max_seq_len"
        ),
        16: (
            "moe_intermediate_size projection_dim num_mel_bins q_lora_rank kv_lora_rank "
            "mamba_d_head context_length expert_ffn_hidden_size shared_expert_intermediate_size "
            "mamba_head_dim expert_intermediate_size"
        ),
        4: (
            "num_attention_heads num_heads n_head n_heads encoder_attention_heads "
            "decoder_attention_heads attention_heads attention_window local_attention "
            "window_size num_experts n_routed_experts num_local_experts mamba_n_heads "
            "prediction_length decoder_num_attention_heads block_size moe_num_experts "
            "linear_num_value_heads mamba_num_heads"
        ),
        2: (
            "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
            "num_decoder_layers num_encoder_layers depth layers type_vocab_size "
            "num_experts_per_tok num_codebooks decoder_num_hidden_layers linear_num_key_heads"
        ),
        8: (
            "head_dim d_kv attention_head_size d_head qk_rope_head_dim qk_nope_head_dim "
            "v_head_dim mamba_d_state state_size rotary_dim hidden_size_per_layer_input "
            "chunk_size linear_key_head_dim linear_value_head_dim ssm_state_size"
        ),
        97: "vocab_size vocab_size_per_layer_input",
        5: "sliding_window",
        1: (
            "n_group topk_group first_k_dense_replace num_global_layers max_window_layers "
            "moe_layer_start_index num_hidden_groups n_shared_experts n_groups mamba_n_groups"
        ),
        3: "num_labels index_topk",
        6: "num_queries num_query_tokens",
    }.items()
    for name in names.split()
}
"""Values by the field's name."""
LAYERS = 2
KEEP = object()
INHERITED = {
    "num_labels",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
}
SPECIAL_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
KV_HEADS = {"num_key_value_heads", "num_kv_heads", "n_head_kv", "decoder_num_key_value_heads"}
BY_PART: tuple[tuple[str, Callable[[int], int]], ...] = (
    ("kernel", lambda x: x), ("vocab", lambda x: VOCABULARY), ("layers", lambda x: min(x, LAYERS)),
    ("_depth", lambda x: min(x, LAYERS)), ("heads", lambda x: min(x, 4)),
    ("temporal_patch", lambda x: x), ("patch_size", lambda x: min(x, 8)),
    ("image_size", lambda x: SIZE), ("mel", lambda x: min(x, 16)),
    ("position", lambda x: min(x, 64)), ("hidden", lambda x: min(x, 32)),
    ("embed", lambda x: min(x, 32)), ("_dim", lambda x: min(x, 32)),
    ("_size", lambda x: min(x, 32)), ("_channels", lambda x: min(x, 32)),
    ("_features", lambda x: min(x, 32)),
)  # fmt: skip
LISTS: tuple[tuple[str, Callable[[list[int]], list[int]]], ...] = (
    ("depths", lambda x: [min(n, 1) for n in x]), ("heads", lambda x: [min(n, 2) for n in x]),
    ("image_size", lambda x: [SIZE] * len(x)), ("hidden_sizes", _widths := lambda x: [
        max(4, min(n, 64) // 4 * 4) if n > 16 else n for n in x]),
    ("dim", _widths), ("channels", _widths),
)  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "recurrent_gemma": {"num_hidden_layers": 3}, "deepseek_v2": {"num_experts_per_tok": 2},
    "time_series_transformer": {"prediction_length": 4}, "autoformer": {"prediction_length": 4},
    "informer": {"prediction_length": 4}, "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]}, "zamba": {"num_hidden_layers": 3},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    **{name: {"depths": [1, 1], "num_heads": [2, 2]} for name in ("swin", "donut-swin", "swinv2")},
    "zaya": {"num_experts_per_tok": 1},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "bit": {"num_groups": 4}, "ernie4_5_moe": {"moe_k": 2}, "xmod": {"default_language": "en_XX"},
    "bridgetower": {"text_config": {"num_attention_heads": 4}},
    "vits": {"upsample_initial_channel": 32},
}  # fmt: skip
"""Values for one type, where a rule doesn't give them."""
IDS = ("_token_id", "_token_index", "_token_idx", "_id")


Question = dict[str, Any]
"""What a model is given."""


def classes() -> Iterator[tuple[str, list[str]]]:
    """Each model type of transformers that has models, and the classes that may stand for it."""
    mappings = [
        modeling_auto.MODEL_MAPPING_NAMES
        if not kind
        else getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
        for kind in KINDS
    ]
    for model_type in configuration_auto.CONFIG_MAPPING_NAMES:
        found = [mapping[model_type] for mapping in mappings if model_type in mapping]
        names = [name if isinstance(name, str) else name[0] for name in found]
        if names:
            yield model_type, list(dict.fromkeys(names))[:3]


def small_config(model_type: str) -> Any:
    """The configuration of that type with small values; raises what transformers raises."""
    kind = configuration_auto.CONFIG_MAPPING[model_type]
    return _shrunk(kind(), SPECIAL.get(model_type, {}))


def _shrunk(config: Any, special: Mapping[str, Any]) -> Any:
    """A configuration of the same class whose fields are small."""
    kind = type(config)
    parts = {
        name: _shrunk(part, special.get(name, {}))
        for name in getattr(config, "sub_configs", {})
        if isinstance(part := getattr(config, name, None), transformers.PreTrainedConfig)
    }
    known = {*inspect.signature(kind.__init__).parameters, *INHERITED}
    for base in kind.__mro__:
        known |= set(vars(base).get("__annotations__", {}))
    before = config.to_dict()
    if before.get("rope_parameters") and "mrope_section" in _code_beside(kind):
        before["rope_parameters"] = {"mrope_section": [], **before["rope_parameters"]}
    fields = {k: v for k, v in before.items() if k not in parts and k in known}
    ids = iter(range(3, VOCABULARY))
    values = {
        name: changed
        for name, value in fields.items()
        if (changed := _small(name, value, fields, ids)) is not KEEP
    }
    if isinstance(kinds := fields.get("layer_types"), list):
        values["layer_types"] = (list(dict.fromkeys(kinds)) + [kinds[-1]] * LAYERS)[:LAYERS]
    values |= {k: v for k, v in special.items() if k not in parts}
    return kind(**{k: v.to_dict() for k, v in parts.items()}, **values)


def _code_beside(kind: type[Any]) -> str:
    """The code of the models that a class of configurations is for."""
    file = Path(inspect.getfile(kind))
    beside = file.with_name(file.name.replace("configuration_", "modeling_"))
    return beside.read_text() if beside.exists() else ""


def _small(name: str, value: Any, fields: Mapping[str, Any], ids: Iterator[int]) -> Any:
    """A small value in place of one; ``KEEP`` where it stays."""
    if isinstance(value, bool):
        return KEEP
    if name.endswith(IDS):
        if value is None and name not in SPECIAL_IDS:
            return KEEP
        return SPECIAL_IDS[name] if name in SPECIAL_IDS else next(ids)
    if "drop" in name and isinstance(value, float | int):
        return type(value)(0)
    if value is None:
        return {"vocab_size": VOCABULARY, "head_dim": 8}.get(name, KEEP)
    if isinstance(value, dict):
        return _small_rope(value, fields.get("partial_rotary_factor"))
    if name in KV_HEADS:
        heads = fields.get("num_attention_heads", fields.get("num_heads"))
        return 4 if value == heads else min(value, 2)
    if name in WIDTHS and isinstance(value, int):
        return WIDTHS[name]
    return _by_kind(name, value)


def _small_rope(value: dict[str, Any], part: float | None) -> dict[str, Any]:
    """Rotary sections that fit a head of eight channels."""
    part = value.get("partial_rotary_factor") or part
    found = {k: _small_rope(v, part) if isinstance(v, dict) else v for k, v in value.items()}
    if "mrope_section" in value:
        half = max(int(8 * (part or 1.0)) // 2, 1)
        found["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return found


def _by_kind(name: str, value: Any) -> Any:
    """By what the name holds, and else as it is."""
    if isinstance(value, int):
        return next((small(value) for part, small in BY_PART if part in name), KEEP)
    whole = isinstance(value, list | tuple) and value and all(type(x) is int for x in value)
    if whole:
        return next((small(value) for part, small in LISTS if part in name), KEEP)
    return KEEP


def small_model(cls: type[Any], config: Any, implementation: str) -> nn.Module:
    """The model with weights wide enough for attention to tell tokens apart, the same each time."""
    with torch.device("meta"):
        size = sum(
            p.numel()
            for p in cls._from_config(_copy(config), attn_implementation="eager").parameters()
        )
    if size > MOST:
        raise ValueError(f"{size:,} parameters are left of the default configuration")
    torch.manual_seed(0)
    model: nn.Module = cls._from_config(_copy(config), attn_implementation=implementation).eval()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1 and weights.is_floating_point():
                weights.normal_(
                    0.0, 1.5 / (1 + weights.numel() / max(1, len(weights))) ** 0.5, generator=source
                )
    return model


def _copy(config: Any) -> Any:
    return type(config).from_dict(config.to_dict())


FORMS = ("", "videos", "long", "grid")
"""How images, sounds and patches may be laid out, the usual way first."""


def question(model: nn.Module, pad: str = "none", form: str = "") -> Question:
    """Two sequences, and images or sounds, of whatever the model's forward pass has a word for."""
    words = inspect.signature(model.forward).parameters
    source = torch.Generator().manual_seed(2)
    needed = {
        n for n, p in words.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    }
    needed.add(getattr(model, "main_input_name", "input_ids"))
    real = torch.ones(2, TOKENS, dtype=torch.long)
    if pad != "none":
        real[0, slice(0, 4) if pad == "left" else slice(-4, None)] = 0
    most = min(VOCABULARY, _field(model.config, "vocab_size", VOCABULARY))
    ids = torch.randint(60, most, (2, TOKENS), generator=source)
    arguments: dict[str, Any] = {}
    if "input_ids" in words:
        arguments["input_ids"] = ids * real
        if pad != "none" and "attention_mask" in words:
            arguments["attention_mask"] = real
        if "bbox" in words:
            arguments["bbox"] = torch.tensor([1, 2, 5, 7]).expand(2, TOKENS, 4).clone()
    if "decoder_input_ids" in words:
        arguments["decoder_input_ids"] = torch.randint(60, most, (2, 7), generator=source)
    if not ("input_ids" in words and model.can_generate()):
        needed |= {"pixel_values"} & set(words)
    needed |= {"future_values", "future_time_features"} & set(words)
    for name in sorted(needed & set(words) - set(arguments)):
        if (value := _input(name, model.config, form, source)) is not None:
            arguments[name] = value
    return arguments


def _input(name: str, config: Any, form: str, source: torch.Generator) -> Tensor | None:
    """What is given under a name that isn't text; None where nothing is known of it."""
    channels = _field(config, "num_channels", _field(config, "in_channels", 3))
    images = (2, channels, SIZE, SIZE)
    frames = _field(config, "num_frames", 2)
    past = _field(config, "context_length", 32) + max(getattr(config, "lags_sequence", None) or [0])
    many = (_field(config, "num_input_channels", 1),) * hasattr(config, "num_input_channels")
    shapes = {
        "pixel_values": (2, frames, *images[1:]) if form == "videos" else images,
        "pixel_values_videos": (2, frames, *images[1:]),
        "input_values": (2, 1600),
        "input_features": _sound(config, form),
        "past_values": (2, past, *many),
        "future_values": (2, 4),
        "past_time_features": (2, past, 0),
        "future_time_features": (2, 4, 0),
        "query_embeds": (2, 6, _field(config, "hidden_size", 32)),
        "hidden_states": _patches(config),
    }
    if name in shapes:
        return torch.randn(shapes[name], generator=source)
    if name == "past_observed_mask":
        return torch.ones(2, past)
    if name in ("input_features_mask", "attention_mask"):
        return torch.ones(2, _sound(config, form)[-1 if form != "long" else 1], dtype=torch.long)
    return torch.tensor([[1, 4, 4], [1, 4, 4]]) if name == "grid_thw" else None


def _sound(config: Any, form: str) -> tuple[int, int, int]:
    width = _field(config, "num_mel_bins", _field(config, "feature_size", 16))
    return (2, 128, width) if form == "long" else (2, width, 128)


def _patches(config: Any) -> tuple[int, int]:
    side, deep = _field(config, "patch_size", 8), _field(config, "temporal_patch_size", 1)
    return 32, _field(config, "in_channels", _field(config, "num_channels", 3)) * side**2 * deep


def _field(config: Any, name: str, default: Any) -> Any:
    """A number of the configuration, or of the first of its parts that has it."""
    parts = [getattr(config, part, None) for part in getattr(config, "sub_configs", {})]
    for one in (config, *parts):
        if isinstance(found := getattr(one, name, None), int):
            return found
    return default


def outputs(model: nn.Module, question: Question) -> list[Tensor]:
    """All the numbers of a forward pass, without caches."""
    torch.manual_seed(0)
    made = model(**question)
    return list(_numbers(made.to_tuple() if hasattr(made, "to_tuple") else made))


def _numbers(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _numbers(one)
    elif isinstance(found, transformers.utils.ModelOutput):
        yield from _numbers(found.to_tuple())


def forward(model: nn.Module, question: Question) -> list[Tensor]:
    """The numbers of a forward pass, those at padded places too."""
    with torch.no_grad():
        return outputs(model, question)


def gradients(model: nn.Module, question: Question) -> list[Tensor]:
    """The gradient of every parameter, for a sum of the outputs with fixed weights."""
    model.zero_grad()
    total = sum(
        (x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum()
        for x in outputs(model, question)
        if x.requires_grad
    )
    if isinstance(total, Tensor):
        total.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def tokens(model: nn.Module, question: Question) -> list[Tensor]:
    """The logits of tokens that are written with a cache."""
    given = {k: v for k, v in question.items() if k != "decoder_input_ids"}
    made = model.generate(
        **given,
        max_new_tokens=4,
        min_new_tokens=4,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return [made.sequences.float(), *made.logits]


CLASSES = dict(classes())


def made(model_type, implementation="eager", **fields):
    """The model of that type; ``fields``: of its configuration."""
    config = small_config(model_type)
    for name, value in fields.items():
        setattr(config, name, value)
    model = getattr(transformers, CLASSES[model_type][0])
    return small_model(model, config, implementation)


def asked(model, pad="none"):
    return question(model, pad)


def by(model, variant, ask, question):
    """What ``ask`` makes of the model when a variant attends."""
    model.set_attn_implementation(variant)
    try:
        return ask(model, question)
    finally:
        model.set_attn_implementation("eager")


def logits(model, question):
    return forward(model, question)[0]


def same(model, variant, question, asks=(forward, tokens)):
    """Asserts that whatever is asked the model answers as it does under eager attention."""
    for ask in asks:
        expected, given = ask(model, question), by(model, variant, ask, question)
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            largest = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * largest)
