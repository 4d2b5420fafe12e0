"""Published models: their geometry against transformers' own layers, shares of ranks, a CPU's."""

import math
from functools import partial
from importlib import import_module

import pytest

import impls
from attnbench.core.record import Status
from attnbench.sweep.models import find_model, grid_asked, model_grid, models
from attnbench.sweep.plan import make_plan, problems
from impls.errors import CantBeDone
from impls.masks import Mask, Shape
from impls.operators import OPERATORS
from impls.problem import InvalidProblem
from tests.machines import BOX, WITH_GPU

KIMI = {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]}
KIMI["kda_layers"] = [n for n in range(1, 28) if n not in KIMI["full_attn_layers"]]
YARN = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
YARN |= {"original_max_position_embeddings": 4096, "rope_theta": 10000.0}
GROUPED = {"num_attention_heads": 32, "num_key_value_heads": 8}
GEMMA = {"num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8}
NEMOTRON = {"hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"}
SIZED = {
    "llama-3.1-8b": ("llama", "LlamaConfig", {**GROUPED, "hidden_size": 4096}),
    "qwen3-8b": ("qwen3", "Qwen3Config", {**GROUPED, "num_hidden_layers": 36}),
    "gemma-2-9b": ("gemma2", "Gemma2Config", {**GEMMA, "hidden_size": 3584}),
    "gpt-oss-20b": ("gpt_oss", "GptOssConfig", {"num_hidden_layers": 24}),
    "gpt-oss-120b": ("gpt_oss", "GptOssConfig", {}),
    "llama-4-scout": ("llama4", "Llama4TextConfig", {}),
    "deepseek-v3": ("deepseek_v3", "DeepseekV3Config", {"rope_parameters": YARN}),
    "qwen3-next-80b-a3b": ("qwen3_next", "Qwen3NextConfig", {}),
    "kimi-linear-48b-a3b": ("kimi_linear", "KimiLinearConfig", {"linear_attn_config": KIMI}),
    "nemotron-h-8b": ("nemotron_h", "NemotronHConfig", NEMOTRON),
    "bert-base": ("bert", "BertConfig", {}),
    "modernbert-base": ("modernbert", "ModernBertConfig", {}),
    "siglip-so400m": ("siglip", "PaliGemmaConfig", {}),
}
"""By model the module of transformers, the class and what differs from its defaults."""
NAMES = {"linear_attention": "linear", "full_attention": "full", "sliding_attention": "sliding"}
NAMES |= {"chunked_attention": "chunked"}
LAYERS = {
    ("deepseek-v3", "full"): "mla",
    ("kimi-linear-48b-a3b", "full"): "mla",
    ("kimi-linear-48b-a3b", "linear"): "kda",
    ("nemotron-h-8b", "linear"): "mamba2",
}
CLASSES = {
    "llama": "LlamaAttention", "qwen3": "Qwen3Attention", "gemma2": "Gemma2Attention",
    "gpt_oss": "GptOssAttention", "llama4": "Llama4TextAttention",
    "deepseek_v3": "DeepseekV3Attention", "qwen3_next": "Qwen3NextAttention",
    "kimi_linear": "KimiLinearAttention", "nemotron_h": "NemotronHAttention",
    "modernbert": "ModernBertAttention", "siglip": "SiglipAttention", "bert": "BertSelfAttention",
}  # fmt: skip
STATES = {
    "qwen3_next": ("Qwen3NextGatedDeltaNet", "num_v_heads num_k_heads head_k_dim head_v_dim"),
    "kimi_linear": ("KimiLinearDeltaAttention", "num_heads num_heads head_dim head_dim"),
    "nemotron_h": ("NemotronHMamba2Mixer", "num_heads num_heads ssm_state_size head_dim"),
}


def layer(name, kind):
    """Transformers' layer of a kind, on no device, its configuration, and how many there are."""
    import torch

    module, config, more = SIZED[name]
    where = "paligemma" if config == "PaliGemmaConfig" else module
    made = getattr(import_module(f"transformers.models.{where}.configuration_{where}"), config)
    config = made(**more)
    config = getattr(config, "vision_config", config)
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    own = [LAYERS.get((name, NAMES.get(each)), NAMES.get(each)) for each in types]
    classes = STATES[module][0] if kind.operator != "softmax" else CLASSES[module]
    made = getattr(import_module(f"transformers.models.{module}.modeling_{module}"), classes)
    with torch.device("meta"):
        if name in ("bert-base", "siglip-so400m"):
            return made(config), config, own.count(kind.name)
        return made(config, layer_idx=own.index(kind.name)), config, own.count(kind.name)


def shown(function, config, kind, rows):
    """The keys that a mask function of transformers shows the last rows of a sequence."""
    import torch

    masks = import_module("transformers.masking_utils")
    made = getattr(masks, function)
    made = {
        "sliding_window_causal_mask_function": lambda: made(config.sliding_window),
        "sliding_window_bidirectional_mask_function": lambda: made(config.sliding_window),
        "chunked_causal_mask_function": lambda: made(
            config.attention_chunk_size, torch.zeros(1, dtype=torch.long)
        ),
    }.get(function, lambda: made)()
    n = 2 * max([64, *(x for part in Mask.parse(kind.mask).parts for x in part.numbers)])
    keys = torch.arange(n)[None]
    last = torch.arange(n - rows, n)[:, None]
    allowed = made(torch.tensor(0), torch.tensor(0), last, keys)
    return torch.as_tensor(allowed).expand(rows, n), Shape(1, 1, rows, n)


CASES = [(name, kind) for name in SIZED for kind in models()[name].kinds]


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{name} {k.name}" for name, k in CASES])
def test_a_kind_of_layer_is_as_transformers_builds_it(name, kind):
    module, config, count = layer(name, kind)
    assert kind.layers == count
    sizes = tuple(kind.sizes("forward").values())
    scale = kind.parameters("forward")["scale"][0]
    if kind.operator != "softmax":
        names = STATES[SIZED[name][0]][1].split()
        assert sizes == tuple(getattr(module, each) for each in names)
        return
    if kind.name == "mla":
        latent = module.kv_lora_rank
        assert sizes == (module.num_heads, module.num_heads, module.qk_head_dim, module.v_head_dim)
        absorbed = (module.num_heads, 1, latent + config.qk_rope_head_dim, latent)
        assert tuple(kind.sizes("decode").values()) == absorbed
    else:
        heads = config.num_attention_heads
        width = getattr(module, "head_dim", None) or module.attention_head_size
        group = getattr(module, "num_key_value_groups", 1)
        assert sizes == (heads, heads // group, width, width)
        assert kind.sizes("decode") == kind.sizes("forward")
    assert scale == pytest.approx(getattr(module, "scaling", sizes[2] ** -0.5), rel=1e-9)
    assert kind.sinks == hasattr(module, "sinks")
    assert kind.softcap == getattr(module, "attn_logit_softcapping", None)
    causal = getattr(module, "is_causal", False)
    window = "sliding_window_causal" if causal else "sliding_window_bidirectional"
    whole = "causal" if causal else "bidirectional"
    of = {"sliding": window, "chunked": "chunked_causal"}.get(kind.name, whole)
    allowed, shape = shown(f"{of}_mask_function", config, kind, 8)
    assert (Mask.parse(kind.mask).visible(shape)[0, 0] == allowed.numpy()).all()


def test_what_each_configuration_says_is_what_its_kinds_are_made_of():
    for model in models().values():
        read = model.config
        layers = [read.get(n) for n in ("num_hidden_layers", "n_layers", "num_layers")]
        layers = next(filter(None, layers), model.layers)
        assert model.layers in (layers, 2 * layers), model.name  # a block of Wan's attends twice
        assert model.source and model.about and model.config
        assert {kind.operator for kind in model.kinds} <= set(OPERATORS)
        own = [(kind.operator, kind.mask, *kind.sizes("forward").values()) for kind in model.kinds]
        assert len(set(own)) == len(own) or model.name.startswith("wan")
    pattern = find_model("nemotron-h-8b").config["hybrid_override_pattern"]
    assert (pattern.count("M"), pattern.count("*"), len(pattern)) == (24, 4, 52)
    flux, wan = (find_model(name) for name in ("flux.1-dev", "wan2.1-t2v-14b"))
    pixels = 2 ** (len(flux.config["ch_mult"]) - 1)  # to one latent, then a patch of 2 x 2
    patch = math.isqrt(flux.config["in_channels"] // flux.config["z_channels"])
    tokens = (1024 // pixels // patch) ** 2 + flux.config["max_length"]
    assert (flux.seq, flux.layers) == ((str(tokens),), 19 + 38)
    assert flux.kinds[0].head_dim == flux.config["hidden_size"] // flux.config["num_heads"]
    (t, h, w), (one, tall, wide) = wan.config["vae_stride"], wan.config["patch_size"]
    assert wan.seq == (str((1 + 80 // t) // one * (480 // h // tall) * (832 // w // wide)),)
    assert {kind.head_dim for kind in wan.kinds} == {wan.config["dim"] // wan.config["num_heads"]}
    lengths = [p.shape[2:] for part in model_grid(wan, "cuda").parts for p in problems(part)]
    assert lengths == [(32760, 32760)] * 2 + [(32760, 512)] * 2


@pytest.mark.parametrize(
    ("name", "tp", "sizes"),
    [
        ("gpt-oss-20b", 1, {(64, 8)}),
        ("gpt-oss-20b", 2, {(32, 4)}),
        ("gpt-oss-20b", 16, {(4, 1)}),  # kv heads stand on two ranks each
        ("qwen3-next-80b-a3b", 4, {(8, 4), (4, 1)}),
        ("deepseek-v3", 8, {(16, 16), (16, 1)}),
        ("flux.1-dev", 3, {(8, 8)}),
    ],
)
def test_a_rank_has_its_share_of_the_heads(name, tp, sizes):
    grid = model_grid(find_model(name), "cuda", tp)
    assert {(*part.heads, *part.kv_heads) for part in grid.parts} == sizes
    assert (f"one of {tp} ranks" in grid.title) == (tp > 1)
    assert {part.dtype for part in grid.parts} == {("bfloat16",)}
    assert all(problems(part) for part in grid.parts)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("gpt-oss", None, {}), "the models are gpt-oss-20b, gpt-oss-120b, llama-3.1-8b"),
        (("Lama-3.1-8B", None, {}), "the models are llama-3.1-8b"),
        (("gpt-oss-20b", 3, {}), "--tp 3 doesn't divide .*; it can be 1, 2, 4, 8, 16, 32, 64$"),
        (("qwen3-next-80b-a3b", 32, {}), "it can be 1, 2, 4, 8, 16$"),
        (("llama-4-scout", 5, {}), "40 heads, 8 kv_heads.; it can be 1, 2, 4, 8, 40$"),
        (("bert-base", None, {"phase": ("decode",)}), "its phases are forward, train and backward"),
        (
            ("bert-base", None, {"kv_heads": (1,), "mask": ("none",)}),
            "leave --kv-heads, --mask out",
        ),
    ],
)
def test_what_is_no_model_or_no_share_is_refused_with_the_choices(asked, says):
    name, tp, changes = asked
    with pytest.raises(CantBeDone, match=says):
        grid_asked(name, tp, "cuda", changes)


def test_on_a_cpu_heads_lengths_and_windows_are_scaled_and_the_title_says_so():
    grid = model_grid(find_model("GEMMA-2-9B"), "cpu")
    assert grid.title == (
        "gemma-2-9b, scaled to a CPU: 12 of 16 heads, window:511,0 in place of window:4095,0 "
        "(sliding), sequences 8 times shorter, in float32"
    )
    own = [p for part in grid.parts for p in problems(part)]
    assert {(p.heads, p.kv_heads, p.head_dim, p.softcap) for p in own} == {(12, 6, 256, 50.0)}
    assert max(p.kv_len for p in own if p.phase != "decode") == 1024
    small = model_grid(find_model("gpt-oss-20b"), "cpu")  # its window hides something as it is
    assert {m for part in small.parts for m in part.mask} == {"window:127,0", "causal"}
    asked = grid_asked(
        "gemma-2-9b", 4, "cpu", {"seq": ("64",), "dtype": ("bfloat16",), "batch": (2,)}
    )
    assert asked.title == "gemma-2-9b, one of 4 ranks"
    trained = [part for part in asked.parts if part.phase == ("train",)]
    assert [part.mask for part in trained] == [("window:4095,0",), ("causal",)]
    assert {(part.seq, part.batch) for part in trained} == {(("64",), (2,))}


def test_each_kind_is_measured_by_the_rows_of_its_operator_alone():
    table, planned = impls.table(), partial(make_plan, impls.table())
    for name in ("qwen3-next-80b-a3b", "nemotron-h-8b"):
        grid = model_grid(find_model(name), "cuda")
        cells = planned([], grid, WITH_GPU).cells
        of = {part.title: part.operator for part in grid.parts}
        by_shape = {
            (*part.heads, *part.head_dim, *part.phase): part.operator for part in grid.parts
        }
        assert len(set(of.values())) == 2
        for cell in cells:
            p = cell.problem
            assert by_shape[p.heads, p.head_dim, p.phase] == table.find(cell.variant.label).operator
    hybrid = model_grid(find_model("qwen3-next-80b-a3b"), "cpu", phases=("forward",), seq=("16",))
    named = planned(["sdpa", "gated_delta"], hybrid, BOX).cells
    assert [(c.variant.name, c.problem.head_dim) for c in named] == [
        ("gated_delta", 128),
        ("sdpa", 256),
    ]
    (layer,) = planned(
        ["mha"], model_grid(find_model("bert-base"), "cpu", phases=("train",)), BOX
    ).cells
    assert layer.left_out.status == Status.UNSUPPORTED
    with pytest.raises(InvalidProblem, match="compute gated_delta, softmax, and none of gla does"):
        planned(["gla"], hybrid, BOX)
