"""The lines by which an engine takes a variant, from made-up times."""

import pytest
import torch

from attnbench.answer.engines import LINES, NO_MASK, EngineCall, in_engine
from attnbench.answer.paste import TRANSFORMERS, CallDetails
from attnbench.answer.ranking import Candidate, Ranking
from attnbench.command.arguments import parser
from impls import own_rows
from tests.answer.build import problem


def call(times, *, wins=None, calls=1, details=None, **of):
    """A place with seconds by variant; the fastest wins if nothing else is said."""
    found = [
        Candidate(name, "softmax", s, 0.98 * s, 1.02 * s, measured=True)
        for name, s in sorted(times.items(), key=lambda each: each[1])
    ]
    winner = next((c for c in found if c.variant == wins), found[0]) if found else None
    others = tuple(c for c in found if c is not winner)
    ranking = Ranking(winner, (), others, None, None) if winner else None
    of = {"mask": "causal", "device": "cuda", "dtype": "bfloat16", **of}
    return EngineCall("here", problem(512, **of), ranking, calls, details or CallDetails())


def kernel(*names):
    backends = ", ".join(f"SDPBackend.{name}" for name in names)
    return f"with sdpa_kernel([{backends}], set_priority=True):"


@pytest.mark.parametrize(
    ("engine", "times", "of", "line"),
    [
        ("transformers", {"sdpa": 1}, {}, 'model.set_attn_implementation("sdpa")'),
        (
            *("transformers", {"flash_attn3": 1, "sdpa": 2}, {}),
            'model.set_attn_implementation("flash_attention_3")',
        ),
        (
            *("transformers", {"sdpa.flash": 1}, {}),
            'model.set_attn_implementation("attnbench:sdpa.FLASH")',
        ),
        ("sdpa_kernel", {"sdpa.flash": 1, "sdpa": 2}, {}, kernel("FLASH_ATTENTION", "MATH")),
        ("sdpa_kernel", {"sdpa.math": 1, "sdpa.flash": 2}, {}, kernel("MATH")),
        (
            *("sdpa_kernel", {"sdpa": 1, "sdpa.flash": 1.01}, {}),
            "# torch chooses among its backends by itself: no sdpa_kernel is needed",
        ),
        (
            *("vllm", {"flash_attn3": 1, "sdpa": 2}, {}),
            "--attention-backend FLASH_ATTN --attention-config.flash_attn_version 3",
        ),
        ("vllm", {"flashinfer": 1, "sdpa": 2}, {}, "--attention-backend FLASHINFER"),
        (
            *("diffusers", {"sdpa.cudnn": 1, "sdpa": 2}, {"mask": "none"}),
            'pipe.transformer.set_attention_backend("_native_cudnn")',
        ),
        (
            *("diffusers", {"flex": 1}, {"mask": "none"}),
            'pipe.transformer.set_attention_backend("flex")',
        ),
    ],
)
def test_an_engine_takes_the_winner_by_its_own_lines(engine, times, of, line):
    answer = in_engine(engine, [call(times, **of)])
    assert line in answer.lines
    assert (answer.takes, answer.why, answer.instead) == (next(iter(times)), "", None)


@pytest.mark.parametrize(
    ("engine", "times", "of", "why", "instead"),
    [
        (
            *("vllm", {"sdpa": 1, "flash_attn2": 1.5, "flashinfer": 3}, {}),
            *("vllm has no sdpa. It can take flash_attn2, 1.50× as long", ("flash_attn2", 1.5)),
        ),
        (
            *("diffusers", {"sdpa.flash": 1, "sdpa": 2}, {"mask": "padding:9"}),
            "diffusers' backend of sdpa.flash takes no attn_mask, as for padding. It can take sdpa",
            ("sdpa", 2),
        ),
        (
            *("sdpa_kernel", {"chunked": 1, "sdpa.flash": 2, "sdpa": 2}, {}),
            *("sdpa_kernel has no chunked. It can take sdpa.flash, 2.00×", ("sdpa.flash", 2)),
        ),
        (
            *("diffusers", {"of.his.own": 1, "sdpa": 2}, {"mask": "none"}),
            *("diffusers has no of.his.own. It can take sdpa, 2.00×", ("sdpa", 2)),
        ),
        (  # no layer of a model hands its gates to attention
            *("transformers", {"gla": 1, "sdpa": 2}, {}),
            *("transformers has no gla. It can take sdpa, 2.00×", ("sdpa", 2)),
        ),
        ("diffusers", {"flex": 1}, {}, "diffusers' flex leaves is_causal out", None),
        ("diffusers", {"chunked": 1}, {}, "It can take none of the others", None),
        ("vllm", {"flashinfer": 1}, {"device": "cpu"}, "on a CPU vLLM runs CPU_ATTN", None),
        ("vllm", {"flash_attn2": 1}, {"phase": "train"}, "vLLM doesn't train", None),
        ("vllm", {"flash_attn2": 1}, {"mask": "document:500,12"}, "and no document", None),
        ("sdpa_kernel", {}, {}, "there is no answer for here", None),
        ("vllm", {"mha": 1}, {"level": "layer"}, "here has its own weights", None),
    ],
)
def test_or_the_answer_says_why_not_and_which_it_can_take(engine, times, of, why, instead):
    answer = in_engine(engine, [call(times, **of)])
    assert (answer.lines, answer.takes) == ([], None) and why in answer.why
    assert (answer.instead and (answer.instead.variant, answer.instead.times)) == instead
    if answer.instead:
        lines = LINES.get(engine, {"sdpa": ['model.set_attn_implementation("sdpa")']})
        assert answer.instead.lines == list(lines[answer.instead.variant])


