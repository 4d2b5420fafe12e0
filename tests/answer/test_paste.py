"""The lines that a choice gives to paste: they are run as printed, and held against the formula."""

import pytest
import torch

import impls
from attnbench.answer.paste import (
    CallDetails,
    can_serve,
    in_transformers,
    lines,
)
from attnbench.core.machine import this_machine, why_not
from impls.masks import Mask
from tests import brute
from tests.answer.build import problem
from tests.impls.small import draw, softmax

EXACT = [
    row.name
    for row in impls.own_rows().values()
    if row.exact and row.level == "core" and not row.ranks and "cpu" in row.devices
]
CALLS = {
    "none": {"mask": "none"},
    "causal": {"mask": "causal", "heads": 4, "kv_heads": 2},
    "causal, scaled": {"mask": "causal", "scale": 0.05},
    "capped": {"mask": "causal", "softcap": 2.0},
    "beside sinks": {"mask": "causal", "heads": 4, "kv_heads": 2, "sinks": True},
    "all": {"mask": "window:5,0", "scale": 0.5, "softcap": 2.0, "sinks": True},
    "causal over more keys": {"mask": "causal", "q_len": 7},
    "from the first key": {"mask": "causal@upper-left", "q_len": 7},
    "window": {"mask": "window:5,0", "heads": 4, "kv_heads": 2},
    "padding": {"mask": "padding:9,24", "batch": 2},
    "one query": {"mask": "causal", "phase": "decode", "heads": 4, "kv_heads": 2},
}
COMPILED = ("compiled", "flex", "window.flex")


def formula(p, *tensors):
    """The whole call in float64."""
    return softmax(p, *(x.double() for x in tensors))


def run(code, p, **more):
    """The value that the lines leave in ``out``, of random inputs; and these."""
    names = dict(zip((*"qkv", "sinks"), draw(p), strict=False))
    tensors = tuple(names.values())
    exec("\n".join(code), names | more, names)
    return names["out"], tensors


def supported(variant, call):
    """The problem, unless the row doesn't take it, or is one for windows, which build refuses."""
    p = problem(24, **{"width": 16, **call})
    row = impls.own_rows()[variant]
    for_windows = variant.startswith("window.") and "window" not in p.mask.kinds
    return p if row.supports(p) is None and not for_windows else None


def marks_of(row):
    """Slow is what compiles, and what needs an extra; the latter only runs where that is."""
    missing = why_not(row, this_machine()) is not None
    extra = [pytest.mark.skipif(missing, reason="its library is not installed")]
    slow = row.name in COMPILED or row.family == "external"
    return [pytest.mark.slow] * slow + extra * (row.family == "external")


PRINTED = [
    pytest.param(variant, call, id=f"{variant}-{name}", marks=marks)
    for variant in EXACT
    for marks in [marks_of(impls.own_rows()[variant])]
    for name, call in CALLS.items()
    if supported(variant, call)
]
assert PRINTED


@pytest.mark.parametrize(("variant", "call"), PRINTED)
def test_the_lines_compute_the_whole_call(variant, call):
    p = supported(variant, call)
    out, tensors = run(lines(variant, p), p)
    want = formula(p, *tensors)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)


AT = torch.arange(24)
SEEN = (AT[:, None] == AT) | ((AT[:, None] + AT) % 3 == 0)
BIAS = torch.linspace(-1, 1, 24 * 24).reshape(24, 24).sin()


@pytest.mark.parametrize("kind", ["dense", "bias"])
@pytest.mark.parametrize("variant", ["sdpa", "sdpa.math", "chunked", "matmul"])
def test_a_mask_without_a_name_is_the_caller_s_tensor(variant, kind):
    """Every query sees its own key, and of the others every third."""
    mask = SEEN if kind == "dense" else BIAS.masked_fill(~SEEN, -torch.inf)
    p = problem(24, mask=brute.saved(kind, mask.numpy()), width=16)
    code = lines(variant, p)
    assert ".npy" not in "\n".join(code) and "your mask" in code[-1]
    out, (q, k, v) = run(code, p, attn_mask=mask)
    added = 0 if kind == "dense" else BIAS.double()
    scores = q.double() @ k.double().mT / 4 + added
    want = scores.masked_fill(~SEEN, -torch.inf).softmax(-1) @ v.double()
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["sdpa", "chunked"])
def test_a_mask_of_several_conditions_with_a_file_is_one_tensor_that_holds_them_all(variant):
    joined = problem(24, mask="causal+" + brute.saved("bias", BIAS.numpy()))
    (*_, call) = lines(variant, joined)
    assert call.endswith("# attn_mask: your mask, with causal in it") and "is_causal" not in call


