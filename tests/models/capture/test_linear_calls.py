"""Layers of transformers that are no softmax attention: they have their share, by name."""

from types import ModuleType

import pytest
import torch

import attnbench
from attnbench.models.capture.functions import Stands
from attnbench.models.capture.linear import put_linear

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(96).reshape(2, 48) % 49 + 1
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "pad_token_id": 0,
}
QWEN = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
MAMBA2 = {"num_heads": 8, "head_dim": 16, "state_size": 4, "n_groups": 2, "chunk_size": 16}
MODELS = {
    "Qwen3Next": (
        QWEN,
        {"torch_chunk_gated_delta_rule": 3},
        "b2 h4/4 n48 d16/8 f32 causal train",
        "delta",
    ),
    "Mamba2": (MAMBA2, {"mamba2_chunk_scan": 4}, "b2 h8/8 n48 d4/16 f32 causal train", "ssd"),
    "Mamba": (
        {"state_size": 8},
        {"mamba_selective_scan": 4},
        "b2 h1/1 n48 d64 f32 causal train",
        "ssd",
    ),
    "MiniMax": (
        {"head_dim": 16, "block_size": 16, "num_local_experts": 2},
        {"MiniMaxLightningAttention": 2},
        "b2 h1/1 n48 d64 f32 causal train",
        "retention",
    ),
    "Rwkv": (
        {"attention_hidden_size": 64},
        {"rwkv_linear_attention": 4},
        "b2 h1/1 n48 d64 f32 causal train",
        "gla",
    ),
}


def gradients(kind, more):
    """Of a training step of a small model, and the model."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model(input_ids=IDS, labels=IDS).loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", MODELS)
def test_a_layer_has_its_share_by_name_and_computes_what_it_did(kind):
    more, counts, slug, kin = MODELS[kind]
    plain = gradients(kind, more)
    with attnbench.capture() as calls:
        watched = gradients(kind, more)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    sites = [s for s in calls.sites if not s.via.startswith("transformers")]
    assert {s.via: s.calls for s in sites} == counts
    (site,) = sites
    assert str(site.problem) == slug and f"kin in the table is {kin}" in site.note
    assert site.seconds > 0 and site.backward_s > 0 and site.share > 0
    assert site.problem not in calls.problems()
    assert site.site.startswith(
        f"modeling_{kind.lower()}.py" if kind != "Qwen3Next" else "modeling_q"
    )


def test_a_function_that_is_a_module_of_the_kernels_library_is_seen():
    class Func(torch.nn.Module):
        def forward(self, query, key, value, g, beta, **more):
            return value * 2, None

    name = "transformers.models.made_up.modeling_made_up"
    module = ModuleType(name)
    module.torch_chunk_gated_delta_rule = rule = Func()
    stands, x = Stands(), torch.randn(2, 12, 4, 8)
    with attnbench.capture() as calls:
        put_linear(stands, module)
        module.torch_chunk_gated_delta_rule(x, x, x, g=x[..., 0], beta=x[..., 0])
        stands.close()
    (site,) = calls.sites
    assert str(site.problem) == "b2 h4/4 n12 d8 f32 causal forward"
    assert site.via == "torch_chunk_gated_delta_rule"
    assert module.torch_chunk_gated_delta_rule is rule


def test_tokens_one_by_one_are_seen_too():
    config = transformers.Qwen3NextConfig(**SIZES | QWEN)
    model = transformers.Qwen3NextForCausalLM(config).eval()
    with attnbench.capture() as calls, torch.no_grad():
        model.generate(IDS, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert {s.via: s.calls for s in calls.sites if "delta" in s.via} == {
        "torch_chunk_gated_delta_rule": 3,
        "torch_recurrent_gated_delta_rule": 6,
    }
