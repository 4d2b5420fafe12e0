"""Variants that compile, at many lengths, beside functions that the program itself compiled."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from attnbench.models.attention import attention
from tests.models.build import qkv


@pytest.fixture
def users():
    """A function of the program's, compiled at two lengths; it knows how often it was compiled."""
    counted = []
    backend = lambda graph, example: counted.append(graph) or graph.forward  # noqa: E731
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend, dynamic=False)

    def call():
        compiled(torch.ones(3))
        compiled(torch.ones(4))
        return len(counted)

    assert call() == 2
    return call


def check(attend, lengths, mask="none", again=1):
    config = torch._dynamo.config.get_config_copy()
    for _ in range(again):
        for n, m in lengths:
            q, k, v = qkv(n, m, width=16)
            seen = None if mask == "none" else torch.ones(n, m).tril(m - n).bool()
            wanted = F.scaled_dot_product_attention(q, k, v, seen)
            torch.testing.assert_close(attend(q, k, v, mask), wanted, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.config.get_config_copy() == config


@pytest.mark.slow
def test_more_lengths_than_torch_compiles_for_leave_the_programs_own_alone(users, monkeypatch):
    compile_without_inductor = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", compile_without_inductor)  # the limits are dynamo's
    attend, lengths = attention("compiled"), range(8, 13)
    with torch._dynamo.config.patch(recompile_limit=len(lengths) - 2):
        check(attend, [(n, n) for n in lengths], "causal", again=2)
        check(attend, [(1, n) for n in lengths], "causal")
        check(attend, [(n, 40) for n in lengths])
    assert users() == 2


@pytest.mark.slow
def test_many_lengths_are_compiled_for_a_few_times_and_what_can_not_is_said(users):
    before, attend = counters["stats"]["unique_graphs"], attention("flex")
    check(attend, [(n, n) for n in (9, 10, 12, 17, 28, 41)], "causal")
    assert counters["stats"]["unique_graphs"] - before <= 4
    with pytest.warns(UserWarning, match="can't compile flex_attention for several lengths"):
        for n in (9, 10):
            q, k, v = qkv(n, width=16)
            mask = torch.randn(4, n, n)
            wanted = F.scaled_dot_product_attention(q, k, v, mask)
            torch.testing.assert_close(attend(q, k, v, mask[None]), wanted, rtol=1e-4, atol=1e-5)
    assert users() == 2