def test_a_program_takes_the_one_that_takes_least_for_all_of_its_calls_together():
    short = call({"sdpa.flash": 1, "sdpa.cudnn": 2, "sdpa": 9})
    long = call({"sdpa.cudnn": 1, "sdpa.flash": 4, "sdpa": 9})
    assert in_engine("sdpa_kernel", [short, long]).takes == "sdpa.cudnn"
    often = call({"sdpa.flash": 1, "sdpa.cudnn": 2, "sdpa": 9}, calls=9)
    assert in_engine("sdpa_kernel", [often, long]).takes == "sdpa.flash"
    masked = call({"sdpa.efficient": 1, "sdpa": 9})  # what was not timed on all is not it
    assert in_engine("sdpa_kernel", [often, masked]).takes == "sdpa"
    nothing = in_engine("sdpa_kernel", [call({"sdpa.flash": 1}), call({"sdpa.cudnn": 1})])
    assert nothing.why.startswith("no variant was measured on all 2 calls")


@pytest.mark.parametrize("engine", [*LINES, "transformers"])
@pytest.mark.parametrize("settings", [{"softcap": 5.0}, {"sinks": True}])
def test_a_cap_and_sinks_are_handed_over_by_transformers_alone(engine, settings):
    capped = call({"sdpa": 1, "flex": 2}, **settings)
    answer = in_engine(engine, [capped])
    if engine == "transformers":
        assert answer.lines[-1] == 'model.set_attn_implementation("attnbench:sdpa")'
    else:
        assert answer.lines == [] and answer.instead is None
        refused = (
            f"{engine} has no sdpa",
            f"{engine} is not known to hand {next(iter(settings))} to sdpa",
        )
        assert answer.why.startswith(refused)


def test_what_a_call_needs_beside_its_problem_counts():
    drops = call({"numpy": 1, "sdpa": 2}, details=CallDetails(dropout=0.1))
    assert in_engine("transformers", [drops]).takes == "sdpa"
    weights = call({"chunked": 1, "sdpa": 2}, details=CallDetails(returns="weights"))
    assert in_engine("transformers", [weights]).lines == []


# ---- the names, where the engines are installed --------------------------------------------------


def test_the_command_line_knows_the_engines_and_the_table_their_variants():
    for engine, variants in {**LINES, "transformers": TRANSFORMERS}.items():
        assert parser().parse_args(["choose", "--for", engine]).engine == engine
        assert set(variants) <= set(own_rows())
    assert set(LINES["diffusers"]) >= NO_MASK


def test_torch_has_these_backends_and_its_lines_run():
    done = []
    x = torch.ones(1, 1, 4, 8)
    call = "done.append(torch.nn.functional.scaled_dot_product_attention(x, x, x))"
    kernels = [lines for variant, lines in LINES["sdpa_kernel"].items() if variant != "sdpa"]
    for lines in kernels:
        exec("\n".join(lines).replace("...", call), {"torch": torch, "x": x, "done": done})
    assert len(done) == len(kernels)


def test_transformers_has_these_implementations():
    modeling = pytest.importorskip("transformers.modeling_utils")
    known = {"eager", *modeling.ALL_ATTENTION_FUNCTIONS.valid_keys()}
    assert set(TRANSFORMERS.values()) <= known
