"""The recurrent operators in float32 against other projects' forms of them: outputs, states and
gradients, those of gates and of the state before the first token too.
"""

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch

from attnbench.gate.inputs import make
from impls.operators import inputs as inputs_of
from tests.impls.onnx_reference import computed
from tests.impls.small import both_forms, problem


def small(length=67, **changes):
    """Keys shared by two heads each: of queries, or of values where each of these has a state."""
    return problem("causal", length, **{"dtype": "float32", "phase": "train", **changes})


# ---- others' forms: tokens before heads, a state of [keys, values] a head ----------------------


def by_head(p, x):
    """A head repeated for those that share it: [b, n, h, …]."""
    return x.transpose(1, 2).repeat_interleave(p.heads // x.shape[1], 2)


def repeated(p, state):
    return None if state is None else state.repeat_interleave(p.heads // state.shape[1], 1)


def one_of(p, after, states):
    """The state of one of the heads that share it."""
    return after[:, :: p.heads // states]


def by_fla(path, function, **fixed):
    """A naive form of fla-core, loaded by its file: the package's own import wants Triton."""

    def form(p, q, k, v, state=None, dt=None, **gates):
        try:
            file = distribution("fla-core").locate_file(f"fla/ops/{path}/naive.py")
        except PackageNotFoundError:
            pytest.skip("fla-core is not installed: the extra 'test' has it")
        spec = importlib.util.spec_from_file_location(f"fla_naive_{path}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        states = v.shape[1]
        v = v if dt is None else v * dt[..., None]
        parts = {"q": q, "k": k, "v": v, **gates}
        parts = {n: by_head(p, x) for n, x in parts.items()}
        if "gk" in fixed.get("names", ()):
            parts["gk"] = parts.pop("g")
        if fixed.get("heads_first"):
            parts = {n: x.transpose(1, 2) for n, x in parts.items()}
        out, after = getattr(module, function)(
            **parts, initial_state=repeated(p, state), output_final_state=True
        )
        out = out if fixed.get("heads_first") else out.transpose(1, 2)
        return out, one_of(p, after, states)

    return form


def by_onnx(rule):
    """ONNX's reference of LinearAttention, in NumPy; it has no gradient."""

    def form(p, q, k, v, state=None, g=None, beta=None, dt=None):
        v = v if dt is None else v * dt[..., None]
        if v.shape[1] != k.shape[1]:
            q, k = (x.repeat_interleave(p.group, 1) for x in (q, k))
        query, key, value, decay, beta = (
            None if x is None else x.transpose(1, 2).flatten(2) for x in (q, k, v, g, beta)
        )
        out, after = computed(
            "LinearAttention",
            {"query": query, "key": key, "value": value, "past_state": state, "decay": decay,
             "beta": beta},
            ["out", "after"], update_rule=rule, q_num_heads=q.shape[1], kv_num_heads=k.shape[1],
            scale=p.scale,
        )  # fmt: skip
        return out.unflatten(2, (p.heads, -1)).transpose(1, 2), after

    return form


FORMS = {
    "gla": ("gated", "gla", "naive_recurrent_gla", {"names": ("gk",)}),
    "retention": ("gated", "simple_gla", "naive_recurrent_simple_gla", {}),
    "ssd": ("gated", "simple_gla", "naive_chunk_simple_gla", {}),
    "delta": ("delta", "delta_rule", "delta_rule_recurrence", {"heads_first": True}),
    "gated_delta": ("gated_delta", "gated_delta_rule", "naive_recurrent_gated_delta_rule", {}),
    "kda": ("gated_delta", "kda", "naive_recurrent_kda", {}),
}
"""ONNX's update rule, and fla's folder and function."""


def near(got, want):
    """Equal by the norm."""
    got, want = got.detach().double(), want.detach().double()
    assert (got - want).norm() <= 1e-6 * want.norm()


@pytest.mark.parametrize("state", [None, True])
@pytest.mark.parametrize("by", ["onnx", "fla"])
@pytest.mark.parametrize("name", FORMS)
def test_an_operator_is_what_others_take_it_for(name, by, state):
    rule, folder, function, more = FORMS[name]
    form = by_onnx(rule) if by == "onnx" else by_fla(folder, function, **more)
    p = small(state=state)
    leaves = make(p, 5, inputs_of(name, p)).map(lambda x: x.requires_grad_())
    by_place, by_name = leaves.arguments
    attend, define = both_forms(name, p)
    twins = leaves.map(lambda x: x.detach().requires_grad_())
    want, last = form(p, **twins)
    out, after = attend(*by_place, **by_name, return_state=True)
    plain = define(*by_place, torch.arange(p.q_len), **by_name)
    for got, other in ((out, want), (plain, want), (after, last)):
        near(got, other)
    if by == "onnx":
        return
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(x.shape, generator=generator) for x in (out, after)]
    mine = torch.autograd.grad((out, after), list(leaves.values()), upstream)
    theirs = torch.autograd.grad((want, last), list(twins.values()), upstream)
    for got, right in zip(mine, theirs, strict=True):
        near(got, right)
