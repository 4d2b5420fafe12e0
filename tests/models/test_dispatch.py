"""``attnbench.dispatch``: who gets which call, what is left to torch, which tables are refused."""

import copy
import functools
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as torchs

import attnbench
import impls
from attnbench.answer.dispatch_table import (
    EARLIER_INPUTS,
    DispatchEntry,
    DispatchTable,
    Origin,
    Range,
)
from attnbench.core.machine import this_machine
from attnbench.models.attention import Built
from attnbench.models.dispatch import CHOICES, DispatchWarning
from impls.errors import CantBeDone
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import INPUTS, Problem
from tests.impls.small import softmax
from tests.models.build import qkv

SPY = """
from impls.spec import Unsupported, Variant

BUILT, CALLED = [], []

def build(problem):
    from impls.dense.matmul import build as plain

    BUILT.append(problem)
    inner = plain(problem)

    def attend(q, k, v):
        if q.isnan().any():
            raise Unsupported("spy has no kernel for what is not finite")
        CALLED.append(problem)
        return inner(q, k, v)

    return attend

ROWS = [Variant(name="spy", title="tells who called", family="mine", build=":build",
                operator="softmax", masks=("none", "causal"))]
"""


read = functools.cache(impls.table)


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """Rows of a file are read by another process: here once for all tests."""
    monkeypatch.setattr(impls, "table", lambda files=(): read(tuple(files)))


