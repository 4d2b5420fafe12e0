"""What gets torch's functions by ``__torch_function__`` compares them with what the module has."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode

import attnbench
from tests.models.build import only, qkv, said

FUNCTIONS = (
    "nn.functional.scaled_dot_product_attention",
    "_C._nn.scaled_dot_product_attention",
    "matmul",
    "bmm",
    "softmax",
    "einsum",
)


def as_found(name):
    found = torch
    for word in name.split("."):
        found = getattr(found, word)
    return found


class Names(TorchFunctionMode):
    """Which of the functions it got, by identity."""

    def __init__(self):
        super().__init__()
        self.got = []

    def __torch_function__(self, function, types, args=(), more=None):
        self.got += [name for name in FUNCTIONS if function is as_found(name)]
        return function(*args, **(more or {}))


class Halved(torch.Tensor):
    """A tensor with a table of functions, as libraries of quantised ones have."""

    HANDLED: dict = {}  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, types, args=(), more=None):
        if function in cls.HANDLED:
            return cls.HANDLED[function](*args, **(more or {}))
        return super().__torch_function__(function, types, args, more)


def modes():
    q, k, v = qkv()
    with Names() as names:
        F.scaled_dot_product_attention(q, k, v)
        torch.softmax(torch.matmul(q, k.mT), -1)
        torch.bmm(q[0], k[0].mT)
        torch.einsum("bhnd,bhmd->bhnm", q, k)
    return names.got


def subclass():
    Halved.HANDLED = {
        F.scaled_dot_product_attention: lambda *args, **more: "its own",
        torch.matmul: lambda *args: "its product",
    }
    q = torch.ones(1, 1, 4, 4).as_subclass(Halved)
    return F.scaled_dot_product_attention(q, q, query_less := q), torch.matmul(q, query_less)


@pytest.mark.parametrize("program", [modes, subclass])
def test_a_program_that_compares_functions_finds_them_as_without_a_capture(program):
    plain = program()
    with attnbench.capture():
        watched = program()
    assert watched == plain and len(plain) > 1


@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
def test_torchs_causal_biases_run_and_are_masks_with_their_corner(bias):
    q, k, v = qkv(n=20, m=24)
    plain = F.scaled_dot_product_attention(q, k, v, bias(20, 24))
    with attnbench.capture() as calls:
        watched = F.scaled_dot_product_attention(q, k, v, attn_mask=bias(20, 24))
    assert torch.equal(plain, watched) and only(calls).calls == 1
    mask = "causal" if bias is causal_lower_right else "causal@upper-left"
    assert said(calls)[0][0] == f"b2 h4/4 n20x24 d8 f32 {mask} forward"