DROPPING = [name for name in EXACT if impls.own_rows()[name].dropout]
assert DROPPING


@pytest.mark.parametrize(
    ("variant", "details", "why"),
    [
        ("window.flex", CallDetails(dropout=0.1), "does no dropout, and the call drops 0.1"),
        ("sdpa", CallDetails(returns="lse"), "returns the output alone, and the call needs the "
         "log-sum-exp"),
        ("chunked", CallDetails(returns="lse"), "the call needs it: --lse measures it with"),
        ("matmul", CallDetails(returns="weights"), "needs the weights"),
    ],
)  # fmt: skip
def test_where_a_variant_cannot_do_the_call_there_are_no_lines_but_a_reason(variant, details, why):
    assert why in can_serve(impls.own_rows()[variant], details)
    assert lines(variant, problem(24, mask="none"), details) == []


def test_torch_s_own_function_is_called_by_its_own_name_where_that_says_all():
    own = "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    assert lines("sdpa", problem(24, scale=1 / 64**0.5))[-1] == own  # nothing to write
    assert lines("sdpa", problem(24, sinks=True))[0] == "import attnbench"
    assert lines("sdpa.flash", problem(24))[-1] == "    " + own
    assert "attnbench" in lines("sdpa", problem(24, mask="window:5,0"))[0]
    assert "attnbench" in lines("sdpa", problem(24, q_len=7))[0]  # its causal is upper-left there


def test_calls_with_several_masks_are_given_each_its_own():
    """A line for one of them would be wrong for the others."""
    p = problem(24, width=16)
    for mask in ("causal", "window:5,0"):
        out, qkv = run(lines("sdpa", p, any_mask=True), p, mask=mask)
        want = formula(p.with_(mask=Mask.parse(mask)), *qkv)
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)


def test_a_variant_of_a_file_is_named_with_the_file(tmp_path):
    file = tmp_path / "a table.py"
    file.write_text(
        "from impls.spec import Variant\n"
        "ROWS = [Variant('mine', 'written out', 'mine', 'softmax', 'impls.dense.matmul:build')]\n"
    )
    p = problem(24, width=16, scale=0.05)
    out, qkv = run(lines("mine", p, tables=[str(file)]), p)
    want = formula(p, *qkv)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    assert lines("mine", p, CallDetails(dropout=0.1), [str(file)]) == []


@pytest.mark.parametrize("variant", ["sdpa", "matmul", "chunked"])
def test_transformers_own_function_is_named_where_it_leaves_nothing_out(variant):
    """Its sdpa raises for a soft cap, and drops sinks without a word; its eager does both."""
    plain, beside = problem(24, scale=0.1), problem(24, sinks=True)
    own = {"sdpa": "sdpa", "matmul": "eager"}.get(variant, f"attnbench:{variant}")
    assert in_transformers(variant, problems=[plain])[-1].endswith(f'("{own}")')
    own = "attnbench:sdpa" if variant == "sdpa" else own
    assert in_transformers(variant, problems=[plain, beside])[-1].endswith(f'("{own}")')


@pytest.mark.parametrize("variant", ["sdpa", "sdpa.flash", "chunked?block=8"])
def test_a_model_of_transformers_takes_what_is_pasted(variant):
    small = pytest.importorskip("tests.models.transformers.small")
    model = small.made("llama")
    question = small.asked(model)
    expected = small.logits(model, question)
    exec("\n".join(in_transformers(variant)), {"model": model})
    assert variant.split("?")[0].replace("flash", "FLASH") in model.config._attn_implementation
    assert torch.allclose(small.logits(model, question), expected, atol=1e-5)


def test_no_line_for_a_model_names_what_a_model_can_not_ask_for():
    p = problem(24, phase="decode", q_len=1, kv_dtype="int8")
    assert "kv_dtype='int8'" in lines("cache.sdpa", p)[-1]
    assert in_transformers("cache.sdpa", problems=[p]) == []
