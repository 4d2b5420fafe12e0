"""Which mends are advised, where what each gains is known."""

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from attnbench.answer.mends import NOTHING, VARIES, Pricer, lines, mends
from attnbench.core.call import CallForm, TensorForm
from attnbench.core.stats import Comparison, Verdict
from impls.masks import Mask
from impls.problem import Problem

X = TensorForm((1, 4, 256, 64), (65536, 16384, 64, 1), "float32")
FORM = CallForm("sdpa", X, X, X, mask=TensorForm((256, 256), (256, 1), "bool"), repeated=2)
PROBLEM = Problem(heads=4, kv_heads=4, mask=Mask.parse("causal"))
UNASKED = replace(FORM, gradient=True, asked=False)


def seconds(form, *, mask=1.0, repeats=0.0, gradient=0.0):
    """Seconds of a call, ten and more: for its mask, for repeating heads, for noting gradients."""
    taken = 10.0 + mask * (form["mask"] is not None)
    taken += repeats * (form.get("repeated", 1) > 1)
    return taken + gradient * form.get("gradient", False)


def answer(ratio, now_s):
    verdict = Verdict.FASTER if ratio < 0.98 else Verdict.EQUIVALENT
    pairs = Comparison(verdict, ratio, ratio * 0.99, ratio * 1.01, 0.02, 0.01, 40, 0.0, True)
    return {"comparison": to_builtins(pairs), "now_s": now_s, "then_s": ratio * now_s}


class Engine:
    """Answers with the ratio of known times, and notes what it was asked."""

    def __init__(self, wrong=(), **costs):
        self.costs, self.wrong, self.asked = costs, wrong, []

    def ask(self, question, limit_s):
        forms = [{"mask": None, **question[name]} for name in ("form", "against")]
        self.asked.append(forms)
        if any(forms[1].get(name) for name in self.wrong):
            return {"why": "its output would be another: off by 1"}
        now, then = (seconds(form, **self.costs) for form in forms)
        return answer(then / now, now)


def priced(form, **engine):
    return Pricer(Engine(**engine), PROBLEM, form).price()


@pytest.mark.parametrize(
    ("costs", "keys", "ratio"),
    [
        ({"mask": 5.0}, ("is_causal",), 10 / 15),
        ({"mask": 0.0, "repeats": 5.0}, ("enable_gqa",), 10 / 15),
        ({"mask": 5.0, "repeats": 5.0}, ("is_causal", "enable_gqa"), 10 / 20),
        ({"mask": 5.0, "gradient": 5.0}, ("is_causal", "no_grad"), 10 / 20),
        ({"mask": 0.0}, (), None),
        ({"mask": 0.1, "repeats": 0.1}, (), None),
        ({"mask": 5.0, "wrong": ("enable_gqa",)}, ("is_causal",), 10 / 15),
        ({"mask": 5.0, "wrong": ("enable_gqa", "is_causal")}, (), None),
    ],
)
def test_just_what_gains_is_advised(costs, keys, ratio):
    found = priced(UNASKED, **costs)
    assert found.keys == keys and found.gains == bool(keys)
    if keys:
        assert found.ratio.value == pytest.approx(ratio)
        assert found.ratio.low < found.ratio.value < found.ratio.high
    else:
        assert found.why


def test_the_mended_call_is_written_whole():
    dropping, scaled = replace(FORM, dropout=0.1), PROBLEM.with_(scale=0.05)
    found = Pricer(Engine(mask=5.0, repeats=5.0), scaled, dropping).price()
    assert found.code == (
        "out = F.scaled_dot_product_attention("
        "q, k, v, is_causal=True, dropout_p=0.1, scale=0.05, enable_gqa=True)",
    )


@pytest.mark.parametrize("api", ["products", "eager"])
@pytest.mark.parametrize("settings", [{"softcap": 50.0}, {"sinks": True}, {"scale": 0.1}])
def test_torchs_function_is_advised_for_no_cap_and_no_sinks(api, settings):
    """Nor is a change of the mask, which comes with it."""
    written = replace(UNASKED, api=api)
    keys = [mend.key for mend in mends(written, PROBLEM.with_(**settings))]
    assert ("sdpa" in keys and "is_causal" in keys) == ("scale" in settings)
    assert "no_grad" in keys and ("scale" in settings or len(keys) == 1)