@pytest.fixture(scope="module")
def spy(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "spy.py"
    file.write_text(SPY)
    return file


@pytest.fixture
def called(spy):
    """The problems that the spy was called with, since the test began."""
    module = load_file(spy)
    module.BUILT.clear()
    module.CALLED.clear()
    return module.CALLED


def entry(variant="spy", **more):
    ranges = more.pop("ranges", (Range(1, 64, more.pop("queries", "same"), variant),))
    kind = {"phase": "forward", "mask": "none", "dtype": "float32", "heads": 4, "kv_heads": 4}
    sizes = {"head_dim": 8, "v_head_dim": 8, "batch": (1, 4), "ranges": ranges}
    return DispatchEntry(**{**kind, **sizes, **more})


def table(*entries, **more):
    made = {"device": "cpu", "torch": torch.__version__, "machine": this_machine().name}
    made |= {"threads": 1, "attnbench": attnbench.__version__, "protocol": 2, "run": "r"}
    made |= {"inputs": list(INPUTS), **more}
    return DispatchTable(Origin(**made), entries=entries or (entry(),))


def wanted(q, k, v, *, causal=False):
    return torchs(q.double(), k.double(), v.double(), is_causal=causal)


def silently(function, *given, **more):
    """What a call gives that says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DispatchWarning)
        return function(*given, **more)


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize(
    ("name", "mask"), [("matmul", "none"), ("online", "causal"), ("sdpa.flash", "causal")]
)
def test_outputs_and_gradients_are_torchs_and_lie_in_memory_as_torchs_do(name, mask, tokens_first):
    is_causal, given = mask == "causal", qkv()
    if tokens_first:  # as a model has them, which goes on with out.transpose(1, 2).view(…)
        given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    entries = [entry(name, phase=phase, mask=mask) for phase in ("forward", "train")]
    for attend in (attnbench.attention(name), attnbench.dispatch(table(*entries))):
        for grad in (False, True):
            q, k, v = (x.clone().requires_grad_(grad) for x in given)
            out = silently(attend, q, k, v, is_causal=is_causal)
            theirs = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            assert out.stride() == theirs.stride()
            if tokens_first:
                assert out.transpose(1, 2).view(2, 16, -1).is_contiguous()
            right = wanted(q, k, v, causal=is_causal)
            torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-5)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        mine = torch.autograd.grad((out * weight).sum(), (q, k, v))
        theirs = torch.autograd.grad((right * weight.double()).sum(), (q, k, v))
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_lengths_and_gradients_decide_who_gets_a_call(spy, called):
    ranges = (Range(8, 16, "same", "spy"), Range(17, 32, "same", "matmul"))
    attend = attnbench.dispatch(table(entry(ranges=ranges), entry(phase="train")), tables=[spy])
    for length in (8, 16, 17, 32):
        q, k, v = qkv(length)
        out = silently(attend, q, k, v).double()
        torch.testing.assert_close(out, wanted(q, k, v), rtol=1e-4, atol=1e-5)
    silently(attend, *qkv(grad=True))
    with torch.no_grad():
        silently(attend, *qkv(grad=True))
    called_for = [(p.kv_len, p.phase) for p in called]
    assert called_for == [(8, "forward"), (16, "forward"), (16, "train"), (16, "forward")]


SET = {
    "scale": {"scale": 0.25 + 1e-9},
    "cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 2, 4)},
    "all": {"scale": 0.7, "softcap": 2.0, "sinks": torch.linspace(-1, 2, 4)},
    "log-sums": {"scale": 0.7, "lse": True},
}


def setting(more):
    """The problem of a call that sets these, and its tensors; sinks are a fourth."""
    values = {name: True if name == "sinks" else x for name, x in more.items()}
    p = Problem(2, 4, 4, 16, 16, 8, 8, "float64", Mask.parse("causal"), "train", **values)
    leaves = [x.requires_grad_() for x in qkv(dtype=torch.float64, seed=3)]
    return p, [*leaves, *(x.double().requires_grad_() for n, x in more.items() if n == "sinks")]


def right(attend, p, leaves):
    """The call as a program makes it; its output and gradients are the formula's."""
    sinks = {"sinks": leaves[3]} if p.sinks else {}
    more = {"return_lse": True} if p.lse else {}
    out = attend(*leaves[:3], is_causal=True, **p.settings, **sinks, **more)
    want = softmax(p, *leaves)
    if p.lse:
        out, log_sums = out
        scores = (leaves[0] @ leaves[1].mT * p.scale).masked_fill(
            torch.ones(16, 16).triu(1).bool(), -torch.inf
        )
        torch.testing.assert_close(log_sums, scores.logsumexp(-1), rtol=1e-12, atol=1e-12)
        out, want = out + log_sums[..., None], want + scores.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    mine, theirs = (torch.autograd.grad(x.sin().sum(), leaves) for x in (out, want))
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("more", SET.values(), ids=SET)
def test_what_a_call_sets_decides_too_and_reaches_the_variant(more, monkeypatch):
    names, attend = [], Built.attend
    monkeypatch.setattr(Built, "attend", lambda b, c: names.append(b.row.name) or attend(b, c))
    p, leaves = setting(more)
    kinds = {"sdpa": {}, "einsum": p.parameters, "chunked": {**p.parameters, "softcap": 3.0}}
    kind = {"phase": "train", "mask": "causal", "dtype": "float64"}
    entries = [entry(name, **kind, parameters=some) for name, some in kinds.items()]
    right(functools.partial(silently, attnbench.dispatch(table(*entries))), p, leaves)
    assert names == ["einsum"]


@pytest.mark.parametrize("more", SET.values(), ids=SET)
def test_of_a_cap_or_sinks_what_is_not_covered_goes_to_matmul(more):
    dispatched = attnbench.dispatch(table(entry("sdpa")))
    with pytest.warns(DispatchWarning) as heard:
        right(dispatched, *setting(more))
    to = "torch's own function" if more.keys() == {"scale"} else "matmul"
    (sentence,) = (str(each.message) for each in heard)
    assert f"; such calls go to {to} (said once)" in sentence
    assert all(name in sentence for name in more)


def test_sinks_that_are_none_of_the_heads_are_refused():
    dispatched = attnbench.dispatch(table(entry("sdpa")))
    with (
        pytest.warns(DispatchWarning, match="not one for each of 4 heads"),
        pytest.raises(CantBeDone, match=r"sinks is \[heads\], here with heads 4"),
    ):
        dispatched(*qkv(), sinks=torch.zeros(3))


def test_is_causal_over_unequal_lengths_is_from_the_upper_left_as_in_torch(spy, called):
    q, k, v = qkv(8, 24)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    lower = attnbench.dispatch(table(entry(mask="causal", queries=8)), tables=[spy])
    with pytest.warns(DispatchWarning, match="no entry for .* mask causal@upper-left"):
        torch.testing.assert_close(lower(q, k, v, is_causal=True), theirs)
    assert not called
    upper = attnbench.dispatch(table(entry(mask="causal@upper-left", queries=8)), tables=[spy])
    torch.testing.assert_close(silently(upper, q, k, v, is_causal=True), theirs)
    assert len(called) == 1


def test_in_the_place_of_torchs_own_function_it_does_not_call_itself(monkeypatch):
    attend = attnbench.dispatch(table(entry("sdpa"), entry("sdpa", phase="train")))
    q, k, v = qkv(grad=True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    out = silently(F.scaled_dot_product_attention, q, k, v)
    torch.testing.assert_close(out.double(), wanted(q, k, v), rtol=1e-5, atol=1e-6)
    with pytest.warns(DispatchWarning):
        F.scaled_dot_product_attention(q, k, v, scale=0.5)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler hides it
def test_under_torch_compile_the_measured_variant_runs_and_is_right(spy, called):
    torch.compiler.reset()
    attend = attnbench.dispatch(table(entry(phase="train")), tables=[spy])
    compiled = torch.compile(lambda q, k, v: attend(q * 2, k, v).sin(), backend="eager")
    q, k, v = qkv(grad=True)
    out, whole = compiled(q, k, v), wanted(q * 2, k, v).sin()
    torch.testing.assert_close(out.double(), whole, rtol=1e-5, atol=1e-6)
    mine, right = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, whole))
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    assert [p.phase for p in called] == ["train"]


def test_a_model_that_holds_one_can_be_copied_and_sent(spy, called):
    attend = attnbench.dispatch(table(), tables=[spy])
    for other in (copy.deepcopy(attend), pickle.loads(pickle.dumps(attend))):
        silently(other, *qkv())
        assert repr(other) == repr(attend)
    assert len(called) == 2


