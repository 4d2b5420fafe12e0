"""What is left to torch, once said, and which tables are refused."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import attnbench
from attnbench.models.dispatch import DispatchRefused, DispatchWarning
from impls.asked import CantBeDone
from tests.models.build import qkv
from tests.models.dispatch.made import entry, silently, table

SEEN = torch.ones(16, 16, dtype=torch.bool).tril()
LEFT = {
    "attn_mask": (qkv(), {"attn_mask": SEEN}, "mask that is given as a tensor"),
    "scale": (qkv(), {"scale": 0.5}, "scale=0.5 was not measured"),
    "phase": (qkv(grad=True), {}, "phase train is not in the table, which has forward"),
    "mask": (qkv(), {"is_causal": True}, "mask causal is not in the table, which has none"),
    "dtype": (qkv(dtype=torch.float64), {}, "dtype float64 is not in the table"),
    "kv_heads": (qkv(kv_heads=2), {"enable_gqa": True}, "kv_heads 2 is not in the table"),
    "head_dim": (qkv(width=16), {}, "head_dim 16 is not in the table"),
    "longer": (qkv(65), {}, "65 queries on 65 keys, batch 2, are outside .* 1 to 64 keys"),
    "larger batch": (qkv(batch=5), {}, "batch 5, are outside .*batch 1 to 4"),
    "crossing": (qkv(8, 16), {}, "8 queries on 16 keys, batch 2, are outside"),
    "three dimensions": ([x[0] for x in qkv()], {}, "tensors of 3 dimensions were not measured"),
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
    assert len(attend.said) == len(heard) == 1
    assert heard[0].filename == __file__


def test_dropout_is_dropped_by_torch():
    attend, (q, k, v) = attnbench.dispatch(table(entry("matmul"))), qkv()
    with pytest.warns(DispatchWarning, match=r"dropout \(dropout_p=0.5\)"):
        torch.manual_seed(3)
        mine = attend(q, k, v, None, 0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(mine, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


def test_tensors_of_another_class_and_nested_ones_are_torchs(spy, called):
    class Marked(torch.Tensor):
        pass

    attend = attnbench.dispatch(table(), tables=[spy])
    q, k, v = (x.as_subclass(Marked) for x in qkv())
    with pytest.warns(DispatchWarning, match="of a class of their own"):
        assert type(attend(q, k, v)) is Marked
    nested = [torch.nested.nested_tensor([x[0], x[1]]) for x in qkv()]
    with pytest.warns(DispatchWarning, match="nested tensors"):
        attend(*nested)
    assert not called


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"torch": "1.0"}, r"made for torch 1\.0, and here it is"),
        ({"device": "tpu"}, "made for tpu, and this machine has"),
        ({"inputs": ["normal"]}, "that its variants are right on peaky, outliers"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_table_of_another_place_is_refused(spy, other, said):
    with pytest.raises(DispatchRefused, match=said) as refused:
        attnbench.dispatch(table(**other), tables=[spy])
    assert isinstance(refused.value, CantBeDone)


def fake(f, q, k, v):
    with FakeTensorMode():
        return f(*(torch.empty(x.shape) for x in (q, k, v)))


def by_default_on_meta(f, q, k, v):
    with torch.device("meta"):
        return f(q, k, v)


def dual(f, q, k, v):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(q, v), k, v)).tangent


def outcome(call, *given):
    """What it returns, or that torch has not implemented it."""
    try:
        return call(*given)
    except NotImplementedError:
        return NotImplementedError


UNUSUAL = {
    "meta": lambda f, q, k, v: f(*(x.to("meta") for x in (q, k, v))),
    "fake": fake, "default device": by_default_on_meta, "dual": dual,
    "vmap": lambda f, q, k, v: torch.vmap(f)(*(x[None].expand(3, *x.shape) for x in (q, k, v))),
    "func.grad": lambda f, q, k, v: torch.func.grad(lambda x: f(x, k, v).square().sum())(q),
    "traced": lambda f, q, k, v: torch.jit.trace(lambda *x: f(*x), (q, k, v))(k, q, v),
    "make_fx": lambda f, q, k, v: make_fx(lambda *x: f(*x))(q, k, v)(k, q, v),
    "negative bit": lambda f, q, k, v: f(torch.complex(k, q).conj().imag, k, v),
}  # fmt: skip
"""Calls that only torch's own function can take as they are."""


@pytest.mark.parametrize("variant", ["numpy", "chunked", "inplace"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore::attnbench.models.dispatch.DispatchWarning")
def test_what_is_transformed_traced_or_without_values_is_torchs(variant):
    q, k, v = qkv()
    for name, call in UNUSUAL.items():
        attend = attnbench.dispatch(table(entry(variant)))
        mine = outcome(call, attend, q, k, v)
        theirs = outcome(call, F.scaled_dot_product_attention, q, k, v)
        assert len(attend.said) == 1, name
        if theirs is NotImplementedError:
            assert mine is theirs, name
            continue
        assert (mine.shape, mine.device, type(mine)) == (theirs.shape, theirs.device, type(theirs))
        if theirs.device.type != "meta" and type(theirs) is torch.Tensor:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (entry("sdpa.efficient"), "names what can't run here: sdpa.efficient runs on cuda"),
        (entry("inplace", phase="train"), "entry 1 .* it has no backward"),
        (entry(mask="window:3,0", variant="matmul"), "no entry would ever be used: .* window:3,0"),
    ],
    ids=["elsewhere", "no backward", "mask"],
)
def test_what_could_not_be_served_or_never_be_asked_is_refused_at_once(one, said):
    with pytest.raises(DispatchRefused, match=said):
        attnbench.dispatch(table(one))


def test_other_circumstances_are_said_once_and_the_table_is_used(spy, called):
    with pytest.warns(DispatchWarning, match="made with threads 3, and here it is 1") as heard:
        attend = attnbench.dispatch(table(threads=3), tables=[spy])
    assert len(heard) == 1
    silently(attend, *qkv())
    assert len(called) == 1
