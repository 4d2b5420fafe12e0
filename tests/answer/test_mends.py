"""Which mends are advised, where what each gains is known."""

import pytest
from msgspec.structs import replace

from attnbench.answer.mends import NOTHING, Pricer
from attnbench.core.call import CallForm, TensorForm
from attnbench.core.stats import Comparison, Verdict
from impls.masks import Mask
from impls.problem import Problem

X = TensorForm((1, 4, 256, 64), (65536, 16384, 64, 1), "float32")
FORM = CallForm("sdpa", X, X, X, mask=TensorForm((256, 256), (256, 1), "bool"), repeated=2)
PROBLEM = Problem(heads=4, kv_heads=4, mask=Mask.parse("causal"))
UNASKED = replace(FORM, gradient=True, asked=False)


def seconds(form, *, mask=1.0, repeats=0.0, gradient=0.0):
    """What a call takes beyond ten: for its mask, for repeating heads, for noting gradients."""
    taken = 10.0 + mask * (form["mask"] is not None)
    taken += repeats * (form.get("repeated", 1) > 1)
    return taken + gradient * form.get("gradient", False)


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
        ratio = then / now
        verdict = Verdict.FASTER if ratio < 0.98 else Verdict.EQUIVALENT
        held = Comparison(verdict, ratio, ratio * 0.99, ratio * 1.01, 0.02, 0.01, 40, 0.0)
        return {"comparison": held.to_dict(), "now_s": now, "then_s": then}


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
        assert found.ratio == pytest.approx(ratio) and found.low < found.ratio < found.high
    else:
        assert found.why


def test_a_call_that_can_not_be_changed_is_not_asked_about():
    plain = CallForm("sdpa", X, X, X)
    engine = Engine()
    found = Pricer(engine, PROBLEM.with_(mask=Mask()), plain).price()
    assert not engine.asked and not found.gains
    assert found.why == NOTHING


def test_the_mended_call_is_written_whole():
    scaled = replace(FORM, scale=0.05, dropout=0.1)
    found = priced(scaled, mask=5.0, repeats=5.0)
    assert found.code == (
        "out = F.scaled_dot_product_attention("
        "q, k, v, is_causal=True, dropout_p=0.1, scale=0.05, enable_gqa=True)",
    )
