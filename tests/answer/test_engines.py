"""The answers in an engine's words, and one implementation for a model, from made-up times."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.answer.engines import TimedSite, for_whole_model, in_engine
from attnbench.answer.paste import NAMES, CallDetails
from attnbench.answer.ranking import Candidate
from tests.answer.build import problem


def candidate(name, s, *, off=0.02, setup_s=0.0, measured=True):
    return Candidate(name, "softmax", s, s * (1 - off), s * (1 + off), measured, setup_s=setup_s)


def site(times, *, name="here", takes=None, uses="", setup_s=0.0, **more):
    """``times``: seconds by variant."""
    of = {"mask": "causal", "device": "cuda", "dtype": "bfloat16", **more.pop("of", {})}
    found = {n: candidate(n, s, setup_s=setup_s) for n, s in times.items()}
    takes = min(times, key=times.get) if takes is None else takes
    return TimedSite(name, problem(512, **of), found, takes, uses, **more)


# ---- one implementation for a whole model --------------------------------------------------------

FASTER = {"sdpa": 2.0, "chunked": 1.0}


def test_one_that_gains_on_all_of_the_model_s_calls_is_set_for_the_whole_model():
    sites = [site(FASTER, uses="sdpa", calls=30), site({**FASTER, "bmm": 0.5}, uses="sdpa")]
    found = for_whole_model(sites)
    assert found.variant == "chunked"
    assert found.lines[-1] == 'model.set_attn_implementation("attnbench:chunked")'
    assert found.ratio.value == pytest.approx(0.5, rel=1e-3)
    assert found.ratio.high == pytest.approx(0.5 * 1.02 / 0.98, rel=1e-3)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        # the places that would have stayed as they are lose more than the others gain
        (site({"sdpa": 1.0, "chunked": 9.0}, uses="sdpa", takes="sdpa", calls=9), "would set"),
        # what the variant sets up for each new length costs more than the calls gain
        (site(FASTER, uses="sdpa", calls=9, setups=9, setup_s=3.0), "for each new mask or length"),
        # it may gain or lose, for all that is known
        (site({"sdpa": 1.0, "chunked": 1.1}, uses="sdpa", calls=10), "would set chunked"),
        (site({"sdpa": 1.0}, uses="sdpa"), "chunked not on second"),
        (site(FASTER, uses="sdpa", details=CallDetails(returns_weights=True)), "the weights"),
        (site({}, uses="sdpa", takes=""), "how long its calls take now is not known"),
        (site(FASTER, uses="flex"), "how long its calls take now is not known"),
    ],
)  # fmt: skip
def test_else_there_is_no_line_for_the_whole_model_but_a_reason(second, why):
    found = for_whole_model([site(FASTER, uses="sdpa"), replace(second, site="second")])
    assert found.lines == [] and why in found.why
    only = in_engine("transformers", [site(FASTER, uses="sdpa"), replace(second, site="second")])
    assert only == found


def test_one_that_some_places_use_already_may_gain_by_the_others():
    sites = [site({"sdpa": 1.0}, uses="sdpa"), site({"sdpa": 1.0, "flex": 3.0}, uses="flex")]
    found = for_whole_model(sites)
    assert found.lines == ['model.set_attn_implementation("sdpa")']
    assert found.ratio.value == pytest.approx(0.5)


def test_what_is_fastest_at_each_place_may_not_be_it_once_its_set_up_counts():
    times = {n: candidate(n, s, setup_s=3.0) for n, s in {**FASTER, "bmm": 1.5}.items()}
    times["bmm"] = candidate("bmm", 1.5)
    one = TimedSite("here", problem(512), times, "chunked", "sdpa", calls=9, setups=9)
    assert for_whole_model([one]).variant == "bmm"


def test_calls_so_short_that_the_way_into_a_layer_is_all_they_take_gain_nothing(monkeypatch):
    monkeypatch.setattr("attnbench.answer.engines.pace", lambda: 1.0)
    short = {"sdpa": 20e-6, "chunked": 10e-6, "sdpa.math": 30e-6}
    assert for_whole_model([site(short, uses="sdpa")]).lines == []
    own = {"matmul": 10e-6, "sdpa": 20e-6}  # eager, which transformers calls itself
    assert for_whole_model([site(own, uses="sdpa")]).variant == "matmul"


def test_a_predicted_time_sets_nothing_for_a_whole_model():
    known = site(FASTER, uses="sdpa")
    times = {**known.times, "chunked": candidate("chunked", 1.0, measured=False)}
    found = for_whole_model([TimedSite("here", known.problem, times, "chunked", "sdpa")])
    assert found.lines == []


# ---- the engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "times", "more", "lines"),
    [
        ("transformers", {"sdpa": 1}, {}, ['model.set_attn_implementation("sdpa")']),
        ("transformers", {"flash_attn3": 1, "sdpa": 2}, {},
         ['model.set_attn_implementation("flash_attention_3")']),
        ("transformers", {"sdpa.flash": 1}, {},
         ["import attnbench.models.transformers",
          'model.set_attn_implementation("attnbench:sdpa.FLASH")']),
        ("vllm", {"flash_attn3": 1, "sdpa": 2}, {},
         ["--attention-backend FLASH_ATTN --attention-config.flash_attn_version 3"]),
        ("vllm", {"flashinfer": 1, "sdpa": 2}, {}, ["--attention-backend FLASHINFER"]),
        ("diffusers", {"sdpa.cudnn": 1, "sdpa": 2}, {"mask": "none"},
         ['pipe.transformer.set_attention_backend("_native_cudnn")']),
        ("diffusers", {"sdpa": 1}, {"mask": "padding:9"},
         ['pipe.transformer.set_attention_backend("native")']),
        ("diffusers", {"flex": 1}, {"mask": "none"},
         ['pipe.transformer.set_attention_backend("flex")',
          "pipe.transformer.compile()  # without it FlexAttention runs uncompiled"]),
    ],
)  # fmt: skip
def test_an_engine_is_told_in_its_own_words_to_take_the_winner(engine, times, more, lines):
    found = in_engine(engine, [site(times, of=more)])
    assert (found.lines, found.why) == (lines, "")


@pytest.mark.parametrize(
    ("engine", "times", "more", "why"),
    [
        ("vllm", {"sdpa": 1, "flash_attn2": 1.5}, {}, "vLLM has no sdpa, but in the encoders of "
         "multimodal models: --mm-encoder-attn-backend TORCH_SDPA. It can take flash_attn2, 1.50× "
         "as long: --attention-backend FLASH_ATTN --attention-config.flash_attn_version 2"),
        ("vllm", {"flashinfer": 1}, {"device": "cpu", "dtype": "float32"}, "on a CPU vLLM runs "
         "CPU_ATTN, whatever it is asked for"),
        ("vllm", {"flash_attn2": 1}, {"phase": "train"}, "vLLM doesn't train"),
        ("vllm", {"flash_attn2": 1}, {"mask": "document:500,12"}, "and no document"),
        ("diffusers", {"chunked": 1}, {}, "diffusers has no chunked"),
        ("diffusers", {"sdpa.flash": 1, "sdpa": 2}, {"mask": "padding:9"}, "diffusers' "
         "_native_flash takes no attn_mask, and the mask is padding. It can take sdpa, 2.00× as "
         "long"),
        ("diffusers", {"flex": 1}, {"mask": "causal"}, "leaves is_causal out"),
        ("sdpa_kernel", {"chunked": 1, "sdpa.flash": 2, "sdpa": 2}, {}, "chunked is none of them. "
         "Of these sdpa.flash takes 2.00× as long: with sdpa_kernel([SDPBackend.FLASH_ATTENTION, "
         "SDPBackend.MATH]"),
        ("sdpa_kernel", {"sdpa": 1, "sdpa.flash": 1.01}, {}, "torch chooses the fastest of its "
         "backends by itself"),
        ("sdpa_kernel", {"chunked": 1}, {}, "no order of torch's backends was timed"),
    ],
)  # fmt: skip
def test_or_why_it_cannot_and_what_it_can(engine, times, more, why):
    found = in_engine(engine, [site(times, of=more)])
    assert found.lines == [] and why in found.why


def backends(found):
    """Those of the line, as torch names them, with the line run on a CPU."""
    assert found.why == ""
    order = []

    def spy(backends, set_priority):
        assert set_priority
        order.extend(backends)
        return sdpa_kernel(backends, set_priority)

    code = "\n".join(found.lines).replace("with sdpa_kernel(", "with spy(").replace(
        "...", "torch.nn.functional.scaled_dot_product_attention(x, x, x)"
    )  # fmt: skip
    exec(code, {"spy": spy, "torch": torch, "x": torch.ones(1, 1, 4, 8)})
    return [backend.name for backend in order]


FLASH, EFFICIENT, CUDNN, MATH = "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"


@pytest.mark.parametrize(
    ("times", "takes", "order"),
    [
        ({"sdpa.cudnn": 1, "sdpa.efficient": 3, "sdpa.flash": 2}, None,
         [CUDNN, FLASH, EFFICIENT, MATH]),  # MATH was not timed, and takes what the others don't
        ({"sdpa.flash": 1, "sdpa.math": 2, "sdpa.efficient": 3}, None, [FLASH, MATH]),
        ({"sdpa.math": 1, "sdpa.flash": 2}, None, [MATH]),  # behind it nothing is reached
        ({"sdpa.flash": 1, "sdpa.cudnn": 1.01}, "sdpa.cudnn", [CUDNN, FLASH, MATH]),  # of a tie
    ],
)  # fmt: skip
def test_torch_tries_the_winner_s_backend_first_and_the_rest_as_they_were_measured(
    times, takes, order
):
    assert backends(in_engine("sdpa_kernel", [site({**times, "sdpa": 4}, takes=takes)])) == order


def test_a_program_s_calls_share_the_order_in_which_they_take_least_together():
    """FLASH takes no mask on CUDA, so it may stand first, whatever is fastest under a mask."""
    plain = site({"sdpa.flash": 1, "sdpa.cudnn": 2, "sdpa": 3})
    masked = site({"sdpa.efficient": 1, "sdpa.cudnn": 4, "sdpa": 9}, of={"mask": "padding:9"})
    assert backends(in_engine("sdpa_kernel", [plain, masked])) == [FLASH, EFFICIENT, CUDNN, MATH]
    many = site({"sdpa.flash": 2, "sdpa.cudnn": 1, "sdpa": 3}, calls=100)
    assert backends(in_engine("sdpa_kernel", [many, masked]))[0] == CUDNN
    # where the first that takes a call was not timed on it, nobody knows what it would take
    untimed = site({"sdpa.efficient": 1, "sdpa": 9})
    assert in_engine("sdpa_kernel", [plain, untimed]).lines == []
    known = site({"sdpa.flash": 1, "sdpa.efficient": 2, "sdpa": 9})
    assert backends(in_engine("sdpa_kernel", [known, untimed]))[0] == EFFICIENT


def test_vllm_may_have_another_backend_in_windows():
    full = site({"flash_attn3": 1, "flashinfer": 2})
    window = site({"flash_attn3": 2, "flashinfer": 1}, of={"mask": "window:63,0"})
    (line,) = in_engine("vllm", [full, window]).lines
    option, _, value = line.partition(" ")
    assert option == "--attention-config" and json.loads(value.strip("'")) == {
        "backend": "FLASH_ATTN",
        "backend_per_kind": {"sliding_window": "FLASHINFER"},
        "flash_attn_version": 3,
    }
    alike = site({"flash_attn3": 1, "flashinfer": 2}, of={"mask": "window:63,0"}, calls=3)
    assert in_engine("vllm", [full, alike]).variant == "flash_attn3"


def test_of_variants_that_tie_everywhere_the_one_that_is_advised_everywhere_is_named():
    tied = [site({"sdpa": 1.01, "baddbmm": 1.0}, takes="sdpa", name=str(n)) for n in range(3)]
    found = in_engine("diffusers", tied)
    assert found.lines == ['pipe.transformer.set_attention_backend("native")']


@pytest.mark.parametrize("engine", NAMES)
def test_a_layer_has_weights_of_its_own_and_a_program_may_have_no_answer(engine):
    layer = site({"mha": 1}, of={"level": "layer", "device": "cpu", "dtype": "float32"})
    assert "weights" in in_engine(engine, [layer]).why
    assert in_engine(engine, []).why == "no call has an answer"
    nothing = in_engine(engine, [site({}, takes="")])
    assert nothing.lines == [] and nothing.why


# ---- the names, where the engines are installed --------------------------------------------------


def named(engine):
    assert NAMES[engine]
    return {*NAMES[engine].values()}


def test_transformers_has_these_implementations():
    modeling = pytest.importorskip("transformers.modeling_utils")
    known = {"eager", *modeling.ALL_ATTENTION_FUNCTIONS.valid_keys()}
    assert named("transformers") <= known


def test_torch_has_these_backends():
    assert named("sdpa_kernel") <= set(SDPBackend.__members__)


def test_vllm_has_these_backends():
    registry = pytest.importorskip("vllm.v1.attention.backends.registry")
    assert named("vllm") <= set(registry.AttentionBackendEnum.__members__)


def test_diffusers_has_these_backends_and_those_refuse_a_mask():
    dispatch = pytest.importorskip("diffusers.models.attention_dispatch")
    assert named("diffusers") <= {name.value for name in dispatch.AttentionBackendName}
    q = torch.ones(1, 4, 1, 8)
    from attnbench.answer.engines import NO_MASK

    for name in NO_MASK:
        call = dispatch._AttentionBackendRegistry._backends[dispatch.AttentionBackendName(name)]
        with pytest.raises(ValueError, match="attn_mask"):
            call(q, q, q, attn_mask=torch.ones(4, 4, dtype=torch.bool))
