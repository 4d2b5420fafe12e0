"""Models of transformers, recorded whatever attention function they are given."""

import pytest
import torch

import attnbench
from attnbench.models.capture.functions import layer_call
from attnbench.models.capture.libraries import call_of
from attnbench.models.capture.masks import Masks
from tests.models.build import only, said

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(24).reshape(2, 12) + 1


def llama(attention="sdpa", kind="Llama", **more):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, **more}
    config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation=attention)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def test_a_training_step_is_seen_forward_and_backward_and_stays_as_it_is():
    def step():
        model = llama("eager")
        model(input_ids=IDS, labels=IDS).loss.backward()
        return [p.grad for p in model.parameters()]

    plain = step()
    with attnbench.capture() as calls:
        watched = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert said(calls) == [("b2 h4/2 n12 d8 f32 causal train", "transformers eager", 2)]
    site = only(calls)
    assert site.seconds > 0 and site.backward_s > 0
    assert site.site.startswith("modeling_llama.py:") and "test_transformers_calls.py" in site.site


def test_padding_and_a_sliding_window_are_in_the_mask():
    ends = (torch.arange(12) < torch.tensor([[12], [8]])).long()
    with attnbench.capture() as calls:
        llama(kind="Mistral", sliding_window=4)(IDS)
        llama("eager")(IDS, attention_mask=ends)
        llama()(IDS, attention_mask=ends.flip(1))
    masks = [(str(s.problem.mask).split(":")[0], s.via) for s in calls.sites]
    eager, sdpa = "transformers eager", "transformers sdpa"
    found = [("causal+leftpad", sdpa), ("causal+padding", eager), ("window", sdpa)]
    assert sorted(masks) == found


@pytest.mark.parametrize(
    ("causal", "window", "ends", "mask"),
    [
        (True, None, None, "causal"),
        (False, 12, None, "none"),
        (True, None, [[12], [8]], "causal+padding:12,8"),
        (False, None, [[12], [8]], "padding:12,8"),
        (True, 4, None, None),
    ],
)
def test_a_flash_kernel_is_told_by_words(causal, window, ends, mask):
    x = torch.zeros(2, 4, 12, 8)
    more = {"is_causal": causal, "sliding_window": window}
    seen = None if ends is None else (torch.arange(12) < torch.tensor(ends)).long()
    call = layer_call("transformers flash_attention_2", None, (x, x, x), seen, [], more)
    if mask is None:
        assert call.note == "it has a window of 4"
    else:
        assert str(call.look((None, None), Masks(None))[0].mask) == mask and not call.note


CAPPED = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4}
SET = [
    ("gpt_oss", {}, "eager", "sinks"),
    ("gpt_oss", {}, "attnbench:chunked", "sinks"),
    ("gpt_oss", {}, "attnbench:sdpa", "sinks"),  # where a sink is one more key
    ("gemma2", CAPPED, "eager", "scale 0.5 softcap 2"),
    ("gemma2", CAPPED, "attnbench:online", "scale 0.5 softcap 2"),
    pytest.param("gemma2", CAPPED, "flex_attention", "scale 0.5 softcap 2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "more", "attention", "words"), SET)
def test_what_a_layer_sets_is_in_its_problem(kind, more, attention, words):
    import attnbench.models.transformers
    from tests.models.transformers import small

    model = small.made(kind, **more)
    model.set_attn_implementation(attention)
    with attnbench.capture() as calls:
        small.forward(model, small.asked(model))
    texts = [str(s.problem).removeprefix("b2 h4/2 n10 d8 f32 ") for s in calls.sites]
    assert sorted(texts) == [f"causal forward {words}", f"window:4,0 forward {words}"]
    assert all(s.faithful and not s.note for s in calls.sites)


def test_sinks_that_transformers_own_sdpa_leaves_out_are_said():
    x = torch.zeros(2, 4, 12, 8)
    call = layer_call("transformers sdpa", None, (x, x, x), None, [], {"s_aux": torch.zeros(4)})
    assert call.note == "it has attention sinks, which transformers' sdpa leaves out"


def test_sinks_that_only_a_layers_kernel_is_handed_are_its_own():
    x, sinks = torch.zeros(2, 4, 12, 8), torch.zeros(4)
    own = dict.fromkeys("qkv", x.transpose(1, 2))
    kernel = call_of("flash_attn flash_attn_func", {**own, "learnable_sink": sinks, "softcap": 3.0})
    call = layer_call("transformers own", None, (x, x, x), None, [lambda: kernel], {})
    assert call.sinks is sinks and call.softcap == 3.0


@pytest.mark.parametrize("asked", [True, False])
def test_weights_that_a_model_is_to_hand_out_are_in_the_form(asked):
    with attnbench.capture() as calls:
        llama("eager")(IDS, output_attentions=asked)
    assert only(calls).call.returns == ("weights" if asked else "")