def test_a_variant_that_takes_a_call_s_place_is_named():
    class Worker(Engine):
        def ask(self, question, limit_s):
            if taking := question.get("taking"):
                return answer({"chunked": 0.5, "matmul": 0.9}[taking["variant"]], 1.0)
            return super().ask(question, limit_s)

    pricer = Pricer(Worker(mask=5.0), PROBLEM, FORM)
    best = pricer.best_variant(["matmul", "chunked"], pricer.price())
    assert (best.variant, best.keys, best.ratio.value) == ("chunked", ("chunked",), 0.5)


@pytest.mark.parametrize("api", ["sdpa", "products"])
def test_tensors_of_three_axes_are_handed_over_with_four(api):
    three = TensorForm((4, 256, 64), (16384, 64, 1), "float32")
    engine = Engine()
    engine.ask = lambda question, _: answer(0.5, 2.0)
    form, p = CallForm(api, three, three, three), PROBLEM.with_(batch=4, heads=1, kv_heads=1)
    found = Pricer(engine, p.with_(mask=Mask(), scale=0.1), form).price()
    assert found.code == (
        "out = F.scaled_dot_product_attention(q[None], k[None], v[None], scale=0.1)[0]",
    )


def test_on_a_gpu_a_kernel_is_put_first_by_sdpa_kernel():
    some = mends(CallForm("sdpa", X, X, X, kernel="efficient"), PROBLEM.with_(device="cuda"))
    firsts = []
    for mend in some:
        assert mend.words.startswith("wrap in sdpa_kernel([SDPBackend.")
        scope, call = lines(mend.change(FORM), [mend.key], PROBLEM)
        assert scope == f"with {mend.words.removeprefix('wrap in ')}:"
        assert call.startswith("    out = F.scaled_dot_product_attention(q, k, v, attn_mask=")
        firsts.append(scope.partition("SDPBackend.")[2].partition(",")[0])
    assert firsts == ["CUDNN_ATTENTION", "FLASH_ATTENTION"]


def call(mask="causal", tokens=256, form=FORM):
    sizes = {"heads": 4, "kv_heads": 4, "q_len": tokens, "kv_len": 256}
    return form, Problem(**sizes, mask=Mask.parse(mask))


PLAIN = call("none", form=replace(FORM, mask=None))


@pytest.mark.parametrize(
    ("own", "others", "words"),
    [
        (call(), [], ["is_causal=True in place of the tensor"]),
        (call(), [call()], ["is_causal=True in place of the tensor"]),
        (call(), [call("none")], []),
        (call(), [PLAIN], []),
        (call("none"), [PLAIN], ["drop attn_mask: it hides nothing"]),
        (call("none"), [call("window:9,0")], []),
        (
            call(),
            [call("padding:200", tokens=1)],
            ["is_causal=True in place of the tensor, where q has more than one token"],
        ),
        (
            call("none", tokens=1),
            [call()],
            ["drop attn_mask: it hides nothing, where q has one token"],
        ),
    ],
)
def test_what_is_said_of_a_mask_holds_for_all_calls_of_the_line(own, others, words):
    assert [m.words for m in mends(*own, others) if m.key != "enable_gqa"] == words


def test_where_nothing_may_be_changed_the_answer_says_why_and_nobody_is_asked():
    once, engine = replace(FORM, repeated=1), Engine()
    priced = Pricer(engine, *reversed(call(form=once)), [call("none", form=once)]).price()
    assert (priced.keys, priced.why) == ((), VARIES)
    plain = Pricer(engine, PROBLEM.with_(mask=Mask()), CallForm("sdpa", X, X, X)).price()
    assert (plain.gains, plain.why, engine.asked) == (False, NOTHING, [])


def test_what_copies_gain_reaches_to_what_the_layout_gains_where_it_costs_nothing():
    strided = TensorForm((1, 4, 256, 64), (65536, 16384, 1, 256), "float32")

    class Worker(Engine):
        def ask(self, question, limit_s):
            ratio = 0.8 if question["against"].get("copied") else 0.5
            return answer(ratio, 10.0)

    form = CallForm("sdpa", strided, strided, strided)
    best = Pricer(Worker(), PROBLEM.with_(mask=Mask()), form).price()
    assert best.keys == ("contiguous",) and "q.contiguous()" in best.code[0]
    assert (best.ratio.value, best.ratio.low) == pytest.approx((0.65, 0.5 * 0.99))
    assert best.ratio.high == pytest.approx(0.8 * 1.01)
