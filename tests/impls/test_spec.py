"""Rows and problems: what they may say, a row's options, and how both are written down."""

import json
import re

import pytest
from msgspec import ValidationError

from attnbench.core.wire import convert, plain
from impls.masks import Mask
from impls.operators import TensorSpec
from impls.problem import InvalidProblem, Problem
from impls.spec import DTYPES, InvalidRow, Variant


def row(**changes):
    """A row that says little, and what a test changes of it."""
    little = {"name": "some.row", "title": "a row", "family": "dense", "operator": "softmax"}
    return Variant(**{**little, "build": "some.module:build", **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({"name": name}, f"the name {name!r}") for name in ("Upper", "a..b", "a?b=1", "a\n", 3)),
        ({"operator": "magic"}, "operator 'magic' is not one of softmax, softmax on its own"),
        ({"dtypes": ("float32", "int8")}, "dtypes 'int8' is not one of float32, bfloat16"),
        ({"definition": "some.module"}, "definition='some.module' is not a dotted path"),
        ({"runs": {"gpu": "aten::bmm"}}, "device of runs 'gpu' is not one of cpu, cuda"),
        ({"runs": {"cpu?fast=true": "aten::bmm"}}, "runs names an option 'fast', which it has not"),
        ({"options": {"s": [1, 2]}}, "option s=[1, 2] is no number, text or yes-or-no"),
        ({"operators": {"gates=input": "gla"}}, "option of operators 'gates' is not one of"),
        ({"operator": "its own operator"}, "needs a definition"),
        ({"definition": "some.module:definition"}, "the oracle is its definition"),
        ({"cross": "forward"}, "cross='forward' is not true, false or 'decode'"),
        ({"ranks": True, "options": {"world": 1}}, "it needs an option world"),
        ({"shares": "a:b"}, "shares are of a row that runs over several processes"),
        ({"tunes": {"blok": (1, 2)}, "options": {"block": 8}}, "its options are block"),
        ({"tunes": {"block": ("1",)}, "options": {"block": 8}}, "which is not like the default"),
    ],
)
def test_a_row_that_no_row_may_be_is_refused_with_a_sentence(changes, says):
    with pytest.raises(InvalidRow) as caught:
        row(**changes)
    assert says in str(caught.value)
    assert str(changes.get("name", "some.row")).strip() in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "extents", "sentence"),
    [
        ({"level": "layer", "definition": "a:b"}, {}, "works at level layer, not core"),
        ({"devices": ("cpu",)}, {"device": "cuda:1"}, "runs on cpu, not on cuda"),
        ({"dtypes": {"cpu": ("float32", "float64"), "cuda": DTYPES}}, {"dtype": "float16"},
         "takes float32, float64 on cpu, not float16"),
        ({"phases": ("forward", "decode")}, {"phase": "train"},
         "is for forward, decode only: it has no backward"),
        ({"masks": ("none", "causal")}, {"mask": Mask.parse("causal+alibi+window:1,2")},
         "takes the masks none, causal on cpu, not alibi, window"),
        ({"gqa": False}, {"kv_heads": 4},
         "has no grouped-query form: it needs as many kv_heads as heads"),
        ({"cross": False}, {"q_len": 255}, "needs q_len equal to kv_len"),
        ({"value_dim": False}, {"v_head_dim": 32}, "needs v_head_dim equal to head_dim"),
        ({"head_dims": (65, 128)}, {}, "takes head_dim 65 to 128"),
    ],
)  # fmt: skip
def test_a_refusal_is_a_sentence_and_without_the_limit_there_is_none(changes, extents, sentence):
    assert row(**changes).supports(Problem(**extents)) == f"some.row {sentence}"
    assert row().supports(Problem(**extents)) is None


OPTIONS = {"block": 256, "ratio": 0.5, "sorted": True, "kernel": "relu"}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [("block", "-1", -1), ("ratio", "2", 2.0), ("sorted", "No", False), ("kernel", "3", "3")],
)
def test_an_option_from_text_has_the_type_of_its_default(key, text, value):
    changed = row(options=OPTIONS).with_options({key: text})
    assert changed.chosen == {**OPTIONS, key: value}
    assert type(changed.chosen[key]) is type(OPTIONS[key])


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("blok", "64", "has no option 'blok' (its options: block, kernel, ratio, sorted)"),
        ("ratio", "half", "option ratio='half' is not float, like 0.5"),
        ("sorted", "maybe", "option sorted='maybe' is neither true nor false"),
    ],
)
def test_an_option_that_is_none_is_refused_with_a_sentence(key, text, says):
    with pytest.raises(InvalidRow, match=re.escape(says)):
        row(options=OPTIONS).with_options({key: text})