def test_a_variant_is_built_once_for_calls_that_are_alike_and_few_are_kept(spy, called):
    built = load_file(spy).BUILT
    many = entry(ranges=(Range(1, 9999, 1, "spy"),), phase="decode")
    attend = attnbench.dispatch(table(entry(), many), tables=[spy])
    for seed in range(3):
        silently(attend, *qkv(seed=seed))
    assert len(built) == 1
    for keys in range(2, CHOICES + 50):
        silently(attend, *qkv(1, keys, batch=1))
    assert attend._choices.cache_info().currsize == CHOICES
    assert len(built) == CHOICES + 49


SEEN = torch.ones(16, 16, dtype=torch.bool).tril()
LEFT = {
    "attn_mask": (qkv(), {"attn_mask": SEEN}, "mask that is given as a tensor"),
    "scale": (qkv(), {"scale": 0.5}, "no entry for forward, .* d8/8, scale 0.5"),
    "phase": (qkv(grad=True), {}, "no entry for train, mask none, float32, h4/4 d8/8"),
    "mask": (qkv(), {"is_causal": True}, "no entry for forward, mask causal"),
    "dtype": (qkv(dtype=torch.float64), {}, "no entry for forward, mask none, float64"),
    "kv_heads": (qkv(kv_heads=2), {"enable_gqa": True}, "no entry for .* h4/2"),
    "longer": (qkv(65), {}, "some lengths or batches are outside"),
    "larger batch": (qkv(batch=5), {}, "some lengths or batches are outside"),
    "crossing": (qkv(8, 16), {}, "some lengths or batches are outside"),
    "three dimensions": ([x[0] for x in qkv()], {}, "are no problem of a table's kind"),
    "scale of 0": (qkv(), {"scale": 0.0}, "no entry for .* scale 0"),
    "no kernel": ([qkv()[0] * float("nan"), *qkv()[1:]], {}, "no kernel for what is not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "more", "said"), LEFT.values(), ids=LEFT)
def test_what_was_not_measured_goes_to_torch_and_is_said_once(spy, called, given, more, said):
    attend = attnbench.dispatch(table(), tables=[spy])
    with pytest.warns(DispatchWarning, match=said) as heard:
        out = attend(*given, **more)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*given, **more), equal_nan=True)
    silently(attend, *given, **more)
    assert not called
    assert len(attend.warnings) == len(heard) == 1
    assert heard[0].filename == __file__


@pytest.mark.parametrize(
    ("one", "more", "message"),
    [
        (entry(), {"torch": "1.0"}, r"made for torch 1\.0, and here it is"),
        (entry(), {"device": "tpu"}, "made for tpu, and this machine has"),
        (entry(), {"inputs": ["normal"]}, "that its variants are right on peaky, outliers"),
        (entry("sdpa.efficient"), {}, "can't run here: sdpa.efficient needs CUDA"),
        (entry("inplace", phase="train"), {}, "entry 1 .* it has no backward"),
    ],
)
def test_a_table_of_another_place_or_that_could_not_be_served_is_refused(spy, one, more, message):
    with pytest.raises(CantBeDone, match=message):
        attnbench.dispatch(table(one, **more), tables=[spy])


class Marked(torch.Tensor):
    pass


def fake(f, q, k, v):
    with FakeTensorMode():
        return f(*(torch.empty(x.shape) for x in (q, k, v)))


UNUSUAL = {
    "meta": lambda f, q, k, v: f(*(x.to("meta") for x in (q, k, v))),
    "own class": lambda f, *qkv: f(*(x.as_subclass(Marked) for x in qkv)),
    "fake": fake,
    "vmap": lambda f, q, k, v: torch.vmap(f)(*(x[None].expand(3, *x.shape) for x in (q, k, v))),
    "traced": lambda f, q, k, v: torch.jit.trace(lambda *x: f(*x), (q, k, v))(k, q, v),
    "make_fx": lambda f, q, k, v: make_fx(lambda *x: f(*x))(q, k, v)(k, q, v),
}
"""Calls that only torch's own function can take as they are."""


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore::attnbench.models.dispatch.DispatchWarning")
def test_what_is_transformed_traced_or_without_values_is_torchs(name):
    attend, call = attnbench.dispatch(table(entry("inplace"))), UNUSUAL[name]
    mine, theirs = call(attend, *qkv()), call(F.scaled_dot_product_attention, *qkv())
    assert (mine.shape, mine.device, type(mine)) == (theirs.shape, theirs.device, type(theirs))
    if theirs.device.type != "meta" and type(theirs) is torch.Tensor:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert len(attend.warnings) == 1


def test_a_table_of_before_a_kind_of_inputs_was_tried_says_so_and_is_used(spy, called):
    with pytest.warns(DispatchWarning, match="were not tried on sunk inputs"):
        attend = attnbench.dispatch(table(inputs=list(EARLIER_INPUTS)), tables=[spy])
    silently(attend, *qkv())
    assert len(called) == 1


def test_other_circumstances_are_said_once_and_the_table_is_used(spy, called):
    with pytest.warns(DispatchWarning, match="made with threads 3, and here it is 1"):
        attend = attnbench.dispatch(table(threads=3), tables=[spy])
    silently(attend, *qkv())
    assert len(called) == 1