def test_the_label_names_the_options_that_differ_from_the_defaults():
    base = row(options=OPTIONS)
    assert base.label == "some.row"
    assert base.with_options({"block": "256"}).label == "some.row"
    changed = base.with_options({"sorted": "no", "ratio": "0.5", "block": "64"})
    assert changed.label == "some.row?block=64&sorted=False"
    assert dict(changed.given) == {"block": 64, "sorted": False}
    assert changed.with_options({"block": "256", "sorted": "yes"}).label == "some.row"


def test_a_device_an_option_and_a_core_decide_which_operator_must_run():
    forced = row(runs={"cpu": "aten::a", "cuda": "aten::b"})
    assert (forced.attested_by("cpu"), forced.attested_by("cuda:1")) == ("aten::a", "aten::b")
    some = row(options=OPTIONS, runs={"cpu?block=64": "aten::small", "cpu?kernel=elu": "aten::elu"})
    assert some.attested_by("cpu") is None
    assert some.with_options({"block": "64"}).attested_by("cpu") == "aten::small"
    assert some.with_options({"kernel": "elu"}).attested_by("cpu") == "aten::elu"
    assert some.with_options({"block": "64"}).attested_by("cuda") is None
    layer = row(name="layer", level="layer", definition="some.module:definition")
    assert layer.over(forced).attested_by("cpu") == "aten::a"
    assert layer.over(row()).attested_by("cpu") is None


def test_a_default_that_tuning_could_change_is_asked_for_by_name():
    tuned = row(options=OPTIONS, tunes={"block": (64, 128)}, tuned={"block": 64})
    assert (tuned.label, tuned.chosen["block"]) == ("some.row", 64)
    changed = tuned.with_options({"block": "256", "ratio": "0.5"})
    assert (changed.label, changed.chosen["block"]) == ("some.row?block=256", 256)


FULL = row(
    operator="its own operator", definition="some.module:definition", cost="some.cost:cost",
    level="layer", devices=("cuda",), dtypes=("float16",), masks={"cuda": ("none", "causal")},
    phases=("forward",), gqa=False, cross=False, value_dim=False, dropout=True,
    head_dims=(16, 128), requires=("triton>=3", "sm>=80"), options=OPTIONS, untried=True,
    paper="arXiv:1706.03762", origin="else 1.0", core=row(), install="build it from source",
    runs={"cuda": "some::operator"}, swaps=("aten::_flash_attention_forward",),
    reuses_output=True, tunes={"block ratio": ((8, 0.5), (16, 0.25))}, tuned={"block": 8},
)  # fmt: skip


def test_a_row_survives_json_with_every_field():
    changed = FULL.with_options({"block": "8"})
    several = row(ranks=True, shares="some.module:shares", options={"world": 1})
    for variant in (row(), FULL, changed, several):
        read = convert(json.loads(json.dumps(plain(variant))), Variant)
        assert (read, read.label) == (variant, variant.label)
    with pytest.raises(ValidationError, match="unknown field `speed`"):
        convert({**plain(row()), "speed": 3, "color": "red"}, Variant)


@pytest.mark.parametrize(
    ("changes", "says"),
    [  # that tests/goldens/refused.txt has not
        ({"device": "cuda:-1"}, "cuda:NUMBER"),
        ({"inputs": "captured:"}, "captured:FILE.npz"),
        ({"kv_len": (1 << 25) + 1}, "kv_len=33,554,433: 33,554,432 is the most"),
        ({"mask": Mask.parse("document:3,4")}, "add up to 7"),
    ],
)
def test_a_problem_that_cannot_exist_names_the_valid_choices(changes, says):
    with pytest.raises(InvalidProblem, match=says):
        Problem().with_(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"axes": ("batch", "furlongs")}, "axis 'furlongs' is not one of batch, heads, kv_heads"),
        ({"draw": "a lottery"}, "draw 'a lottery' is not one of normal, unit, log decay, rate"),
    ],
)
def test_an_input_of_an_unknown_kind_is_refused_in_a_sentence(changes, says):
    with pytest.raises(ValueError, match=says):
        TensorSpec(**{"axes": ("batch",), **changes})
